"""Runs a scorer in a separate process, with a time limit; whatever happens to it is an answer.

Arms run on this machine one after the other, or on several at once (`ray_executor`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from logprobe.collectors.errors import StoreError

ENGINE: Final = "logprobe.monitor.proof.scorers.engine_process"
FORWARD: Final = "logprobe.monitor.proof.scorers.forward_process"
LAYERS: Final = "logprobe.monitor.proof.scorers.layers_process"
TRIAL: Final = "logprobe.monitor.proof.scorers.trial_process"
TINY: Final = "logprobe.monitor.proof.scorers.tiny_process"
JOB: Final = "job.json"  # in a folder of its own
ANSWER: Final = "answer.json"
LOG: Final = "log"
# Nothing leaves the machine, one process where one is enough, and the plugin does not record what is scored.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
# vLLM would look for its own address by way of a public one.
_DEFAULTS: Final = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1"}
_GRACE: Final = 5.0  # seconds to end by itself
_LOG_TAIL: Final = 20_000
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scorer: either `answer`, or `error` in one line; `answered`: it said so itself, and would
    again."""

    answer: Mapping[str, Any] | None
    error: str | None
    seconds: float
    answered: bool = False


Start = Callable[[str, Path, float, Mapping[str, str]], tuple[int, bool]]


def run_scorer(
    module: str,
    job: Mapping[str, Any],
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    start: Start | None = None,
) -> Outcome:
    """Runs `module` on `job`, at most `seconds`. Raises `StoreError` when the job cannot be written (a full disk).

    Args:
        module: of the scorer.
        job: what it is given.
        seconds: after which it is ended.
        environment: variables on top of ours.
        start: runs a module on the job in a folder; returns its exit code and whether it ended by itself.
    """
    try:
        return _scored(module, job, seconds, environment or {}, start or afresh)
    except OSError as error:
        place = error.filename or tempfile.gettempdir()
        raise StoreError(f"cannot write to {place}: {error.strerror}; free some space, or set TMPDIR") from error


def _scored(
    module: str, job: Mapping[str, Any], seconds: float, environment: Mapping[str, str], start: Start
) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="logprobe-proof-") as scratch:
        folder = Path(scratch)
        (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
        code, ended = start(module, folder, seconds, environment)
        return _outcome(folder, code, ended=ended, seconds=time.monotonic() - began, limit=seconds)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a scorer's process: the caller's, without what the plugin reads, and `environment` on top."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    return {**_DEFAULTS, **inherited, **_ENVIRONMENT, **environment}


def afresh(module: str, folder: Path, seconds: float, environment: Mapping[str, str]) -> tuple[int, bool]:
    """Starts a process for a module; returns its exit code and whether it ended by itself."""
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, str(folder / JOB), str(folder / ANSWER)],
            stdin=subprocess.PIPE,  # its end tells the process that this one is gone
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables(environment),
            start_new_session=True,  # engines start processes; they end together
        )
        try:
            return process.wait(seconds), True
        except subprocess.TimeoutExpired:
            return -1, False
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)


def _outcome(folder: Path, code: int, *, ended: bool, seconds: float, limit: float) -> Outcome:
    if not ended:
        return Outcome(None, f"not finished within {limit:.0f} s", seconds)
    try:
        answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Outcome(None, f"ended with exit code {code}: {_last_words(folder / 'log')}", seconds)
    if "error" in answer:
        return Outcome(None, str(answer["error"]), seconds, answered=True)
    return Outcome(answer, None, seconds, answered=True)


def _last_words(log: Path) -> str:
    lines = [
        line.strip() for line in log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").splitlines() if line.strip()
    ]
    return lines[-1][:300] if lines else "no output"


def has_cuda() -> bool:
    """Whether there is a CUDA device; asks the driver, not torch."""
    return Path("/proc/driver/nvidia/version").exists()


@dataclass(frozen=True, slots=True)
class Place:
    """How many arms run at a time, and whether there are CUDA devices for them."""

    arms: int = 1
    cuda: bool = field(default_factory=has_cuda)


class Executor(Protocol):
    """Runs scorers, as `run_scorer` does; a context manager that ends those that still run."""

    @property
    def place(self) -> Place:
        """Where they run."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Ends what still runs."""

    def __call__(
        self, module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs `module` on `job`; called by as many threads as `place.arms`."""


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int) -> list[_Result]:
    """What `work` returns for each item, in their order; `at_once` threads work, this one alone when that is 1.

    >>> in_threads(str, [3, 1, 2], at_once=2)
    ['3', '1', '2']
    """
    if at_once == 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(at_once)
    try:
        return list(pool.map(work, items))
    finally:  # after Ctrl-C whoever owns the executor ends what still runs
        pool.shutdown(wait=False, cancel_futures=True)
