"""The command `logprobe`.

Exit codes: 0 done, 1 an error that the one line on stderr explains (``LOGPROBE_DEBUG=1`` adds the traceback), 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Final, NoReturn

from logprobe.collectors.errors import LogprobeError, MissingExtraError

# What each command is for, in the order of the help. The modules are `logprobe.app.commands.<name>`.
COMMANDS: Final[dict[str, str]] = {
    "up": "run the monitor service and the dashboard",
    "demo": "replay recorded runs live through the whole pipeline",
    "runs": "list the runs of a home",
    "status": "say how a run is doing: live or not, last step, lag, losses, collectors",
    "metrics": "print the metrics of a run, step by step",
    "sql": "answer a read-only SQL query",
    "ingest": "take what lies in the spool into the store",
    "doctor": "say what is installed, which hooks are live here and what cannot be measured",
}

# Packages that come with an extra, by the name that is imported.
_EXTRAS: Final[dict[str, str]] = {
    "apscheduler": "serve",
    "duckdb": "serve",
    "plotly": "serve",
    "polars": "serve",
    "streamlit": "serve",
    "tsdownsample": "serve",
    "torch": "torch",
    "vllm": "vllm",
}


class _Parser(argparse.ArgumentParser):
    """Says wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"logprobe: {message}; see: {self.prog} --help\n")


def load(command: str) -> ModuleType:
    """The module of a subcommand."""
    return importlib.import_module(f"logprobe.app.commands.{command}")


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The command line; of the subcommands, only what `argv` names is loaded and knows its arguments."""
    top = _Parser(
        prog="logprobe",
        description="Live monitoring of the training-inference mismatch in reinforcement learning of language models.",
        epilog="`logprobe COMMAND --help` explains a command.",
    )
    top.add_argument("--version", action="version", version=f"logprobe {installed_version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, words in COMMANDS.items():
        sub = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        sub.add_argument("--home", metavar="DIR", default=os.environ.get("LOGPROBE_HOME") or None, help=_HOME_HELP)
        if name in argv:
            load(name).add_arguments(sub)
    return top


_HOME_HELP: Final = "folder that runs are recorded to (default: $LOGPROBE_HOME)"


def installed_version() -> str:
    """Version of this package."""
    try:
        return version("logprobe")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser(argv).parse_args(argv)
    try:
        return _run(arguments)
    except LogprobeError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `logprobe … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing may complain at interpreter shutdown
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process: one line instead of a traceback
        return _fail(f"unexpected {type(error).__name__}: {error}; LOGPROBE_DEBUG=1 shows where, please report it")


def _run(arguments: argparse.Namespace) -> int:
    try:
        code = int(load(arguments.command).run(arguments))
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtraError(
            f"`logprobe {arguments.command}` needs the package {error.name!r}; pip install 'logprobe[{extra}]'"
        ) from error
    return code


def _fail(message: str) -> int:
    print(f"logprobe: {' '.join(message.split())}", file=sys.stderr)
    if os.environ.get("LOGPROBE_DEBUG", "") not in {"", "0"}:
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    sys.exit(main())
