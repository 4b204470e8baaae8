"""Runs against a baseline: verdict per metric, onsets, and what was set up differently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from logprobe.monitor.compare.axes import Axis, cell_width, placed, positions
from logprobe.monitor.compare.history import History, history
from logprobe.monitor.compare.places import Place
from logprobe.monitor.compare.verdicts import METRICS, MetricVerdict, judge_metric
from logprobe.monitor.diagnosis.growth.rule import K3
from logprobe.monitor.diagnosis.parity import recipe as parity_recipe
from logprobe.monitor.diagnosis.parity.judging import Setting, differing
from logprobe.monitor.diagnosis.parity.recipe import Recipe
from logprobe.monitor.diagnosis.parity.trajectories import Trend
from logprobe.monitor.diagnosis.result import Growth

_MISSING: Final = 3.0  # usual distances between steps: from there on some are missing


@dataclass(frozen=True, slots=True)
class Pairing:
    """One run against the baseline.

    Attributes:
        run: its label.
        steps: how many it has.
        common: how many cells of the axis both runs reach.
        beyond: how many of its steps come after the last of these: no verdict is about them.
        leaves_at: where on the axis, in its unit, K3 leaves the baseline's band; None: it does not, or not known.
        growth: its own K3 over its own past: verdict, onset, doubling.
        metrics: in the order asked for.
        relevant: settings that parity depends on and that differ.
        differences: other differing settings.
    """

    run: str
    steps: int
    common: int
    leaves_at: float | None
    growth: Growth
    metrics: tuple[MetricVerdict, ...]
    relevant: tuple[Setting, ...]
    differences: tuple[Setting, ...]
    beyond: int = 0

    def of(self, verdict: str) -> tuple[MetricVerdict, ...]:
        """Metrics with that verdict."""
        return tuple(metric for metric in self.metrics if metric.verdict == verdict)

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs against one baseline. `width`: of a cell of the axis, in its unit, per run; `histories`: the baseline's first."""

    baseline: str
    axis: Axis
    pairings: tuple[Pairing, ...]
    histories: tuple[History, ...]
    widths: tuple[float, ...]

    def document(self) -> dict[str, Any]:
        """JSON-ready form: what ``logprobe compare --json`` prints."""
        baseline = self.histories[0]
        return {
            "baseline": {"run": self.baseline, "steps": len(baseline.steps), "growth": asdict(baseline.growth)},
            "align": self.axis,
            "runs": [
                {**pairing.document(), "cell": width} for pairing, width in zip(self.pairings, self.widths, strict=True)
            ],
        }

    def overlay(self, metric: str) -> dict[str, list[tuple[float, float]]]:
        """Points (axis, value) of each run that has `metric`, by label, the baseline first; NaN where steps are missing."""
        lines = {run.label: _points(run, metric, self.axis) for run in self.histories}
        return {label: points for label, points in lines.items() if points}


def compare(
    runs: Sequence[Place],
    baseline: Place,
    *,
    axis: Axis = "step",
    metrics: Sequence[str] = METRICS,
    recipe: Recipe | None = None,
) -> Comparison:
    """Compares runs with a baseline.

    Args:
        runs: at least one.
        baseline: what they are compared with.
        axis: what their steps are aligned by.
        metrics: keys of the catalog.
        recipe: bands, and settings that matter; None: the shipped parity recipe.

    Raises:
        ConfigurationError: no such metric, or a run that cannot be aligned on `axis`.
        QueryError: a store refused; see `Reader.read`.
    """
    reference, *others = [history(place, metrics) for place in (baseline, *runs)]
    return compared(others, reference, axis=axis, metrics=metrics, recipe=recipe)


def compared(
    others: Sequence[History],
    reference: History,
    *,
    axis: Axis = "step",
    metrics: Sequence[str] = METRICS,
    recipe: Recipe | None = None,
) -> Comparison:
    """The same, of runs that have been read. Pure; raises `ConfigurationError` as `compare` does."""
    recipe = recipe or parity_recipe.shipped()
    widths = tuple(_width(run, reference, axis) for run in others)
    pairings = tuple(
        pair(run, reference, axis=axis, width=width, metrics=metrics, recipe=recipe)
        for run, width in zip(others, widths, strict=True)
    )
    return Comparison(reference.label, axis, pairings, (reference, *others), widths)


def pair(
    run: History, reference: History, *, axis: Axis, width: float, metrics: Iterable[str], recipe: Recipe
) -> Pairing:
    """One run against the baseline. Pure; raises as `compare` does."""
    at, reference_at = positions(run, axis), positions(reference, axis)

    def both(metric: str) -> tuple[Trend, Trend]:
        return placed(run.trend(metric), at, width), placed(reference.trend(metric), reference_at, width)

    verdicts = tuple(judge_metric(metric, *both(metric), recipe=recipe, width=width, axis=axis) for metric in metrics)
    gap = next((item for item in verdicts if item.metric == K3), None) or judge_metric(K3, *both(K3), recipe=recipe)
    left = gap.trajectory.leaves_step
    relevant, differences = differing(recipe, run.facts, reference.facts)
    reached = [set(placed(dict.fromkeys(place, 0.0), place, width)) for place in (at, reference_at)]
    common = reached[0] & reached[1]
    return Pairing(
        run=run.label,
        steps=len(run.steps),
        common=len(common),
        leaves_at=None if left is None else left * width,
        growth=run.growth,
        metrics=verdicts,
        relevant=relevant,
        differences=differences,
        beyond=sum(place / width >= max(common) + 1 for place in at.values()) if common else 0,
    )


def _width(run: History, reference: History, axis: Axis) -> float:
    """Steps are counted as they are; tokens and seconds fall into cells."""
    if axis in {"step", "onset"}:
        return 1.0
    return cell_width(positions(run, axis), positions(reference, axis))


def _points(run: History, metric: str, axis: Axis) -> list[tuple[float, float]]:
    at: Mapping[int, float] = positions(run, axis)
    known = [(step, value) for step, value in sorted(run.trend(metric).items()) if step in at]
    usual = _MISSING * median(later - step for (step, _), (later, _) in pairwise(known)) if len(known) > 1 else 0.0
    points: list[tuple[float, float]] = []
    for place, (step, value) in enumerate(known):
        if place and step - known[place - 1][0] > usual:
            points.append((at[step], math.nan))
        points.append((at[step], value))
    return points
