"""History of one run for a comparison: metrics over steps, tokens and time, growth of K3, and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.compare.places import Place
from logprobe.monitor.judging.gather import growth_of
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.judgement import Growth
from logprobe.monitor.judging.parity.facts import Facts, facts_of
from logprobe.monitor.judging.parity.judging import trends
from logprobe.monitor.judging.parity.trajectories import Trend


@dataclass(frozen=True, slots=True)
class History:
    """History of a whole run.

    Attributes:
        label: name shown to users.
        steps: all of its steps, ascending.
        tokens: number of tokens trained up to and including each step.
        seconds: time since the end of the first step, without steps of unknown time.
        begun: end of the first step in UTC, or None if unknown.
        trends: values by step for each metric.
        growth: verdict on K3 against the run's own past.
        facts: facts of its configuration.
    """

    label: str
    steps: tuple[int, ...] = ()
    tokens: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    begun: datetime | None = None
    trends: Mapping[str, Trend] = field(default_factory=dict)
    growth: Growth = field(default_factory=lambda: Growth("no_data"))
    facts: Facts = field(default_factory=dict)

    def at(self, step: int | None) -> datetime | None:
        """Return the time at which a step ended, in UTC, or None if it is unknown."""
        seconds = None if step is None else self.seconds.get(step)
        return None if seconds is None or self.begun is None else self.begun + timedelta(seconds=seconds)

    def trend(self, metric: str) -> Trend:
        """Return the values of `metric`, empty if it was never measured."""
        return self.trends.get(metric, {})


def history(place: Place, metrics: Iterable[str]) -> History:
    """Read one run. Raises `QueryError` as the source does."""
    rows = queries.app_steps(place.source, run=place.run, since=-1)
    steps = tuple(rows["step"].to_pylist())
    by_metric = trends(place.source, place.run, {*metrics, K3})
    ends = _ends(steps, rows["time"])
    begun = min(ends.values(), default=None)
    gap = by_metric.get(K3, {})
    return History(
        label=place.label,
        steps=steps,
        tokens=dict(zip(steps, accumulate(float(tokens or 0) for tokens in rows["tokens"].to_pylist()), strict=True)),
        seconds={step: (end - begun) / 1e6 for step, end in ends.items()} if begun is not None else {},
        begun=None if begun is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=begun),
        trends=by_metric,
        growth=growth_of(place.source, place.run, steps, map(gap.get, steps)),
        facts=facts_of(place.source, place.run),
    )


def _ends(steps: Iterable[int], times: pa.ChunkedArray) -> dict[int, int]:
    """Return the microseconds since 1970 of each step with a known time. Conversion to datetimes would make pyarrow
    load pandas.
    """
    ends = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist()
    return {step: end for step, end in zip(steps, ends, strict=True) if end is not None}
