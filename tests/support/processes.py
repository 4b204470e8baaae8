"""Services and commands for tests, and waiting for what they do."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from logprobe.app import cli
from logprobe.app.processes import service as service_program
from logprobe.app.surface.commands import SECTIONS, WORDS
from logprobe.app.surface.declared import build
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import FlightReader, connect

SECONDS = 120.0  # nothing takes long on an idle machine; a busy one may take twenty times as long


def eventually(condition: Callable[[], Any], what: str = "what was waited for", seconds: float = SECONDS) -> Any:
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
    command = [sys.executable, "-m", "logprobe.app.processes.service", "--home", str(home), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@contextmanager
def service(home: Path, *arguments: str) -> Iterator[FlightReader]:
    """A running service of `home` with all its parts, in a thread of this process; stopped at the end of the block.

    What is about a process, such as a signal, its end or its memory, takes `service_process`.
    """
    running = service_program.service_of(service_program._parser().parse_args(["--home", str(home), *arguments]))
    thread = threading.Thread(target=running.run, name=f"service of {home}")
    thread.start()
    try:
        with connected(home) as reader:
            yield reader
    finally:
        running.shutdown()
        thread.join()


@contextmanager
def service_process(home: Path, *arguments: str) -> Iterator[tuple[FlightReader, subprocess.Popen[bytes]]]:
    """The same as a process of its own; also gives that."""
    process = start_service(home, *arguments)
    try:
        with connected(home) as reader:
            yield reader, process
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


def understood(words: list[str]) -> SimpleNamespace:
    """What a command would be given; nothing is done. Raises `click.UsageError`."""
    given: list[SimpleNamespace] = []
    program = build(SECTIONS, lambda _, arguments: given.append(arguments) or 0, WORDS)
    program.main(words, prog_name="logprobe", standalone_mode=False)
    return given[0] if given else SimpleNamespace()


JUDGED = (0, 2)  # what `show` ends with of any run; 2: it is critical


def logprobe(*arguments: object, code: int | Collection[int] = 0, **environment: str) -> SimpleNamespace:
    """What the command line says, see `called`."""
    return called(cli.main, *arguments, code=code, **environment)


def called(
    main: Callable[[list[str]], int], *arguments: object, code: int | Collection[int] = 0, **environment: str
) -> SimpleNamespace:
    """Runs a program in this process, whose state it leaves as it was; fails unless it ends with `code`, or one of
    them."""
    out, err = io.StringIO(), io.StringIO()
    with _as_it_was(), patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        try:
            done = main([str(argument) for argument in arguments])
        except SystemExit as end:
            done = int(end.code or 0)
    assert done in ([code] if isinstance(code, int) else code), (
        f"{arguments}: exit {done}\n{out.getvalue()}\n{err.getvalue()}"
    )
    return SimpleNamespace(returncode=done, stdout=out.getvalue(), stderr=err.getvalue())


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Puts back what a command changes in the process that it takes for its own."""
    folder, mask = Path.cwd(), os.umask(0o077)
    os.umask(mask)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        os.chdir(folder)
        os.umask(mask)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


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
