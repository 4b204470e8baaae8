"""Real processes for tests: services, commands, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import FlightReader, connect

SECONDS = 120.0  # nothing takes long on an idle machine; a busy one may take twenty times as long


def eventually(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """The first true value of `condition`; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def connected(home: Path) -> FlightReader:
    """A reader of the home's service, once it answers."""

    def attempt() -> FlightReader | None:
        try:
            return connect(home)
        except ServiceUnavailableError:
            return None

    return eventually(attempt, f"a service of {home} answers")


def start_service(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A service process; not yet ready."""
    command = [sys.executable, "-m", "logprobe.app.service", "--home", str(home), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@contextmanager
def service(home: Path) -> Iterator[FlightReader]:
    """A running service of `home`, stopped at the end of the block."""
    process = start_service(home)
    try:
        with connected(home) as reader:
            yield reader
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> str:
    """Stops a process politely, or by force after a while; returns what it wrote on stderr."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    return errors.decode() if isinstance(errors, bytes) else errors or ""


def logprobe(*arguments: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own; fails unless it exits with `code`."""
    command = [sys.executable, "-m", "logprobe.app.cli", *map(str, arguments)]
    settings = {**os.environ, **environment}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS, env=settings)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def record(home: Path, run: str = "toy", *, steps: range = range(3), close: bool = True) -> Recorder:
    """Records 4 sequences of 16 tokens per step, with everything a trainer may know but current log-probs."""
    recorder = Recorder(home, run, rank=0)
    rng = np.random.default_rng(7)
    for step in steps:
        rollout = -rng.exponential(1.0, (4, 16)).astype(np.float32)
        recorder.training(
            step=step,
            sample_ids=[f"s{step}-{i}" for i in range(4)],
            token_ids=rng.integers(0, 1000, (4, 16)),
            rollout_logprobs=rollout,
            trainer_logprobs=np.minimum(rollout + rng.normal(0, 0.01, (4, 16)), 0).astype(np.float32),
            mask=np.ones((4, 16), bool),
            rewards=np.arange(4.0),
            weight_version=step,
        )
        recorder.step(step, loss=0.5)
    assert recorder.flush()
    if close:
        recorder.close()
    return recorder
