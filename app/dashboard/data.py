"""Data of the pages: typed queries, polars frames and small documents, shared by all sessions.

Values are cached by place (identity) and version (run, revision, news). A new version causes a new read. The last
value remains while the service does not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl

from logprobe.app.dashboard.figures import Mark
from logprobe.app.dashboard.panels import OVERVIEW, metrics_of
from logprobe.app.dashboard.thinning import Floats
from logprobe.app.dashboard.verdict import LatestDiagnosis, read_latest_diagnosis
from logprobe.app.runs import Run, runs_of
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError, LogprobeError, ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, connect

T = TypeVar("T")

_FRESH_SECONDS: Final = 1.0  # sessions asking within it share one read
_EVENTS_PACE: Final = 30  # times what the read took: learning rates are looked for in every scalar of every step
_KEPT: Final = 256  # values; the one asked for longest ago is forgotten first
_FRAMES: Final = 6  # of whole runs, about 1 MB per 1,000 steps each
_LOADS: Final = 4  # of sequences, some 10 MB each
_REST: Final = 5.0  # seconds between two computations of a value that costs much
METRICS: Final = metrics_of(OVERVIEW)
_NO_STEPS: Final = pl.DataFrame(schema={"step": pl.Int64, **dict.fromkeys(("tokens", "sequences", "time"), pl.Float64)})


def home() -> Path:
    """Return the data directory of this dashboard. Raises `ConfigurationError` if it is unknown."""
    path = os.environ.get("LOGPROBE_HOME")
    if not path:
        raise ConfigurationError("no home: start the dashboard with `logprobe up --home DIR` or set LOGPROBE_HOME")
    return Path(path)


@cache
def _reader(path: str) -> Reader:
    return connect(path)


def reader() -> Reader:
    """Return the reader that all sessions share. The reader reconnects to a restarted service. Raises
    `ServiceUnavailableError`.
    """
    return _reader(str(home()))


# --- Values that are kept ---


@dataclass
class _Entry:
    """A value with its version, or None before the first read; the duration of the read, and its time."""

    held: tuple[Hashable, Any] | None = None
    seconds: float = 0.0
    at: float = -1e9
    lock: threading.Lock = field(default_factory=threading.Lock)


class Kept:
    """Thread-safe cache of values by place and version. Sessions that request the same value wait for a single read."""

    def __init__(self, most: int = _KEPT, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold at most `most` values. `clock`: monotonic time in seconds."""
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, place: Hashable, version: Hashable, read: Callable[[], T], *, pace: float = 0.0) -> T:
        """Return the value of `versioned`."""
        return self.versioned(place, version, read, pace=pace)[1]

    def versioned(
        self, place: Hashable, version: Hashable, read: Callable[[], T], *, pace: float = 0.0
    ) -> tuple[Hashable, T]:
        """Return the result of `read` for this version of `place`, or a stale one, after its version.

        Args:
            place: identity of the value.
            version: version of the value. Another one makes it stale.
            read: function that reads the value. Its errors are raised, except that the last value is returned while
                the service does not answer.
            pace: minimum age of an expensive value, as a multiple of its duration (and at least 5 s). A stale value is
                returned immediately.
        """
        entry = self._entry(place)
        if self._good(entry, version, pace):
            return entry.held  # type: ignore[return-value]
        if not entry.lock.acquire(blocking=not (pace and entry.held)):
            return entry.held  # type: ignore[return-value]
        try:
            if not self._good(entry, version, pace):
                began = self._clock()
                with suppress(*([ServiceUnavailableError] if entry.held else [])):
                    entry.held = (version, read())
                    entry.at = self._clock()
                    entry.seconds = entry.at - began
        finally:
            entry.lock.release()
        return entry.held  # type: ignore[return-value]

    def _entry(self, place: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(place, _Entry())
            self._entries.move_to_end(place)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return entry

    def _good(self, entry: _Entry, version: Hashable, pace: float) -> bool:
        if entry.held is None:
            return False
        return entry.held[0] == version or (bool(pace) and self._clock() - entry.at < max(_REST, pace * entry.seconds))


_VALUES: Final = Kept()
_GROWN: Final = Kept(_FRAMES)
_LOADED: Final = Kept(_LOADS)


def kept(place: Hashable, version: Hashable, read: Callable[[], T], *, pace: float = 0.0) -> T:
    """Return `Kept.get` of the cache that all sessions of this process share."""
    return _VALUES.get((str(home()), place), version, read, pace=pace)


def versioned(place: Hashable, version: Hashable, read: Callable[[], T], *, pace: float = 0.0) -> tuple[Hashable, T]:
    """Return `Kept.versioned` of that cache."""
    return _VALUES.versioned((str(home()), place), version, read, pace=pace)


def loaded(place: Hashable, version: Hashable, read: Callable[[], T], *, pace: float = 0.0) -> tuple[Hashable, T]:
    """Return `Kept.versioned` of the cache for large values, which holds few of them."""
    return _LOADED.versioned((str(home()), place), version, read, pace=pace)


# --- The runs ---


@dataclass(frozen=True)
class Look:
    """The newest known state of the data directory.

    `away_since`: time since which the service does not answer, or None. `problem`: any other failure in a line, or "".
    `runs`: runs of the last successful read, or None before it.
    """

    runs: Mapping[str, Run] | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    away_since: datetime | None = None
    problem: str | None = None


_LOOK_LOCK: Final = threading.Lock()
_LOOKS: Final[dict[str, tuple[float, Look]]] = {}


def look() -> Look:
    """Return the state of the data directory, at most one second old. Errors of the service or the store are not
    raised.
    """
    place = str(home())
    with _LOOK_LOCK:
        at, last = _LOOKS.get(place, (-1e9, Look()))
        if time.monotonic() - at >= _FRESH_SECONDS:
            last = _looked(replace(last, problem=None))
            _LOOKS[place] = (time.monotonic(), last)
        return last


def _looked(last: Look) -> Look:
    try:
        runs = {run.name: run for run in runs_of(queries.app_runs(reader()), datetime.now(UTC))}
        return Look(runs, reader().status())
    except ServiceUnavailableError:
        # Its own word for it may name a path; the time since then is what a reader of the page can use.
        return replace(last, away_since=last.away_since or datetime.now(UTC))
    except LogprobeError as error:
        return replace(last, away_since=None, problem=str(error).partition("\n")[0])


# --- One run ---


def version_of(run: Run) -> tuple[str, int, str | None]:
    """Return a value that changes with each new record or result of the run."""
    return (run.name, run.revision, run.news)


def frame_of(run: Run, metrics: Sequence[str] = METRICS) -> pl.DataFrame:
    """Return one row per step, ascending, with a column per metric that has a value.

    Further columns are `step`, `tokens` (under the mask), `sequences` and `time` (seconds since the epoch). A metric is
    null if it is unknown or not finite.

    Only changed steps are read again. Raises `ServiceUnavailableError` before the first successful read, and
    `QueryError` as `Reader.read` does.
    """
    place = (str(home()), run.name, tuple(metrics))
    grown = _GROWN.get(place, None, lambda: Grown(run.name, tuple(metrics), reader))
    return grown.at(run.revision)


class Grown:
    """The frame of a run, with its revision."""

    def __init__(self, run: str, metrics: tuple[str, ...], source: Callable[[], Reader]) -> None:
        self._run, self._metrics, self._source = run, metrics, source
        self._lock = threading.Lock()
        self._asked, self._revision, self._frame = 0, 0, _NO_STEPS

    def at(self, revision: int) -> pl.DataFrame:
        """Return the frame as of `revision` or later. It may include records that arrive during the read."""
        with self._lock:
            recreated = revision < self._asked  # the store; its revisions start again
            if recreated or revision > self._revision:
                with suppress(*([ServiceUnavailableError] if len(self._frame) else [])):
                    self._read(0 if recreated else self._revision, _NO_STEPS if recreated else self._frame)
                    self._asked = revision
            return self._frame

    def _read(self, since: int, old: pl.DataFrame) -> None:
        # Steps first: a step recomputed between the two reads has newer points than its revision says, and is read
        # again.
        changed = {"run": self._run, "since": since}
        steps = pl.DataFrame(pl.from_arrow(queries.app_steps(self._source(), **changed)))
        points = pl.DataFrame(pl.from_arrow(queries.app_points(self._source(), **changed, metrics=list(self._metrics))))
        if steps.is_empty():
            return
        seconds = pl.col("time").cast(pl.Datetime("us", "UTC")).dt.epoch("us") / 1e6
        counts = pl.col("tokens", "sequences").cast(pl.Float64)
        rows = steps.select(pl.col("step").cast(pl.Int64), counts, seconds.alias("time"))
        finite = pl.when(pl.col("value").is_finite()).then(pl.col("value"))
        wide = points.with_columns(pl.col("step").cast(pl.Int64), finite.alias("value")).pivot(
            on="metric", index="step", values="value", aggregate_function="last"
        )
        new = rows.join(wide, on="step", how="left")
        kept = old.join(new.select("step"), on="step", how="anti")
        self._frame = pl.concat([kept, new], how="diagonal_relaxed").sort("step").rechunk()
        self._revision = max(since, int(steps["revision"].cast(pl.Int64).max() or 0))  # type: ignore[arg-type]


def column(frame: pl.DataFrame, name: str) -> Floats:
    """Return a column as float64, with NaN for missing values. A missing column is all NaN."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values: Floats = frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return values


def measured(frame: pl.DataFrame, name: str) -> bool:
    """Return true if any step has a value."""
    return name in frame.columns and frame[name].null_count() < len(frame)


def awaits(run: Run, frame: pl.DataFrame) -> bool:
    """Return true if the newest step is incomplete because engine records may still arrive.

    Return false before the first read, so that the page is drawn while the service does not answer.
    """
    coverage = column(frame, "backend.coverage")
    if not len(coverage) or not coverage[-1] < 1:
        return False
    place = ("on their way", run.name)
    with suppress(ServiceUnavailableError):
        rows = kept(place, run.revision, lambda: queries.diagnosis_steps_on_their_way(reader(), run=run.name))
        return frame["step"][-1] in rows["step"].to_pylist()
    return False


def diagnosis_of(run: Run) -> LatestDiagnosis | None:
    """Return the newest diagnosis, or None if there is none yet."""
    return kept(("diagnosis", run.name), run.news, lambda: read_latest_diagnosis(reader(), run.name))


# --- What happened to a run besides training ---


def events_of(run: Run) -> tuple[Mark, ...]:
    """Return the events by step: weights, settings, restarts, learning rates, alerts and corrections."""
    return kept(("events", run.name), version_of(run), lambda: events(reader(), run.name), pace=_EVENTS_PACE)


def events(source: Source, run: str) -> tuple[Mark, ...]:
    """Read the events of a run. Raises the errors of `Reader.read`."""
    happened = queries.app_events(source, run=run).to_pylist()
    rates = queries.app_learning_rates(source, run=run).to_pylist()
    told = queries.app_marks(source, run=run).to_pylist()
    rows: list[Mapping[str, Any]] = [*happened, *({"kind": "learning_rate", **row} for row in rates), *told]
    return tuple(Mark(row["kind"], row["step"], _event(row)) for row in rows if row["step"] is not None)


def _event(row: Mapping[str, Any]) -> str:
    kind, label = row["kind"], row["label"]
    if kind == "weights":
        parts = [f"weights {label}" if label is not None else "weights, version unknown"]
        parts += [] if row["pause_mode"] is None else [f"pause: {row['pause_mode']}"]
        return ", ".join([*parts, *(["prefix cache kept"] if row["cache_cleared"] is False else [])])
    if kind == "learning_rate":
        until = f", until step {row['until']:,}" if row["until"] > row["step"] else ""
        return f"{label} {number(row['before'])} → {number(row['after'])}{until}"
    if label == "attempt":
        return "trained again from here on: the newest attempt counts"
    said = {"config": f"{label} changed", "restart": f"{label} started again"}
    return said.get(kind, f"{kind} {label}")
