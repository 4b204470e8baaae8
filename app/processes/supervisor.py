"""Supervision of child processes: start, restart with back-off, and joint stop.

Each child runs in a separate session. Ctrl-C therefore reaches only the supervisor, which decides the order of
stopping. Children are tethered (`logprobe.app.processes.die_with_parent`), so none outlives a supervisor killed with
SIGKILL.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from logprobe.collectors.errors import LogprobeError

DAMAGED: Final = 3  # exit status: the store cannot be read, and no restart changes that
_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
_PROVEN_SECONDS: Final = 60.0  # a child that ran this long starts over with the first delay
_STOP_SECONDS: Final = 15.0
_TICK: Final = 0.1


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module. A file of that name in the working directory is never run."""
    return [sys.executable, "-P", "-m", name, *arguments]


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command that ends with this process."""
    return module("logprobe.app.processes.die_with_parent", str(os.getpid()), *command)


def end(process: subprocess.Popen[Any], seconds: float) -> None:
    """Send SIGTERM, wait at most `seconds`, then send SIGKILL."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ChildFailedError(LogprobeError, RuntimeError):
    """Failure of a child before it was ready. A restart would repeat the error on its stderr."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run. `ready`: function that returns true once the process serves.

    A child that ends before it was ready is not restarted. A child that ends later is restarted. A child that was
    killed, for example by the out-of-memory killer, is always restarted.
    """

    name: str
    command: Sequence[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    chatty: bool = False  # its stdout is of no interest
    final: int | None = None  # exit status after which a restart would only repeat what it said on stderr


class _Running:
    """One child and its current process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.was_ready = False
        self._delay = _FIRST_DELAY
        self._started = 0.0
        self._due = 0.0

    def start(self) -> None:
        self._started = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - our own commands
            tethered(self.child.command),
            env={**os.environ, **self.child.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if self.child.chatty else None,
            start_new_session=True,
        )

    def died(self) -> int | None:
        """Return the exit status of a process that has just ended, or None while it is running or pending restart."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is not None:
            self.process = None
        return status

    def schedule_restart(self) -> float:
        """Schedule the restart. Return the delay in seconds, which doubles while the child ends quickly."""
        now = time.monotonic()
        if now - self._started >= _PROVEN_SECONDS:
            self._delay = _FIRST_DELAY
        delay, self._delay = self._delay, min(2 * self._delay, _LONGEST_DELAY)
        self._due = now + delay
        return delay

    def restart_when_due(self) -> None:
        if self.process is None and time.monotonic() >= self._due:
            self.start()

    def stop(self) -> None:
        if self.process is not None:
            end(self.process, _STOP_SECONDS)
            self.process = None


class Supervisor:
    """Supervisor of `children`. They are stopped in reverse order, readers before their sources."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Hold `children` without starting them. `say`: callback with one line per notable event. `on_ready`: callback
        once all children are ready.
        """
        self._children = [_Running(child) for child in children]
        self._stop = stop
        self._say = say
        self._on_ready = on_ready

    def run(self) -> None:
        """Run the children until `stop` is set and every child has ended. Raises `ChildFailedError` if one never
        became ready.
        """
        try:
            for running in self._children:
                running.start()
            while not self._stop.wait(_TICK):
                self._tick()
        finally:
            for running in reversed(self._children):
                running.stop()

    def _tick(self) -> None:
        for running in self._children:
            status = running.died()
            if status is not None:
                self._handle_exit(running, status)
            running.restart_when_due()
        self._announce()

    def _handle_exit(self, running: _Running, status: int) -> None:
        name, how = running.child.name, _how(status)
        if status == running.child.final or (not running.was_ready and status >= 0):
            raise ChildFailedError(f"the {name} did not start ({how}); see its message above")
        delay = running.schedule_restart()
        self._say(f"the {name} ended unexpectedly ({how}); restart in {delay:g} s")

    def _announce(self) -> None:
        waiting = [running for running in self._children if not running.was_ready]
        if not waiting:
            return
        for running in waiting:
            running.was_ready = running.child.ready()
        if all(running.was_ready for running in self._children):
            self._on_ready()


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    hint = "; `dmesg` shows whether memory ran out" if -status == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-status).name}{hint}"


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set within the block. A second signal interrupts immediately.

    Under `nohup` SIGHUP is ignored.
    """
    stop = threading.Event()
    # A handler runs in the thread that waits for the event, maybe while that holds the event's lock; setting it there
    # could deadlock. A `SimpleQueue` may be used in handlers, and another thread waits at its end.
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    seen: list[int] = []

    def handle(number: int, _frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt(signal.Signals(number).name)
        asked.put(None)

    def set_when_asked() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=set_when_asked, name="stop-on-signals", daemon=True).start()
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    numbers = (signal.SIGINT, signal.SIGTERM, *hangup)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.put(None)
