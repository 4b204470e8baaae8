"""What the dashboard reads, through a `Reader`, and what it remembers of it.

One `Feed` serves all sessions of the app: sessions that look at the same run share its columns and one read per second.
When the service does not answer the last values stay, with the time since they became old.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from logprobe.app.dashboard.charts.panels import OVERVIEW, metrics_of
from logprobe.app.dashboard.data.diagnosis import LatestDiagnosis, read_latest_diagnosis
from logprobe.app.dashboard.data.events import Event, events_of, marks_of, rates_of
from logprobe.app.dashboard.data.series import RunSeries, merge
from logprobe.app.runs import Run, runs_of
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.reader import Reader

T = TypeVar("T")

_FRESH_SECONDS: Final = 1.0  # sessions asking within it share one read
_RATES_SECONDS: Final = 30.0  # reading learning rates reads every scalar of every step
_AT_ONCE: Final = 3  # reads: a look waits for the longest of them, not for their sum
METRICS: Final = metrics_of(OVERVIEW)
_COVERAGE: Final = "backend.coverage"


@dataclass(frozen=True)
class RunView:
    """Everything the pages show of one run. `news`: of the run when `marks` and `diagnosis` were read.

    `judgement`: how it stands now. `awaited`: whether engine records of its newest step may still arrive.

    `events` and `rates` (movements of learning rates) are at least as new as the revisions `events_seen` and
    `rates_seen` of the run.
    """

    series: RunSeries
    events: tuple[Event, ...] = ()
    events_seen: int = 0
    rates: tuple[Event, ...] = ()
    rates_seen: int = 0
    medians: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[Event, ...] = ()
    diagnosis: LatestDiagnosis | None = None
    news: str | None = None
    awaited: bool = False
    judgement: Judgement = field(default_factory=Judgement)

    @property
    def version(self) -> str:
        """Another one whenever anything of it is."""
        return (
            f"{self.series.run}@{self.series.revision}/{self.events_seen}/{self.rates_seen} {self.news} {self.awaited}"
            f" {self.judgement.severity} {self.judgement.overdue}"
        )

    @property
    def marked(self) -> tuple[Event, ...]:
        """All that is marked on a step chart."""
        return (*self.events, *self.rates, *self.marks)


@dataclass(frozen=True)
class Snapshot:
    """The outcome of one look: the newest known state, and what was wrong with getting it.

    `away_since` is set while the service does not answer, `problem` (one line) for whatever else failed; what is shown
    beside them is the last that was read.
    """

    runs: tuple[Run, ...] | None = None  # None: never read yet
    view: RunView | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    away_since: datetime | None = None
    problem: str | None = None

    def run(self, name: str | None) -> Run | None:
        """The run of that name."""
        return next((run for run in self.runs or () if run.name == name), None)


class Feed:
    """Reads a home for all sessions. Thread-safe; never raises for a service that is away or a query that fails."""

    def __init__(
        self, connect: Callable[[], Reader], *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """`connect` is called at the first look and again until it succeeds."""
        self._connect = connect
        self._now = now
        self._reader: Reader | None = None
        self._lock = threading.Lock()
        self._snapshots: dict[str | None, tuple[float, Snapshot]] = {}
        self._home = (-math.inf, Snapshot())
        self._views: dict[str, RunView] = {}
        self._rates_read: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="feed")
        self._last = Snapshot()

    def snapshot(self, name: str | None) -> Snapshot:
        """The runs, and everything about the run called `name` where there is one."""
        with self._lock:
            asked, snapshot = self._snapshots.get(name, (-math.inf, Snapshot()))
            if time.monotonic() - asked >= _FRESH_SECONDS:
                snapshot = self._look(name)
                self._snapshots[name] = (time.monotonic(), snapshot)
            return snapshot

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """The rows of one stored query, as they are now. Raises as `Reader.read` does."""
        with self._lock:
            if self._reader is None:
                self._reader = self._connect()
            reader = self._reader
        return reader.read(name, **params)

    def _look(self, name: str | None) -> Snapshot:
        kept = replace(self._last, view=self._views.get(name or ""), problem=None)
        try:
            snapshot = self._snapshot_of(name)
        except ServiceUnavailableError:
            # The service's own word for it may name a path; the time since then is what a reader of the page can use.
            self._last = replace(kept, away_since=kept.away_since or self._now())
            return self._last
        except LogprobeError as error:
            return replace(kept, away_since=None, problem=str(error).partition("\n")[0])
        self._last = snapshot
        return snapshot

    def _snapshot_of(self, name: str | None) -> Snapshot:
        if self._reader is None:
            self._reader = self._connect()
        snapshot = self._runs_and_status(self._reader)
        run = snapshot.run(name)
        return snapshot if run is None else replace(snapshot, view=self._view_of(self._reader, run))

    def _runs_and_status(self, reader: Reader) -> Snapshot:
        """The runs, and what the service says of itself: one read, whichever runs are looked at."""
        asked, snapshot = self._home
        if time.monotonic() - asked >= _FRESH_SECONDS:
            status = self._begin(reader, reader.status)
            runs = runs_of(queries.app_runs(reader), self._now())
            snapshot = Snapshot(runs=runs, status=status.result())
            self._home = (time.monotonic(), snapshot)
        return snapshot

    def _view_of(self, reader: Reader, run: Run) -> RunView:
        new = RunView(RunSeries(run.name, read=frozenset(METRICS)))
        view = self._views.get(run.name, new)
        if run.revision < view.series.revision:  # the store was recreated
            view = new
            self._rates_read.pop(run.name, None)
        if run.revision > view.series.revision:
            view = self._with_new_steps(reader, view, run.revision)
        elif view.events_seen < run.revision:  # a step was computed while they were read
            view = replace(view, events=events_of(queries.app_events(reader, run=run.name)), events_seen=run.revision)
        view = self._with_learning_rates(reader, view)
        if (awaited := _awaits(reader, view.series)) != view.awaited:
            view = replace(view, awaited=awaited)
        if run.news != view.news:
            view = self._with_diagnosis(reader, view, run.news)
        if (run.judgement, run.judgement.overdue) != (view.judgement, view.judgement.overdue):
            view = replace(view, judgement=run.judgement)
        self._views[run.name] = view
        return view

    def _with_new_steps(self, reader: Reader, view: RunView, revision: int) -> RunView:
        """With what is new in a run that has come to `revision`, or further by now."""
        events = self._begin(reader, partial(queries.app_events, reader, run=view.series.run))
        # Steps first: a step recomputed between the two reads has newer points than its revision says, and is read
        # again.
        changed = {"run": view.series.run, "since": view.series.revision}
        summaries = queries.app_steps(reader, **changed)
        points = queries.app_points(reader, **changed, metrics=list(METRICS))
        series, happened = merge(view.series, summaries, points), events_of(events.result())
        return replace(view, series=series, events=happened, events_seen=revision, medians=usual(series))

    def _with_learning_rates(self, reader: Reader, view: RunView) -> RunView:
        """With the learning rates as they are now; as they were, when they were read a moment ago."""
        run, seen = view.series.run, view.series.revision
        if seen == view.rates_seen or time.monotonic() - self._rates_read.get(run, -math.inf) < _RATES_SECONDS:
            return view
        rates = rates_of(queries.app_learning_rates(reader, run=run))
        self._rates_read[run] = time.monotonic()
        return replace(view, rates=rates, rates_seen=seen)

    def _with_diagnosis(self, reader: Reader, view: RunView, news: str | None) -> RunView:
        marks = self._begin(reader, partial(queries.app_marks, reader, run=view.series.run))
        diagnosis = read_latest_diagnosis(reader, view.series)
        return replace(view, diagnosis=diagnosis, marks=marks_of(marks.result()), news=news)

    def _begin(self, reader: Reader, read: Callable[[], T]) -> Future[T]:
        """Begins a read and continues. One of a file is made at once, in this thread, where Ctrl-C ends it."""
        if reader.source != "file":
            return self._pool.submit(read)
        done: Future[T] = Future()
        done.set_result(read())
        return done


def _awaits(reader: Reader, series: RunSeries) -> bool:
    """Whether the newest step is incomplete because engine records may still arrive; asks only where it is
    incomplete."""
    if not len(series.steps) or not series.column(_COVERAGE)[-1] < 1:
        return False
    newest = int(series.steps[-1])
    return newest in queries.app_steps_on_their_way(reader, run=series.run)["step"].to_pylist()


def usual(series: RunSeries) -> dict[str, float]:
    """What is usual for a run so far, by metric: the median over all steps but the newest one that has a value."""
    measured = {metric: column[np.isfinite(column)] for metric, column in series.values.items()}
    return {metric: float(np.median(values[:-1])) for metric, values in measured.items() if len(values) > 1}
