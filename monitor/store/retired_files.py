"""Files about to leave the home: removed once nothing can need them any more.

Two things may: a read that began before their retirement, and a start after a crash that finds the store as its last
checkpoint left it. So a file goes when those reads have ended and a checkpoint has come after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import remove_files


@dataclass(slots=True)
class _Retired:
    """Some files, who may still read them, and whether the store on the disk does without them."""

    paths: list[str]
    readers: set[int]
    nbytes: int
    since: float  # monotonic
    checkpointed: bool = False


class RetiredFiles:
    """Knows which reads are running and which files wait. Safe to share between threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._next = 0
        self._waiting: list[_Retired] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While the block runs, files retired after its beginning stay."""
        with self._lock:
            self._next += 1
            number = self._next
            self._running.add(number)
        try:
            yield
        finally:
            self._finished(number)

    def retire(self, paths: list[str], *, nbytes: int = 0, read: bool = True) -> None:
        """Has files (relative to the home) removed when nothing needs them any more. `read`: whether reads may;
        `nbytes`: their size."""
        with self._lock:
            readers = set(self._running) if read else set()
            self._waiting.append(_Retired(paths, readers, nbytes, time.monotonic()))

    def checkpointed(self) -> None:
        """A checkpoint holds everything that was committed before the files that wait now were retired."""
        with self._lock:
            for retired in self._waiting:
                retired.checkpointed = True
        self._sweep()

    def let_copies_go(self) -> None:
        """Gives up files whose content is committed and durable, too: a disk must not fill up with what only a torn log
        would need."""
        with self._lock:
            copies = [retired for retired in self._waiting if retired.nbytes]
            self._waiting = [retired for retired in self._waiting if not retired.nbytes]
        for retired in copies:
            remove_files(self._home, retired.paths)

    def waiting(self) -> tuple[int, float]:
        """Bytes that wait for a checkpoint, and for how many seconds the first of them has."""
        with self._lock:
            waiting = [retired for retired in self._waiting if not retired.checkpointed]
        now = time.monotonic()
        return sum(retired.nbytes for retired in waiting), max((now - file.since for file in waiting), default=0.0)

    def _finished(self, number: int) -> None:
        with self._lock:
            self._running.discard(number)
            for retired in self._waiting:
                retired.readers.discard(number)
        self._sweep()

    def _sweep(self) -> None:
        with self._lock:
            free = [retired for retired in self._waiting if retired.checkpointed and not retired.readers]
            self._waiting = [retired for retired in self._waiting if not retired.checkpointed or retired.readers]
        for retired in free:
            remove_files(self._home, retired.paths)
