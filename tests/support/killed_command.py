"""Commands that SIGKILL ends in the middle: just before the n-th change of a file or folder below a place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any, Final

_CHANGES: Final = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile", "duckdb.connect"}
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_PRELOADED: Final = ("logprobe.app.cli", "pyarrow.parquet", "killed_command")


def run_killed(below: Path, change: int, *arguments: object) -> bool:
    """Runs a command that is killed before its `change`-th change, from 0; → whether it ended before that, with exit code 0."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    log = below / "commands.log"
    process = context.Process(target=_run, args=(below, change, [str(argument) for argument in arguments], log))
    process.start()
    process.join()
    assert process.exitcode in {0, -signal.SIGKILL}, f"{arguments}: exit {process.exitcode}\n{log.read_text()[-3000:]}"
    return process.exitcode == 0


def _run(below: Path, change: int, arguments: list[str], log: Path) -> None:
    from logprobe.app import cli

    changes = count()

    def hook(event: str, facts: tuple[Any, ...]) -> None:
        if _is_change(event, facts, str(below)) and next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    with log.open("a") as file, redirect_stderr(file), redirect_stdout(file):
        sys.addaudithook(hook)
        raise SystemExit(cli.main(arguments))


def _is_change(event: str, facts: tuple[Any, ...], below: str) -> bool:
    if event != "open" and event not in _CHANGES:
        return False
    if not isinstance(facts[0], str | os.PathLike) or not os.fspath(facts[0]).startswith(below):
        return False
    return event != "open" or bool(facts[2] & _WRITES)
