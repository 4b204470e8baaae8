"""Work that Ctrl-C can stop at any moment, although DuckDB may miss the interrupt.

The work runs in a separate thread, which the waiting thread stops. This module uses no lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_INTERRUPT_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.005
_START_SECONDS: Final = 2.0


class Stop(threading.Event):
    """Stop flag that is safe to set in a thread that Ctrl-C interrupts at any point."""

    _asked = False

    def set(self) -> None:
        """Request the stop of the work, like `threading.Event.set`."""
        self._asked = True

    def is_set(self) -> bool:
        """Return whether a stop was requested, like `threading.Event.is_set`."""
        return self._asked


class _Outcome(Generic[T]):
    """Outcome of a thread, for a waiting thread that Ctrl-C may interrupt at any point."""

    result: T
    error: BaseException | None = None
    cancelled = False
    finished = False


class Interruptible:
    """Runner of work for one object, such as a reader, with the same lifetime."""

    def __init__(self) -> None:
        # A thread destroyed in `run` could be struck by Ctrl-C in its destructor, where Python can only print it.
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T], interrupt: Callable[[], None]) -> T:
        """Return the result of `work` or raise its error. On Ctrl-C, call `interrupt` until the work ends, then raise
        `KeyboardInterrupt`.
        """
        outcome = _Outcome[T]()
        worker = threading.Thread(target=_fulfil, args=(outcome, work), name="logprobe-query", daemon=True)
        self._threads.append(worker)
        try:
            worker.start()
            while not outcome.finished:
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            while not _stopped(outcome, worker, interrupt):
                pass
            raise
        # Its cursor goes with it, and must be gone before the interpreter ends: destroyed later, it aborts the process.
        worker.join()
        if outcome.error is not None:
            raise outcome.error
        return outcome.result


def _stopped(outcome: _Outcome[T], worker: threading.Thread, interrupt: Callable[[], None]) -> bool:
    """Stop the work, whether or not it or its statement has begun. Return False after another Ctrl-C."""
    try:
        outcome.cancelled = True
        deadline = time.monotonic() + _START_SECONDS
        while not outcome.finished and (worker.ident is not None or time.monotonic() < deadline):
            interrupt()
            time.sleep(_INTERRUPT_SECONDS)
    except KeyboardInterrupt:
        return False
    return True


def _fulfil(outcome: _Outcome[T], work: Callable[[], T]) -> None:
    """Run `work` unless it was cancelled before its start."""
    try:
        if not outcome.cancelled:
            outcome.result = work()
    except BaseException as error:  # noqa: BLE001 -- the waiting thread raises it
        outcome.error = error
    finally:
        outcome.finished = True
