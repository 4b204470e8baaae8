"""Comparison of runs with a baseline: verdict per metric, onsets, and differing settings.

The comparison uses the badness of a value by the catalog's direction. For a metric with target 0 or 1, badness is the
distance from the target. A run differs if its level over all common steps differs (`level`), or if it left the
baseline's band without returning (`follow`).

An axis is steps, tokens trained, time, or steps since growth began. Steps of two runs rarely end at the same token or
second. These axes are divided into cells as wide as the larger of the two runs' median steps. A cell has the mean of
its values. Cells that only one run reaches are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final, Literal

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare.history import History, history
from logprobe.monitor.compare.level import Level, level
from logprobe.monitor.compare.places import Place
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.judgement import Growth
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.judging.parity.judging import Setting, differing
from logprobe.monitor.judging.parity.recipe import Band, Recipe
from logprobe.monitor.judging.parity.trajectories import Trajectory, Trend, follow
from logprobe.monitor.metrics.catalog import metric as declared
from logprobe.monitor.metrics.definition import Metric, Worse
from logprobe.monitor.number_text import short

_MISSING: Final = 3.0  # usual distances between steps: from there on some are missing
Verdict = Literal["same", "better", "worse", "differs", "unknown"]

# What a comparison looks at unless told otherwise: the mismatch, what the objective sees of it, and what training does
# with it.
METRICS: Final = (
    "backend.k3_kl", "backend.logprob_abs_diff_mean", "backend.ratio_mean", "backend.ess", "backend.prob_pearson",
    "total.clamp_log_ratio_new_old_indicator", "total.kl_new_old", "update.k3_kl", "token_mismatch_frac",
    "weight_lag_mean", "entropy", "response_length", "reward",
)  # fmt: skip

_NO_MERIT: Final = frozenset(
    {"entropy", "entropy_sampled"}
)  # less of it is a warning, more of it is not better by itself
_TARGETS: Final[Mapping[Worse, float]] = {"away from 0": 0.0, "away from 1": 1.0}
# What matters of metrics that no recipe has a band for. Those of a pair span decades: a factor, and what is smaller
# than the floor is rounding. Others: a part of the baseline's largest level.
_FACTOR: Final = 1.5
_FLOOR: Final = 1e-3
_SQUARED_FLOOR: Final = 1e-5  # of metrics that grow with the square of the log-ratio
_FRACTION: Final = 0.1
_THOUSAND, _MILLION = 1e3, 1e6
_LAST: Final = 10  # the last tenth of a run is its end
Axis = Literal["step", "tokens", "time", "onset"]

AXES: Final[Mapping[Axis, str]] = {
    "step": "step",
    "tokens": "tokens trained",
    "time": "seconds since the first step",
    "onset": "steps since growth began",
}


@dataclass(frozen=True, slots=True)
class Pairing:
    """One run against the baseline.

    Attributes:
        run: label of the run.
        steps: number of its steps.
        common: number of axis cells that both runs reach.
        beyond: number of its steps after the last common cell, which no verdict covers.
        leaves_at: position on the axis at which K3 leaves the baseline's band, or None.
        growth: growth of its K3 against its own past, with verdict, onset and doubling.
        metrics: verdicts in the requested order.
        relevant: differing settings that affect parity.
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
        """Return the metrics with that verdict."""
        return tuple(metric for metric in self.metrics if metric.verdict == verdict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of all runs with one baseline. `widths`: cell width of the axis per run. `histories`: histories, the
    baseline's first.
    """

    baseline: str
    axis: Axis
    pairings: tuple[Pairing, ...]
    histories: tuple[History, ...]
    widths: tuple[float, ...]

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form, the output of ``logprobe compare --json``."""
        baseline = self.histories[0]
        return {
            "baseline": {"run": self.baseline, "steps": len(baseline.steps), "growth": asdict(baseline.growth)},
            "align": self.axis,
            "runs": [
                {**asdict(pairing), "cell": width} for pairing, width in zip(self.pairings, self.widths, strict=True)
            ],
        }

    def overlay(self, metric: str) -> dict[str, list[tuple[float, float]]]:
        """Return the points (axis, value) of each run that has `metric`, by label, the baseline first, NaN for missing
        steps."""
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
    """Compare runs with a baseline.

    Args:
        runs: at least one run.
        baseline: reference run.
        axis: axis that aligns the runs' steps.
        metrics: keys of the catalog.
        recipe: bands and relevant settings, or None for the shipped parity recipe.

    Raises:
        ConfigurationError: an unknown metric, or a run that cannot be aligned on `axis`.
        QueryError: a store refused, see `Reader.read`.
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
    """Compare runs that were read before. Pure. Raises `ConfigurationError` as `compare` does."""
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
    """Compare one run with the baseline. Pure. Raises as `compare` does."""
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
    """Return the cell width of an axis: 1 step, or the larger median step in tokens or seconds."""
    if axis in {"step", "onset"}:
        return 1.0
    return cell_width(positions(run, axis), positions(reference, axis))


def _points(run: History, metric: str, axis: Axis) -> list[tuple[float, float]]:
    at: Mapping[int, float] = positions(run, axis)
    pairs = [(step, value) for step, value in sorted(run.trend(metric).items()) if step in at]
    usual = _MISSING * median(later - step for (step, _), (later, _) in pairwise(pairs)) if len(pairs) > 1 else 0.0
    points: list[tuple[float, float]] = []
    for index, (step, value) in enumerate(pairs):
        if index and step - pairs[index - 1][0] > usual:
            points.append((at[step], math.nan))
        points.append((at[step], value))
    return points


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One metric of a run against the baseline's.

    Attributes:
        metric: key in the catalog.
        label: name shown to users.
        unit: unit of the metric.
        verdict: result of the comparison. "differs" if the catalog rates neither direction as worse, or if entropy is
            higher. Unknown with too few common steps.
        reason: explanation of the verdict.
        level: both levels over the common axis, or None if unknown.
        ratio: run divided by baseline, or None if unknown or the baseline is 0.
        area: run minus baseline, summed over the common axis in its unit, or None without common cells.
        final: median of the run over the last tenth of the common axis, or None without common cells.
        reference_final: the same median of the baseline.
        trajectory: values per block, with the baseline's band.
    """

    metric: str
    label: str
    unit: str
    verdict: Verdict
    reason: str
    level: Level | None
    ratio: float | None
    area: float | None
    final: float | None
    reference_final: float | None
    trajectory: Trajectory


def judge_metric(
    key: str, run: Trend, reference: Trend, *, recipe: Recipe, width: float = 1.0, axis: Axis = "step"
) -> MetricVerdict:
    """Return the verdict on one metric.

    Args:
        key: key of the metric in the catalog.
        run: values of the run by cell of the common axis.
        reference: values of the baseline by cell.
        recipe: bands of some metrics. The band of the others is a tenth of the baseline's level.
        width: width of a cell in the axis' unit.
        axis: name of the axis, for texts.

    Raises:
        ConfigurationError: unknown metric.
    """
    metric, band = declared(key), _band(key, recipe)
    ours, theirs = (badness(trend, metric) for trend in (run, reference))
    judged, trajectory = level(band, ours, theirs), follow(band, ours, theirs)
    side = _side(judged, trajectory)
    verdict = "unknown" if judged is None else _verdict(metric, side)
    common = run.keys() & reference.keys()
    return MetricVerdict(
        metric=key,
        label=band.label,
        unit=metric.unit,
        verdict=verdict,
        reason=_reason(band, judged, trajectory, width, axis),
        level=judged,
        ratio=judged.value / judged.reference if judged is not None and judged.reference else None,
        area=width * sum(run[cell] - reference[cell] for cell in common) if common else None,
        final=_final(run, common),
        reference_final=_final(reference, common),
        trajectory=trajectory,
    )


def badness(trend: Trend, metric: Metric) -> Trend:
    """Return the distances from the metric's target. Values of a metric that should be minimal or maximal stay
    unchanged.
    """
    target = _target(metric)
    return trend if target is None else {cell: abs(value - target) for cell, value in trend.items()}


def _target(metric: Metric) -> float | None:
    """Return the target 0 or 1, if any. Shares and correlations that should be high have the target 1."""
    if metric.worse == "lower" and (metric.unit == "fraction" or metric.key == "prob_pearson"):
        return 1.0
    return _TARGETS.get(metric.worse)


def _band(key: str, recipe: Recipe) -> Band:
    """Return the recipe's band. It is two-sided, since a run may also be better."""
    for band in recipe.trajectories:
        if band.metric == key:
            return band.model_copy(update={"side": "both"})
    metric = declared(key)
    pair, dot, _ = key.partition(".")
    target = _target(metric)
    label = f"{metric.label} ({pair})" if dot else metric.label
    label = label if target is None else f"{label}, distance from {target:g}"
    if dot and (metric.worse == "higher" or target is not None):
        floor = _SQUARED_FLOOR if "kl" in metric.key or "chi2" in metric.key else _FLOOR
        return Band(metric=key, label=label, factor=_FACTOR, floor=floor)
    return Band(metric=key, label=label, fraction=_FRACTION)


def _side(judged: Level | None, trajectory: Trajectory) -> int:
    """Return the side of the run, by its level or else by a departure that has not ended."""
    if judged is not None and judged.side:
        return judged.side
    if trajectory.verdict == "leaves" and trajectory.back_step is None:
        return 1 if trajectory.side == "above" else -1
    return 0


def _verdict(metric: Metric, side: int) -> Verdict:
    if not side:
        return "same"
    if metric.worse == "neither":
        return "differs"
    if metric.key in _NO_MERIT and side > 0:
        return "differs"
    high_is_good = metric.worse == "lower" and _target(metric) is None
    return "worse" if (side > 0) != high_is_good else "better"


def _reason(band: Band, judged: Level | None, trajectory: Trajectory, width: float, axis: Axis) -> str:
    """Return the deciding reason first, the level over all common steps or a departure that has not ended."""
    if judged is None:
        return trajectory.reason
    level_words, left = _interval(band, judged), _departure(trajectory, width, axis)
    if judged.side or not _side(judged, trajectory):
        return f"{level_words}; {left}" if left else level_words
    last = trajectory.blocks[-1]
    return f"{left}, {_figure(last.value)} against {_figure(last.reference)} at the end; over all steps {level_words}"


def _interval(band: Band, judged: Level) -> str:
    if not judged.factor:
        return f"{_figure(judged.difference, '+')} [{_figure(judged.low, '+')}, {_figure(judged.high, '+')}]"
    floor = (
        f" (values below {short(band.floor)} count as {short(band.floor)})"
        if min(judged.value, judged.reference) < band.floor
        else ""
    )
    times, low, high = (_figure(value + 1) for value in (judged.difference, judged.low, judged.high))
    return f"{times} [{low}, {high}] times the baseline{floor}"


def _departure(trajectory: Trajectory, width: float, axis: Axis) -> str:
    if trajectory.leaves_step is None:
        return ""
    back = trajectory.back_step
    until = " for good" if back is None else f", back {where(back * width, axis)}"
    return f"leaves the baseline's band {where(trajectory.leaves_step * width, axis)}{until}"


def _figure(value: float, sign: str = "") -> str:
    """Return three significant digits, without an exponent for few leading zeros."""
    return f"{value:{sign},.0f}" if _THOUSAND <= abs(value) < _MILLION else f"{value:{sign}.3g}"


def _final(trend: Trend, common: AbstractSet[int]) -> float | None:
    """Return the median over the end of the common axis."""
    cells = sorted(common)
    return median(trend[cell] for cell in cells[-max(1, len(cells) // _LAST) :]) if cells else None


def positions(run: History, axis: Axis) -> Mapping[int, float]:
    """Return the position of each step of `run` on `axis`. Raises `ConfigurationError` for a run without the data of
    the axis.
    """
    if axis == "tokens":
        return run.tokens
    if axis == "time":
        if not run.seconds:
            raise ConfigurationError(f"{run.label} has no times to align by; use --align step")
        return run.seconds
    origin = 0
    if axis == "onset":
        if run.growth.since_step is None:
            raise ConfigurationError(f"{run.label} has no onset to align by: its K3 does not grow; use --align step")
        origin = run.growth.since_step
    return {step: float(step - origin) for step in run.steps}


def where(at: float, axis: Axis) -> str:
    """Return the description of a position on `axis`.

    >>> where(120.0, "step"), where(7300.0, "time"), where(-20.0, "onset")
    ('at step 120', 'after 7,300 s', '20 steps before growth began')
    """
    if axis == "onset":
        return f"{abs(at):,.0f} steps {'before' if at < 0 else 'after'} growth began"
    return {"step": f"at step {at:,.0f}", "tokens": f"at {at:,.0f} tokens", "time": f"after {at:,.0f} s"}[axis]


def cell_width(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return the larger median distance between neighbouring positions, or 1 with fewer than two."""
    return max(_spacing(ours), _spacing(theirs)) or 1.0


def placed(trend: Trend, at: Mapping[int, float], width: float = 1.0) -> dict[int, float]:
    """Return `trend` by cell of the axis instead of by step. Omit steps without a position.

    >>> placed({0: 1.0, 1: 3.0, 2: 5.0, 3: 9.0}, {0: 10.0, 1: 19.0, 2: 20.0}, 10.0)
    {1: 2.0, 2: 5.0}
    """
    cells: dict[int, list[float]] = {}
    for step, value in trend.items():
        if step in at:
            cells.setdefault(math.floor(at[step] / width), []).append(value)
    return {cell: fmean(values) for cell, values in sorted(cells.items())}


def _spacing(at: Mapping[int, float]) -> float:
    ordered = sorted(at.values())
    gaps = [later - earlier for earlier, later in pairwise(ordered) if later > earlier]
    return median(gaps) if gaps else 0.0
