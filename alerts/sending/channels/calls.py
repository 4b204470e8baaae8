"""Calls over the network that end in time, whatever the other side does.

A socket's time limit counts from byte to byte, and there is none on a name's resolution. So a call runs in its own
thread, and is left alone when its time is up or the service stops. While it hangs there, nothing else is sent: it might
still get through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from logprobe.collectors.errors import ChannelError

T = TypeVar("T")

_LOOK_UP: Final = 0.05  # seconds between two looks at the stop event


class Calls:
    """Runs the calls of one channel, one at a time."""

    def __init__(self, seconds: float, stopping: threading.Event) -> None:
        """`seconds`: for one call. `stopping`: ends the wait at once."""
        self.seconds = seconds
        self._stopping = stopping
        self._left: Future[object] | None = None

    def run(self, work: Callable[[], T]) -> T:
        """Return or raise what `work` does. Raise `ChannelError` (``uncertain``) when it takes too long, or when it
        must stop."""
        if self._left is not None and not self._left.done():
            raise ChannelError("uncertain", "an earlier call is still hanging")
        future: Future[T] = Future()
        threading.Thread(target=_fulfil, args=(future, work), name="logprobe-call", daemon=True).start()
        deadline = time.monotonic() + self.seconds
        while not future.done() and time.monotonic() < deadline and not self._stopping.is_set():
            wait([future], _LOOK_UP)
        if future.done():
            return future.result()
        self._left = future  # type: ignore[assignment]  # only ever asked whether it is done
        why = "the service stops" if self._stopping.is_set() else f"no response within {self.seconds:g} s"
        raise ChannelError("uncertain", why)


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - handed on to the thread that waits for it
        future.set_exception(error)
