"""What the jobs do: spool → store, rollout ⨝ training, dirty steps → metrics → diagnosis. For the service and for `ingest --once`.

Ingest is followed at once by the join and the step metrics, so that what a collector flushed is visible as soon as possible.
With a backlog it goes batch by batch, and they follow about once per second.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from logprobe.monitor.diagnosis.job import DiagnosisJob
from logprobe.monitor.home import Home
from logprobe.monitor.ingest import BATCH_BYTES, Ingester, IngestReport
from logprobe.monitor.join import Joiner
from logprobe.monitor.profile_job import ProfileJob
from logprobe.monitor.retention import Retention, RetentionPolicy
from logprobe.monitor.spool_scan import scan
from logprobe.monitor.step_job import STEPS_PER_BATCH, StepJob
from logprobe.monitor.store import Store

Report = dict[str, Any]

_ROUND_BYTES: Final = 4 * BATCH_BYTES  # several batches in a row: the next is read while one is written
_FOLLOW_EVERY: Final = 1.0  # seconds, while a backlog is worked off
_COUNTED: Final = ("segments", "rows", "tokens", "bytes", "duplicates", "quarantined", "bad_rows")


class Pipeline:
    """The work of a store's owner. Each method belongs to one thread at a time; different ones may run side by side."""

    def __init__(self, store: Store, stopping: threading.Event, policy: RetentionPolicy | None = None) -> None:
        """`stopping`: when set, work ends after the batch in hand. `policy`: of raw tokens; None: the default one."""
        self._ingester = Ingester(store)
        self._joiner = Joiner(store)
        self._steps = StepJob(store)
        self._profiles = ProfileJob(store)
        self._diagnosis = DiagnosisJob(store, stopping)
        self._retention = Retention(store, policy)
        self._stopping = stopping

    def ingest(self, follow_up: Callable[[Report], None]) -> Report:
        """Works off the spool.

        `follow_up` is handed the report so far: after the last batch that brought something, about once per second before.
        Returns counts (`segments, rows, tokens, bytes, duplicates, quarantined, bad_rows`) and how far behind the store is
        (`remaining` segments, `lag_seconds` of the oldest when the run began). Raises `StoreError`.
        """
        counts: Counter[str] = Counter()
        first = last = IngestReport()
        followed = time.monotonic()
        while not self._stopping.is_set():
            last = self._ingester.run_once(max_bytes=_ROUND_BYTES)
            first = last if not counts["batches"] else first
            counts.update({name: getattr(last, name) for name in _COUNTED}, batches=1)
            done = not last.remaining or not _advanced(last)
            if counts["segments"] and (done or time.monotonic() - followed >= _FOLLOW_EVERY):
                follow_up(_report(counts, first, last))
                followed = time.monotonic()
            if done:
                break
        return _report(counts, first, last)

    def join(self) -> Report:
        """Joins what waits for its other side. Raises `StoreError`."""
        return asdict(self._joiner.run_once())

    def compute_steps(self) -> Report:
        """Computes the steps that are dirty. Raises `StoreError`."""
        steps, remaining = 0, 1
        while remaining and not self._stopping.is_set():
            done = self._steps.run_once(max_steps=STEPS_PER_BATCH)
            steps, remaining = steps + done.steps, done.remaining
        return {"steps": steps, "remaining": remaining}

    def profile(self) -> Report:
        """Profiles the tokens of the steps that were computed since. Raises `StoreError`."""
        steps = tokens = 0
        while not self._stopping.is_set() and (done := self._profiles.run_once()).steps:
            steps, tokens = steps + done.steps, tokens + done.tokens
        return {"steps": steps, "tokens": tokens}

    def diagnose(self) -> Report:
        """Diagnoses the runs that got new steps. Raises `StoreError` and `QueryError`."""
        return asdict(self._diagnosis.run_once())

    def retain(self) -> Report:
        """Keeps raw tokens within their budget, and in few files. Raises `StoreError`."""
        return asdict(self._retention.run_once())


def _advanced(report: IngestReport) -> bool:
    return bool(report.segments or report.duplicates or report.quarantined)


def _report(counts: Counter[str], first: IngestReport, last: IngestReport) -> Report:
    return {
        **{name: counts[name] for name in _COUNTED},
        "remaining": last.remaining,
        "lag_seconds": first.lag_seconds,
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
