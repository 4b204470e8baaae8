"""Execution of a scorer in a separate process with a time limit. Every failure becomes an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import StoreError

ENGINE: Final = "logprobe.monitor.proof.scorers.engine_process"
FORWARD: Final = "logprobe.monitor.proof.scorers.forward_process"
LAYERS: Final = "logprobe.monitor.proof.scorers.layers_process"
TRIAL: Final = "logprobe.monitor.proof.scorers.trial_process"
TINY: Final = "logprobe.monitor.proof.scorers.tiny_process"
_JOB: Final = "job.json"  # in a folder of its own
_ANSWER: Final = "answer.json"
_LOG: Final = "log"
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a scorer with `answer` or a one-line `error`. `answered`: true if the scorer itself returned it
    reproducibly.
    """

    answer: Mapping[str, Any] | None
    error: str | None
    seconds: float
    answered: bool = False


def run_scorer(
    module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run `module` on `job` for at most `seconds`. Raises `StoreError` if the job cannot be written (full disk).

    Args:
        module: module of the scorer.
        job: input of the scorer.
        seconds: time limit.
        environment: variables added to the caller's.
    """
    try:
        return _scored(module, job, seconds, environment or {})
    except OSError as error:
        place = error.filename or tempfile.gettempdir()
        raise StoreError(f"cannot write to {place}: {error.strerror}; free some space, or set TMPDIR") from error


def _scored(module: str, job: Mapping[str, Any], seconds: float, environment: Mapping[str, str]) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="logprobe-proof-") as scratch:
        folder = Path(scratch)
        (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")
        code, ended = _ran(module, folder, seconds, environment)
        return _outcome(folder, code, ended=ended, seconds=time.monotonic() - began, limit=seconds)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a scorer's process, the caller's without the plugin's variables plus `environment`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    return {**_DEFAULTS, **inherited, **_ENVIRONMENT, **environment}


def _ran(module: str, folder: Path, seconds: float, environment: Mapping[str, str]) -> tuple[int, bool]:
    """Run a module on the job in a folder. Return its exit code and whether it ended before the time limit."""
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, str(folder / _JOB), str(folder / _ANSWER)],
            stdin=subprocess.PIPE,  # its end tells the process that this one is gone
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_variables(environment),
            start_new_session=True,  # engines start processes; they end together
        )
        try:
            return process.wait(seconds), True
        except subprocess.TimeoutExpired:
            return -1, False
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants."""
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
        answer = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Outcome(None, f"ended with exit code {code}: {_last_words(folder / _LOG)}", seconds)
    if "error" in answer:
        return Outcome(None, str(answer["error"]), seconds, answered=True)
    return Outcome(answer, None, seconds, answered=True)


def _last_words(log: Path) -> str:
    lines = [
        line.strip() for line in log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").splitlines() if line.strip()
    ]
    return lines[-1][:300] if lines else "no output"


def has_cuda() -> bool:
    """Return whether a CUDA device exists, according to the driver, not torch."""
    return Path("/proc/driver/nvidia/version").exists()
