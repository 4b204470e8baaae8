"""What is compared of one run: its metrics over steps, tokens and time, the growth of its K3, and how it was set up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from logprobe.monitor.compare.places import Place
from logprobe.monitor.diagnosis.onset import Growth, judge
from logprobe.monitor.diagnosis.parity import courses
from logprobe.monitor.diagnosis.parity_facts import Facts, facts_of
from logprobe.monitor.diagnosis.parity_trajectories import Course

K3: Final = "backend.k3_kl"


@dataclass(frozen=True, slots=True)
class History:
    """One run, whole.

    Attributes:
        label: what people call it.
        steps: all of its steps, ascending.
        tokens: trained up to and including each step.
        seconds: since the end of the first step; steps without a time are left out.
        courses: by metric.
        growth: the verdict on K3 by the run's own past.
        facts: of its configuration.
    """

    label: str
    steps: tuple[int, ...] = ()
    tokens: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    courses: Mapping[str, Course] = field(default_factory=dict)
    growth: Growth = field(default_factory=lambda: Growth("no_data"))
    facts: Facts = field(default_factory=dict)

    def course(self, metric: str) -> Course:
        """Values of `metric`; empty when it was never measured."""
        return self.courses.get(metric, {})


def history(place: Place, metrics: Iterable[str]) -> History:
    """Reads one run. Raises `QueryError` as the source does."""
    rows = place.source.read("app_steps", run=place.run, since=-1).to_pylist()
    steps = tuple(row["step"] for row in rows)
    times = {row["step"]: row["time"] for row in rows if row["time"] is not None}
    begun = min(times.values(), default=None)
    found = courses(place.source, place.run, {*metrics, K3})
    changes = place.source.read("diagnosis_config_changes", run=place.run)["step"].to_pylist()
    known = found.get(K3, {})
    return History(
        label=place.label,
        steps=steps,
        tokens=dict(zip(steps, accumulate(float(row["tokens"] or 0) for row in rows), strict=True)),
        seconds={} if begun is None else {step: (time - begun).total_seconds() for step, time in times.items()},
        courses=found,
        growth=judge(steps, [known.get(step) for step in steps], config_changes=changes),
        facts=facts_of(place.source, place.run),
    )
