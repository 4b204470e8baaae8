"""Registry of running reads. A superseded file is removed when no read that began earlier is running."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Readers:
    """Registry of running reads. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._next = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Register a read for the duration of the block."""
        with self._lock:
            self._next += 1
            number = self._next
            self._running.add(number)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(number)

    def now(self) -> frozenset[int]:
        """Return the numbers of the reads that are running."""
        with self._lock:
            return frozenset(self._running)

    def go_on(self, numbers: Collection[int]) -> bool:
        """Return whether one of these reads is still running."""
        with self._lock:
            return not self._running.isdisjoint(numbers)
