"""Raw files on their way out: removed when the last read that began before their retirement has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import remove_files


class RetiredFiles:
    """Knows which reads are running and which files wait for them. Safe to share between threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._running: dict[int, float] = {}  # when each began
        self._next = 0
        self._waiting: list[tuple[set[int], list[str]]] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While the block runs, files retired after its beginning stay."""
        with self._lock:
            self._next += 1
            number = self._next
            self._running[number] = time.time()
        try:
            yield
        finally:
            self._finished(number)

    def retire(self, paths: list[str]) -> None:
        """Removes files (relative to the home) at once or when those who may read them are done."""
        with self._lock:
            self._waiting.append((set(self._running), paths))
        self._sweep()

    def oldest(self) -> float | None:
        """When the oldest read under way began (`time.time`); None: there is none."""
        with self._lock:
            return min(self._running.values(), default=None)

    def _finished(self, number: int) -> None:
        with self._lock:
            del self._running[number]
            for blockers, _ in self._waiting:
                blockers.discard(number)
        self._sweep()

    def _sweep(self) -> None:
        with self._lock:
            free = [paths for blockers, paths in self._waiting if not blockers]
            self._waiting = [entry for entry in self._waiting if entry[0]]
        for paths in free:
            remove_files(self._home, paths)
