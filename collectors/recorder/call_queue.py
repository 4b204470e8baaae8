"""Bounded queue with its memory and counts, shared by host threads and the recorder's thread."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.health import Health
from logprobe.collectors.recorder.capture import Captured, Capturer
from logprobe.collectors.recorder.ring import Ring

# The thread is woken early once this part of the queue is filled, and not before: while a trainer hands over the
# micro-batches of a step, a thread that already works on them only takes memory bandwidth and the GIL away from it.
_WAKE_SHARE: Final = 8


@dataclass(slots=True)
class FlushRequest:
    """Request to write everything accepted before it. `ok` is valid once `done` is set."""

    since: int  # losses up to this number were reported by an earlier flush
    done: threading.Event = field(default_factory=threading.Event)
    ok: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """Summary of the calls left in the queue. Token counts include padding."""

    by_kind: dict[str, int]
    size: dict[str, int]  # calls, sequences and tokens, as `Health.drop` counts them
    steps: tuple[int, int] | None  # first and last

    @classmethod
    def of(cls, items: Iterable[Captured | FlushRequest]) -> Left:
        """Return a summary of these calls."""
        calls = [item for item in items if isinstance(item, Captured)]
        steps = [call.step for call in calls if call.step is not None]
        size = {
            "calls": len(calls),
            "sequences": sum(call.sequences for call in calls),
            "tokens": sum(call.tokens for call in calls),
        }
        return cls(dict(Counter(call.kind for call in calls)), size, (min(steps), max(steps)) if steps else None)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} of {kind}" for kind, count in self.by_kind.items())
        steps = "" if self.steps is None else f" (steps {self.steps[0]} to {self.steps[1]})"
        return (
            f"{self.size['calls']:,} calls ({kinds or 'none'}){steps}, {self.size['sequences']:,} sequences, "
            f"{self.size['tokens']:,} tokens with padding"
        )


class AtWork:
    """Lock that the recorder's thread holds while it computes, so that a fork can wait for an idle moment.

    Arrow's allocator has its own locks. A lock held at the moment of a fork would stay locked in the child forever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Release the lock while the thread waits for the disk."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def give_way(self) -> None:
        """Let a pending fork proceed between two calls."""
        if self._wanted:
            with self.interrupted():
                while self._wanted:
                    time.sleep(0.001)

    def stop(self, seconds: float) -> bool:
        """Pause the thread at its next idle moment and return whether it stopped.

        Wait at most `seconds`. The thread stays paused until `go_on`.
        """
        self._wanted = True
        try:
            return self._lock.acquire(timeout=seconds)
        finally:
            self._wanted = False

    def go_on(self) -> None:
        """Resume the thread after `stop` returned True."""
        self._lock.release()


class CallQueue:
    """Queue to which host threads `offer` and which the recorder's thread `drain`s. Neither waits for the other."""

    def __init__(self, queue_bytes: int) -> None:
        self.ring = Ring(queue_bytes)
        self.capturer = Capturer(self.ring)
        self.health = Health()
        self.at_work = AtWork()
        self.wake = threading.Event()
        self.closing = False
        self.closed = False
        self.closed_ok = False  # everything that was accepted is on disk
        self.ends = math.inf  # monotonic seconds; then the process ends, whether all is written or not
        self.accepted_calls = 0
        self.accepted_sequences = 0
        self._items: deque[Captured | FlushRequest] = deque()
        self._lock = threading.Lock()
        self._wake_bytes = queue_bytes // _WAKE_SHARE
        self.flushed_to = 0

    @property
    def waiting(self) -> int:
        """Number of calls in the queue."""
        return len(self._items)

    @property
    def crowded(self) -> bool:
        """True when more than half the queue's memory is in use."""
        return self.ring.in_use > self.ring.limit // 2

    def offer(self, item: Captured) -> bool:
        """Copy the arrays of a call and append it. If there is no room, count the call and return False."""
        if self.closing:
            return self._refuse("closed", "the recorder is closed; records after close() are dropped", item)
        try:
            if not self.capturer.copy(item):
                return self._refuse_full(item)
        except Exception as error:
            if isinstance(error, LogprobeError):
                raise
            # A device's, for instance; how much is lost with the call is known here.
            message = f"Recorder.{item.kind}: {type(error).__name__}: {error}"
            return self._refuse("internal_error", message, item)
        if not self._append(item):
            self.capturer.release(item)
            return self.offer(item)
        if self.ring.in_use > self._wake_bytes and not self.wake.is_set():
            self.wake.set()
        return True

    def _append(self, item: Captured) -> bool:
        with self._lock:
            if self.closing:  # since the first look: the thread may already have taken its last
                return False
            self.accepted_calls += 1
            self.accepted_sequences += item.sequences
            item.number = self.accepted_calls
            self._items.append(item)
            return True

    def request_flush(self) -> FlushRequest:
        """Append a flush request and wake the thread. After `close` it is answered immediately."""
        request = FlushRequest(self.flushed_to)
        with self._lock:
            if self.closing:
                request.ok = self.closed_ok
                request.done.set()
            else:
                self._items.append(request)
        self.wake.set()
        return request

    def close(self, *, ends: float = math.inf) -> None:
        """Reject further calls. The thread writes the queue until `ends`, then drops the rest and ends."""
        with self._lock:
            self.closing = True
        self.ends = ends
        self.wake.set()

    @property
    def out_of_time(self) -> bool:
        """True when the process is about to end."""
        return time.monotonic() > self.ends

    def resolve(self, request: FlushRequest, *, ok: bool) -> None:
        """Answer a flush request. Only the recorder's thread calls this."""
        self.flushed_to = self.accepted_calls
        request.ok = ok
        request.done.set()

    def drain(self) -> list[Captured | FlushRequest]:
        """Remove and return all queued items in order."""
        self.wake.clear()
        return [self._items.popleft() for _ in range(len(self._items))]

    def _refuse_full(self, item: Captured) -> bool:
        self.wake.set()
        limit = self.ring.limit / 2**20
        message = f"the recorder's queue ({limit:.0f} MiB) is full; raise queue_bytes or record less per step"
        return self._refuse("queue_full", message, item)

    def _refuse(self, reason: str, message: str, item: Captured) -> bool:
        self.health.drop(reason, message, calls=1, sequences=item.sequences, tokens=item.tokens, step=item.step)
        return False
