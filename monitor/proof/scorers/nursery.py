"""Arms that start sooner: a process that has imported vLLM forks one process per engine, another without vLLM one per
reference pass.

Imports are more than half of what an arm costs on a CPU. Where there is a CUDA device each arm gets a separate process
from the beginning, as CUDA demands.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from logprobe.monitor.proof.scorers.running import ENGINE, FORWARD, Outcome, Place, afresh, end, run_scorer, variables

_PROCESS: Final = "logprobe.monitor.proof.scorers.nursery_process"
_GRACE: Final = 5.0  # seconds in which it ends its arm and itself
_Key = tuple[str, tuple[tuple[str, str], ...]]  # what is forked, and its environment


class Nursery:
    """This machine; an `Executor`."""

    def __init__(self) -> None:
        self.place = Place()
        self._processes: dict[_Key, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._processes):
            self._end(key)

    def __call__(
        self, module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs `module` on `job`."""
        start = self._fork if _may_share(module, job) and not self.place.cuda else None
        return run_scorer(module, job, seconds=seconds, environment=environment, start=start)

    def _fork(self, module: str, folder: Path, seconds: float, environment: Mapping[str, str]) -> tuple[int, bool]:
        """Exit code of the arm's process, and whether it ended by itself."""
        key = (module, tuple(sorted(environment.items())))
        process = self._processes.get(key) or self._started(key, environment)
        try:
            reply = _asked(process, folder, seconds)
        except TimeoutError:
            self._end(key)
            return -1, False
        if not reply:  # vLLM cannot be imported, say: a process of its own tells why
            self._end(key)
            return afresh(module, folder, seconds, environment)
        return int(reply), True

    def _started(self, key: _Key, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._processes[key] = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _PROCESS, key[0]],
            stdin=subprocess.PIPE,  # its end tells the process that this one is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables(environment),
            start_new_session=True,
        )
        return self._processes[key]

    def _end(self, key: _Key) -> None:
        process = self._processes.pop(key)
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            end(process)
        if process.stdout is not None:
            process.stdout.close()


def _may_share(module: str, job: Mapping[str, Any]) -> bool:
    """Whether imports may come first. A trainer's own module may want to set something before it imports torch."""
    return module == ENGINE or (module == FORWARD and str(job["function"]).startswith("logprobe."))


def _asked(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> bytes:
    """Its reply; empty when it is gone. Raises `TimeoutError`."""
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    with suppress(BrokenPipeError):
        process.stdin.write(f"{folder}\n".encode())
        process.stdin.flush()
    if not select.select([process.stdout], [], [], seconds)[0]:
        raise TimeoutError
    return process.stdout.readline()
