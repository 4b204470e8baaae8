"""Cache of the answers of stored statements, valid until the next write to the tables that they read.

A service polls for work every second and mostly finds none. Planning the statement takes longer than reading its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from logprobe.monitor.queries import Source

_MOST: Final = 64  # answers


class Kept:
    """Caching source of stored statements that read only tables, neither the clock nor files. Safe from any thread."""

    def __init__(self, source: Source, written: Callable[[], int]) -> None:
        """Set up the cache. `written`: returns the number of ended transactions of `source`."""
        self._source = source
        self._written = written
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], tuple[int, pa.Table]] = {}

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement. Raises as the source does."""
        key = (name, repr(sorted(params.items())))
        # Before it is asked: what is written from now on may not be in the answer, and is asked for again.
        written = self._written()
        with self._lock:
            kept = self._answers.get(key)
        if kept is not None and kept[0] == written:
            return kept[1]
        answer = self._source.read(name, **params)
        with self._lock:
            self._answers.pop(key, None)
            self._answers[key] = (written, answer)
            if len(self._answers) > _MOST:
                del self._answers[next(iter(self._answers))]
        return answer
