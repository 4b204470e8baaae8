"""The runs of a data directory, each with its liveness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from logprobe.app.surface.arguments import Arguments, home_path, require_run
from logprobe.monitor import queries
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.liveness import Liveness, Writer, judge
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, open_reader

if TYPE_CHECKING:
    from logprobe.monitor.compare import Place, Places


@dataclass(frozen=True)
class Run:
    """One line of the run selector."""

    name: str
    liveness: Liveness
    steps: int
    last_step: int | None
    tokens: int
    sequences: int
    revision: int
    last_record: datetime | None
    step_seconds: float | None = None  # median of the recent ones
    news: str | None = None  # becomes another when the run is diagnosed, an alert moves or its correction is acted upon
    judgement: Judgement = field(default_factory=Judgement)


def runs_of(rows: pa.Table, now: datetime) -> tuple[Run, ...]:
    """Return the rows of `app_runs` in their order, each with its state at time `now`."""
    return tuple(_run(row, now) for row in rows.to_pylist())


def _run(row: queries.AppRuns, now: datetime) -> Run:
    writers = [Writer(**writer) for writer in row["writers"]]
    liveness = judge(
        now=now,
        last_record=row["last_record_at"],
        median_step_seconds=row["step_seconds"],
        writers=writers,
        spooled_at=row.get("spooled_at"),  # a service of an earlier version does not say
        dated_ahead=row.get("dated_ahead") or 0.0,
    )
    # A service of an earlier version says nothing of a judgement.
    ended_after = row["steps"] if liveness.state.over else None
    judgement = Judgement.of(row.get("judgement"), now, ended_after=ended_after)
    return Run(
        name=row["run"],
        liveness=liveness,
        steps=row["steps"],
        last_step=row["last_step"],
        tokens=row["tokens"] or 0,
        sequences=row["sequences"] or 0,
        revision=row["revision"],
        last_record=row["last_record_at"],
        step_seconds=row["step_seconds"],
        news=row["news"],
        judgement=judgement,
    )


def run_of(source: Source, name: str, now: datetime) -> Run:
    """Return the run of this name. Raises `ConfigurationError` if the run does not exist."""
    rows = queries.app_runs(source)
    names: list[str] = rows["run"].to_pylist()
    require_run(name, names)
    return runs_of(rows.slice(names.index(name), 1), now)[0]


def find(places: Places, name: str) -> Place:
    """Return the run called `name`. Raises `ConfigurationError`, with near matches, if the run does not exist."""
    place = places.find(name)
    require_run(place.run, place.run_names())
    return place


@contextmanager
def run_reader(arguments: Arguments) -> Iterator[Reader]:
    """Yield a reader of the data directory. Raises `ConfigurationError` if the run of the command does not exist."""
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, queries.app_runs(reader)["run"].to_pylist())
        yield reader
