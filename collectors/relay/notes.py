"""Health records of the relay, in the runs that it ships: how much waits, since what time, and what the service refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.health import Problem
from logprobe.collectors.recorder.writer import rows_table
from logprobe.collectors.relay.spool_queue import Length
from logprobe.collectors.spool.segments import SpoolWriter

SECONDS: Final = 30.0  # between two records of a run
COMPONENT: Final = "relay"
QUEUE: Final = "relay_queue"
REFUSED: Final = "relay_refused"
_SHORT: Final = 1.0  # seconds; a note of ours that waits for less is no reason for another
_LATE: Final = 60.0  # seconds; a segment that waits for longer is worth a warning


class RunNotes:
    """Writes into the spool that it watches; a note travels like any other segment. `write` belongs to one thread."""

    def __init__(self, home: Path, writer: str) -> None:
        self._home = home
        self._writer = writer
        self._writers: dict[str, SpoolWriter] = {}
        self._next: dict[str, float] = {}
        self._longest: dict[str, dict[str, Any]] = {}  # of the queue, since the last record
        self._lock = threading.Lock()

    def refused(self, run: str, words: str) -> None:
        """The service will never take a segment of `run`. Raises `OSError`."""
        message = f"the service refused a segment, which is in quarantine: {words}"
        self._put(run, Problem(REFUSED, "error", message, count=1))

    def write(self, lengths: Mapping[str, Length], problem: str | None) -> None:
        """Writes what is due. Raises `OSError`."""
        now = time.time()
        for run, length in lengths.items():
            self._keep_longest(run, length.document(now))
            if time.monotonic() >= self._next.get(run, 0.0) and _worth_noting(self._longest[run]):
                self._next[run] = time.monotonic() + SECONDS
                self._put(run, self._queue_record(self._longest.pop(run), problem))

    def _keep_longest(self, run: str, document: dict[str, Any]) -> None:
        known = self._longest.get(run)
        if known is None or (document["oldest_seconds"] or 0.0) >= (known["oldest_seconds"] or 0.0):
            self._longest[run] = document

    def _queue_record(self, length: dict[str, Any], problem: str | None) -> Problem:
        age = length["oldest_seconds"] or 0.0
        words = f"{length['segments']} segments ({length['bytes']:,} bytes) waited for the service, the oldest for {age:.1f} s"
        late = age > _LATE
        return Problem(
            QUEUE, "warning" if late else "info", words + (f"; {problem}" if problem and late else ""), count=1
        )

    def _put(self, run: str, problem: Problem) -> None:
        with self._lock:
            writer = self._writers.setdefault(run, SpoolWriter(self._home, run, self._writer))
            writer.write("health", rows_table("health", [problem.row(COMPONENT, {"relay": self._writer})]))


def _worth_noting(length: Mapping[str, Any]) -> bool:
    return length["segments"] > 1 or (length["oldest_seconds"] or 0.0) > _SHORT
