"""Work that Ctrl-C ends at any moment, although DuckDB may miss the interrupt.

The work runs in a thread of its own, which the waiting thread stops. Nothing here has a lock.
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
    """Set by a thread that Ctrl-C may strike at any point."""

    _asked = False

    def set(self) -> None:
        """Note that the work is to stop, like `threading.Event.set`."""
        self._asked = True

    def is_set(self) -> bool:
        """Return whether the work is to stop, like `threading.Event.is_set`."""
        return self._asked


class _Outcome(Generic[T]):
    """Outcome of a thread, for one that waits for it and that Ctrl-C may strike at any point."""

    result: T
    error: BaseException | None = None
    cancelled = False
    finished = False


class Interruptible:
    """Runs work for one object, such as a reader; lives as long as that."""

    def __init__(self) -> None:
        # A thread destroyed in `run` could be struck by Ctrl-C in its destructor, where Python can only print it.
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T], interrupt: Callable[[], None]) -> T:
        """Return or raise the result of `work`. On Ctrl-C call `interrupt` until the work ends, then raise
        `KeyboardInterrupt`."""
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
    """Have the work end, wherever Ctrl-C struck: it may not have begun, nor its statement. Return False if Ctrl-C was
    pressed again."""
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
    """Do `work`, unless it was cancelled before it began."""
    try:
        if not outcome.cancelled:
            outcome.result = work()
    except BaseException as error:  # noqa: BLE001 -- the waiting thread raises it
        outcome.error = error
    finally:
        outcome.finished = True
