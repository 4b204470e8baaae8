"""Answers of stored statements, kept for as long as nothing is written that they may depend on.

A service asks every second what there is to do, and mostly there is nothing: planning such a statement takes longer
than all that it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from logprobe.monitor.queries import Source

_MOST: Final = 64  # answers


class Kept:
    """A source of stored statements that ask tables only: neither the clock nor files. Safe from any thread."""

    def __init__(self, source: Source, written: Callable[[], int]) -> None:
        """Set up the cache. `written`: returns the number of ended transactions of `source`."""
        self._source = source
        self._written = written
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], tuple[int, pa.Table]] = {}

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of one; raises as the source does."""
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
