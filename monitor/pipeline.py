"""What the jobs do, in order: spool → store, rollout ⨝ training, dirty steps → metrics. For the service and for `ingest --once`.

Ingest is followed at once by the join and the step metrics, so that what a collector flushed is visible as soon as possible.
With a backlog it goes batch by batch, and metrics are computed about once per second in between.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from logprobe.monitor.home import Home
from logprobe.monitor.ingest import BATCH_BYTES, Ingester, IngestReport
from logprobe.monitor.join import Joiner
from logprobe.monitor.retention import Retention
from logprobe.monitor.spool_scan import scan
from logprobe.monitor.step_job import STEPS_PER_BATCH, StepJob
from logprobe.monitor.store import Store

Report = dict[str, Any]

_METRICS_EVERY: Final = 1.0  # seconds, while a backlog is worked off
_COUNTED: Final = ("segments", "rows", "tokens", "bytes", "duplicates", "quarantined", "bad_rows")


class Pipeline:
    """The work of a store's owner. `ingest` belongs to one thread at a time; the rest may be called beside it."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        """`stopping`: when set, work ends after the batch in hand."""
        self._ingester = Ingester(store)
        self._joiner = Joiner(store)
        self._steps = StepJob(store)
        self._retention = Retention(store)
        self._stopping = stopping
        self._deriving = threading.Lock()

    def ingest(self, show: Callable[[Report], None] = lambda _: None) -> Report:
        """Works off the spool, and computes what that makes dirty. `show` receives the report so far after every batch.

        Returns counts (`segments, rows, tokens, bytes, duplicates, quarantined, bad_rows, steps`) and how far behind the
        store is (`remaining` segments, `lag_seconds` of the oldest when the run began). Raises `StoreError`.
        """
        counts: Counter[str] = Counter()
        lag: float | None = None
        report = IngestReport()
        derived = time.monotonic()
        while not self._stopping.is_set():
            report = self._ingester.run_once(max_bytes=BATCH_BYTES)
            lag = lag if counts["batches"] else report.lag_seconds
            counts.update({name: getattr(report, name) for name in _COUNTED}, batches=1)
            if counts["segments"] and (not report.remaining or time.monotonic() - derived >= _METRICS_EVERY):
                counts["steps"] += self.derive()["steps"]
                derived = time.monotonic()
            show(_report(counts, report, lag))
            if not report.remaining or not _advanced(report):
                break
        return _report(counts, report, lag)

    def derive(self) -> Report:
        """Joins what waits for its other side, and computes the steps that are dirty. Raises `StoreError`."""
        with self._deriving:
            joined = asdict(self._joiner.run_once())
            steps, remaining = 0, 1
            while remaining and not self._stopping.is_set():
                done = self._steps.run_once(max_steps=STEPS_PER_BATCH)
                steps, remaining = steps + done.steps, done.remaining
        return {"steps": steps, "remaining": remaining, "join": joined}

    def retain(self) -> Report:
        """Applies the budgets of raw tokens and compacts small files. Raises `StoreError`."""
        return asdict(self._retention.run_once())


def _advanced(report: IngestReport) -> bool:
    return bool(report.segments or report.duplicates or report.quarantined)


def _report(counts: Counter[str], last: IngestReport, lag: float | None) -> Report:
    return {
        **{name: counts[name] for name in (*_COUNTED, "steps")},
        "remaining": last.remaining,
        "lag_seconds": lag,
        "problems": last.problems,
    }


def backlog(home: Home) -> Report:
    """What waits in the spool: `segments`, `bytes`, and the age of the oldest in seconds (None: nothing waits)."""
    now = time.time()
    waiting = scan(home, now=now).segments
    return {
        "segments": len(waiting),
        "bytes": sum(segment.nbytes for segment in waiting),
        "oldest_seconds": max(0.0, now - waiting[0].modified) if waiting else None,
    }
