"""One metric of a run against the baseline's: same, better or worse.

What counts is how bad a value is, by the catalog's direction: of a metric that should be 0 or 1, its distance from there. A run differs
where its level over all common steps does (`level`), or where it has left the baseline's band and not come back (`follow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, Literal

from logprobe.monitor.compare.axes import Axis, where
from logprobe.monitor.compare.level import Level, level
from logprobe.monitor.diagnosis.parity.recipe import Band, Recipe
from logprobe.monitor.diagnosis.parity.trajectories import Trajectory, Trend, follow
from logprobe.monitor.metrics.catalog import metric as declared
from logprobe.monitor.metrics.definition import Metric, Worse

Verdict = Literal["same", "better", "worse", "differs", "unknown"]

# What a comparison looks at unless told otherwise: the mismatch, what the objective sees of it, and what training does with it.
METRICS: Final = (
    "backend.k3_kl", "backend.logprob_abs_diff_mean", "backend.ratio_mean", "backend.ess", "backend.prob_pearson",
    "total.clamp_log_ratio_new_old_indicator", "total.kl_new_old", "update.k3_kl", "token_mismatch_frac", "weight_lag_mean",
    "entropy", "response_length", "reward",
)  # fmt: skip

_NO_MERIT: Final = frozenset(
    {"entropy", "entropy_sampled"}
)  # less of it is a warning, more of it is not better by itself
_TARGETS: Final[Mapping[Worse, float]] = {"away from 0": 0.0, "away from 1": 1.0}
# What matters of metrics that no recipe has a band for. Those of a pair span decades: a factor, and what is smaller than the floor is
# rounding. Others: a part of the baseline's largest level.
_FACTOR: Final = 1.5
_FLOOR: Final = 1e-3
_SQUARED_FLOOR: Final = 1e-5  # of metrics that grow with the square of the log-ratio
_FRACTION: Final = 0.1
_THOUSAND, _MILLION = 1e3, 1e6
_LAST: Final = 10  # the last tenth of a run is its end


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One metric of a run against the baseline's.

    Attributes:
        metric: key in the catalog.
        label: what people call it.
        unit: of the metric.
        verdict: "differs" where the catalog calls neither direction worse, and where entropy is higher; unknown with too few common steps.
        reason: the verdict in words.
        level: both levels over what is common; None: unknown.
        ratio: run over baseline; None: unknown, or the baseline is 0.
        area: run minus baseline, summed over the common axis in its unit; None: nothing in common.
        final: median of the last tenth of what is common, of the run; None: nothing is.
        reference_final: the same of the baseline.
        trajectory: block by block, with the baseline's band.
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

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def judge_metric(
    key: str, run: Trend, reference: Trend, *, recipe: Recipe, width: float = 1.0, axis: Axis = "step"
) -> MetricVerdict:
    """The verdict on one metric.

    Args:
        key: of the catalog.
        run: by cell of the common axis.
        reference: of the baseline, by cell.
        recipe: has the bands of some metrics; others matter from a tenth of the baseline's level on.
        width: of a cell, in the axis' unit.
        axis: what the cells are of, for words.

    Raises:
        ConfigurationError: no such metric.
    """
    metric, band = declared(key), _band(key, recipe)
    ours, theirs = (badness(trend, metric) for trend in (run, reference))
    found, trajectory = level(band, ours, theirs), follow(band, ours, theirs)
    side = _side(found, trajectory)
    verdict = "unknown" if found is None else _verdict(metric, side)
    common = run.keys() & reference.keys()
    return MetricVerdict(
        metric=key,
        label=band.label,
        unit=metric.unit,
        verdict=verdict,
        reason=_reason(band, found, trajectory, width, axis),
        level=found,
        ratio=found.value / found.reference if found is not None and found.reference else None,
        area=width * sum(run[cell] - reference[cell] for cell in common) if common else None,
        final=_final(run, common),
        reference_final=_final(reference, common),
        trajectory=trajectory,
    )


def badness(trend: Trend, metric: Metric) -> Trend:
    """Distances from where the metric should be; unchanged where it should be as low, or as high, as it can be."""
    target = _target(metric)
    return trend if target is None else {cell: abs(value - target) for cell, value in trend.items()}


def _target(metric: Metric) -> float | None:
    """0 or 1; shares and correlations that should be high are at best 1."""
    if metric.worse == "lower" and (metric.unit == "fraction" or metric.key == "prob_pearson"):
        return 1.0
    return _TARGETS.get(metric.worse)


def _band(key: str, recipe: Recipe) -> Band:
    """The recipe's band, on both sides: a run may be better, too."""
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


def _side(found: Level | None, trajectory: Trajectory) -> int:
    """Where the run is: by its level, else by a departure that has not ended."""
    if found is not None and found.side:
        return found.side
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


def _reason(band: Band, found: Level | None, trajectory: Trajectory, width: float, axis: Axis) -> str:
    if found is None:
        return trajectory.reason
    left = _departure(trajectory, width, axis)
    if not found.factor:
        return f"{_figure(found.difference, '+')} [{_figure(found.low, '+')}, {_figure(found.high, '+')}]{left}"
    floor = (
        f" (values below {_plain(band.floor)} count as {_plain(band.floor)})"
        if min(found.value, found.reference) < band.floor
        else ""
    )
    times, low, high = (_figure(value + 1) for value in (found.difference, found.low, found.high))
    return f"{times} [{low}, {high}] times the baseline{floor}{left}"


def _departure(trajectory: Trajectory, width: float, axis: Axis) -> str:
    if trajectory.leaves_step is None:
        return ""
    back = trajectory.back_step
    until = "" if back is None else f", back {where(back * width, axis)}"
    return f"; leaves the baseline's band {where(trajectory.leaves_step * width, axis)}{until}"


def _figure(value: float, sign: str = "") -> str:
    """Three digits, and no exponent where people would count zeros without it."""
    return f"{value:{sign},.0f}" if _THOUSAND <= abs(value) < _MILLION else f"{value:{sign}.3g}"


def _plain(value: float) -> str:
    """A round number as people write it: 1e-5, not 1e-05."""
    return f"{value:g}".replace("e-0", "e-")


def _final(trend: Trend, common: AbstractSet[int]) -> float | None:
    """At the end of what both have: beyond it there is nothing to compare with."""
    cells = sorted(common)
    return median(trend[cell] for cell in cells[-max(1, len(cells) // _LAST) :]) if cells else None
