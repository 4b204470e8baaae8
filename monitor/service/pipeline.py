"""Work of the jobs for the service and `up --once`: ingest from spool to store, metrics of steps, and diagnosis.

With a backlog, ingest works batch by batch, and the later stages run about once per second.

Removal by age waits for a `SteadyClock`, since a newly set wall clock may be wrong by years.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, cast

from logprobe.collectors.clock import TIME, Time
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import SECONDS
from logprobe.monitor.judging.job import PACES, DiagnosisStage
from logprobe.monitor.live.delays import Delays
from logprobe.monitor.live.ingest import BATCH_BYTES, Ingester, IngestReport
from logprobe.monitor.live.scan import scan
from logprobe.monitor.service.jobs import INCOMPLETE, Progress
from logprobe.monitor.service.status import Backlog, Ingested
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.freezing import Freezer, StoreBudget
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

_ROUND_BYTES: Final = 4 * BATCH_BYTES  # several batches in a row: the next is read while one is written
_FOLLOW_EVERY: Final = 1.0  # seconds, while a backlog is worked off
LOGGER: Final = logging.getLogger("logprobe.store")
_STEADY_SECONDS: Final = 3600.0  # by then whoever sets clocks has set this one
_STEP_SECONDS: Final = 60.0  # slewing is slower, and a suspended machine starts over, which costs nothing


class Pipeline:
    """Work of a store's owner. One thread at a time may call each method. Different methods may run concurrently."""

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        policy: RetentionPolicy | None = None,
        budget: StoreBudget | None = None,
        *,
        paced: bool = False,
        armed: Callable[[str], bool] = lambda _run: False,
    ) -> None:
        """Set up the pipeline. `stopping`: event that ends work after the current batch. `policy`, `budget`: limits of
        raw tokens and of the store, None for the defaults.

        `paced`: true to limit diagnoses to their share of a core. `armed`: function that returns whether a correction
        of a run may be switched.
        """
        self._store = store
        self._ingester = Ingester(store)
        self._profiles = ProfileJob(store)
        stage = DiagnosisStage(store, armed=armed, newest=self._ingester.newest)
        self._diagnosis = Turns(stage, stopping, paces=PACES if paced else None)
        self._retention = Retention(store, policy)
        self.clock = SteadyClock(store.time)
        self._freezer = Freezer(store, budget, stopping)
        self._stopping = stopping

    @property
    def delays(self) -> Delays:
        """Presently unreadable files in the spool."""
        return self._ingester.delays

    def ingest(self, follow_up: Callable[[Ingested], None], beat: Callable[[], None] = lambda: None) -> Ingested:
        """Ingest the spool.

        `follow_up`: called with the present report about once per second and after the last non-empty batch. `beat`:
        called after every batch. Raises `StoreError`.
        """
        report: IngestReport | None = None
        followed = self._store.time.monotonic()
        while not self._stopping.is_set():
            last = self._ingester.run_once(max_bytes=_ROUND_BYTES, beat=beat)
            report = last if report is None else report.then(last)
            done = not last.remaining or not (last.segments or last.duplicates or last.quarantined)
            if report.segments and (done or self._store.time.monotonic() - followed >= _FOLLOW_EVERY):
                follow_up(_ingested(report))
                followed = self._store.time.monotonic()
            if done:
                break
        return _ingested(report or IngestReport())

    def profile(self, beat: Callable[[], None] = lambda: None) -> Progress:
        """Profile the tokens of newly computed steps. `beat`: called after every batch. Raises `StoreError`."""
        steps = tokens = 0
        problem = None
        while not self._stopping.is_set():
            done = self._profiles.run_once()
            steps, tokens, problem = steps + done.steps, tokens + done.tokens, done.problem
            beat()
            if not done.steps:
                break
        return _judged({"steps": steps, "tokens": tokens, "problem": problem})

    def diagnose(self) -> Progress:
        """Judge the runs with new steps. Raises `StoreError` and `QueryError`."""
        return self._diagnosis.run_once()

    def retain(self) -> Progress:
        """Merge ingested segments into files, and keep tokens within their budget. Raises `StoreError`."""
        report = asdict(self._retention.run_once(by_age=self.clock.is_steady()))
        self._store.archive.forget_idle()
        return report | ({INCOMPLETE: True} if report["problems"] else {})

    def freeze(self) -> Progress:
        """Keep the store within its budget. Raises `StoreError` and `QueryError`."""
        return asdict(self._freezer.run_once())


def _judged(report: Progress) -> Progress:
    """Mark a report with a problem as incomplete, see `jobs.INCOMPLETE`. A failing run makes the job unsuccessful
    without delaying other runs.
    """
    if report["problem"] is None:
        return {name: value for name, value in report.items() if name != "problem"}
    return {**report, INCOMPLETE: True}


def _ingested(report: IngestReport) -> Ingested:
    return cast(Ingested, asdict(report))


def backlog(home: Home, known: Callable[[str], bool] = lambda _: False) -> Backlog:
    """Return the segments waiting in the spool. `known`: function that returns whether the file at a path was
    ingested.
    """
    now = home.now()
    content = scan(home, now=now, known=known)
    waiting = content.segments
    ages = [(segment.where.run, max(0.0, now - segment.modified)) for segment in waiting]  # the oldest first
    return {
        "segments": len(waiting),
        "bytes": sum(segment.nbytes for segment in waiting),
        "oldest_seconds": max(0.0, now - waiting[0].modified) if waiting else None,
        "waiting_seconds": dict(reversed(ages)),
        "newest_seconds": dict(ages),
        "unreadable": len(content.refused),
    }


def note_spooled(store: Store, waiting: Backlog, now: datetime) -> int:
    """Store the runs whose records have waited too long, for readers of a judgement. Return their number. Raises
    `StoreError`.
    """
    rows = [
        (run, now - timedelta(seconds=oldest), now - timedelta(seconds=waiting["newest_seconds"][run]))
        for run, oldest in waiting["waiting_seconds"].items()
        if oldest > SECONDS
    ]
    if not rows and not store.query("SELECT 1 FROM spooled LIMIT 1").num_rows:
        return 0
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM spooled")
        if rows:
            cursor.executemany("INSERT INTO spooled VALUES (?, ?, ?)", rows)
            cursor.execute("DELETE FROM spooled WHERE run NOT IN (SELECT run FROM segments)")  # deleted, or not here
        return int(cursor.execute("SELECT count(*) FROM spooled").fetchall()[0][0])


class SteadyClock:
    """Comparison of the wall clock with the monotonic clock since its creation. Only one thread at a time may use
    it.
    """

    def __init__(self, time: Time = TIME) -> None:
        self._time = time
        self._start_over()

    def _start_over(self) -> None:
        self._since = self._time.monotonic()
        self._offset = self._time.wall() - self._since

    def is_steady(self) -> bool:
        """Return whether an hour has passed without a jump of the clock. Call this more than once per hour."""
        step = self._time.wall() - self._time.monotonic() - self._offset
        if abs(step) > _STEP_SECONDS:
            LOGGER.warning("the clock was set by %+.0f s: nothing is removed by its age for the next hour", step)
            self._start_over()
        return self._time.monotonic() - self._since >= _STEADY_SECONDS
