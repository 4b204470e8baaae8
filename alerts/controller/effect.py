"""Effect of a correction: one judgement of a run before and after its trainer began to correct, read by audit, banner,
pages and command line.

A correction repairs the objective, not the engine: it does not lower K3. What it should change is the reward and the
gradient norm. Each is compared with its own past as in an interrupted time series: better than at the switch, and
better than the trend before would have led to. A reward that was rising anyway, or that has nowhere left to fall, shows
no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.monitor.compare.level import interval
from logprobe.monitor.judging.growth import theil_sen
from logprobe.monitor.ragged import floats

Floats = NDArray[np.float64]

FEWEST: Final = 10  # points on a side; fewer say nothing about a level or a slope
# Column of `controller_trend`, words, unit, and whether a change is told as a factor.
QUANTITIES: Final = (
    ("k3", "K3", "nats", True),
    ("masked", "share of the tokens masked", "", False),
    ("ess", "ESS of the ratios", "", False),
    ("weight_ess", "ESS of the weights", "", False),
    ("reward", "reward", "", False),
    ("grad_norm", "gradient norm", "", True),
)
REACH: Final = 4  # windows back in which uncorrected steps are looked for
WORDS: Final = {
    "helped": "helped",
    "no_effect_shown": "no effect shown",
    "harmed": "harmed",
    "too_early": "too early",
}
ADVICE: Final = "lower the learning rate, or return to a checkpoint from before the onset"
_BOUND: Final = "bound the weight lag"
_LEVEL: Final = 0.99  # of the interval that must lie above a flat trend
_SLOWEST: Final = 8  # windows; what takes longer to double is no growth to act on
_FAR: Final = 2.0  # a gradient norm that is so many times what it was has changed
_BLOCKS: Final = 10
_STUDENT: Final = 2.92  # two-sided 99 % of Student's t with 2 × (_BLOCKS − 2) degrees of freedom


@dataclass(frozen=True, slots=True)
class _Break:
    """Change of a quantity at the switch, in its own unit (logarithms where changes are factors), with half an
    interval each.

    Attributes:
        slope: before, for each step.
        step: after against the level at the switch.
        beyond: after against where the trend before would have led.
    """

    slope: tuple[float, float]
    step: tuple[float, float]
    beyond: tuple[float, float]

    def is_up(self) -> bool:
        """Return whether it is above both for sure."""
        return all(value > half for value, half in (self.step, self.beyond))

    def is_down(self) -> bool:
        """Return whether it is below both for sure."""
        return all(value < -half for value, half in (self.step, self.beyond))


@dataclass(frozen=True, slots=True)
class _Side:
    """Measured steps of a quantity on one side of the switch.

    Attributes:
        count: how many.
        steps: mean step of each block of neighbouring steps; empty with too few.
        medians: of each block, logarithms where changes are factors; None with too few.
    """

    count: int
    steps: Floats
    medians: Floats | None

    @classmethod
    def of(cls, table: pa.Table, name: str, *, factor: bool) -> Self:
        """Read a column of `controller_trend`."""
        values = floats(table[name])
        usable = np.isfinite(values) & ((values > 0) if factor else True)
        steps, kept = table["step"].to_numpy().astype(np.float64)[usable], values[usable]
        if len(kept) < FEWEST:
            return cls(len(kept), np.empty(0), None)
        medians = [np.median(block) for block in np.array_split(np.log(kept) if factor else kept, _BLOCKS)]
        return cls(len(kept), np.array([block.mean() for block in np.array_split(steps, _BLOCKS)]), np.array(medians))


def remedy(*, stale: bool) -> str:
    """Return the remedy of growth that a correction does not stop; first the remedy of tokens that come from old
    weights."""
    return f"{_BOUND}, {ADVICE}" if stale else ADVICE


class Estimate(TypedDict):
    """Mean of block medians and the ends of its interval; of a factor the interval is geometric. `steps`: that it
    rests on."""

    value: float
    low: float
    high: float
    steps: int


class Figure(TypedDict):
    """One quantity on both sides of the switch, as JSON has it.

    `before`, `after`: None if it was measured in too few steps. `change`: after minus before, or after over before if
    `factor`; None if one side is unknown. `sure`: whether the interval of the change excludes no change.
    """

    name: str
    words: str
    unit: str
    sure: bool
    factor: bool
    before: Estimate | None
    after: Estimate | None
    change: Estimate | None


class Effect(TypedDict):
    """Effect of a correction.

    `judgement`: a key of `WORDS`. `growth`: of K3; None: unknown. `doubling_steps`: afterwards. `masked`: share of the
    tokens. `steps`: on each side.
    """

    judgement: str
    words: str
    growth: str | None
    doubling_steps: float | None
    masked: float | None
    steps: int
    figures: list[Figure]


def judge(
    trend: pa.Table,
    masked_from: int,
    applied_from: int,
    window: int,
    *,
    stale: bool = False,
    grown_since: int | None = None,
) -> Effect:
    """Judge what came of a correction.

    The word compares with the steps before the switch, the figures with those before the growth: a window that holds
    growth of 64× has no level to compare with.

    Args:
        trend: rows of `controller_trend`, from `REACH` windows before the first of the steps below on.
        masked_from: first step that the trainer corrected, since it last did not.
        applied_from: first step that it corrected with the configuration in question.
        window: steps looked at on each side.
        stale: whether old weights explain growth, for the remedy.
        grown_since: first step of the growth for which it was switched on; None: not known.
    """
    after = trend.filter(_between(trend, applied_from, applied_from + window))
    onset = masked_from if grown_since is None else min(grown_since, masked_from)
    before, normal = (_before(trend, end, min(window, len(after))) for end in (masked_from, onset))
    since_normal = grown_since is not None and len(normal) >= FEWEST
    reached = pc.max(trend["step"]).as_py() if len(trend) else None
    early = reached is None or reached < applied_from + window - 1
    figures = compared(normal if since_normal else before, after)
    growth, doubling = _growth(before, after, window)
    judgement, why = _early(after, applied_from, window) if early else _judgement(before, after)
    masked = next((f["after"]["value"] for f in figures if f["name"] == "masked" and f["after"]), None)
    parts = [
        why,
        *_rest(figures, "growth" if since_normal else "correction"),
        *_masked(masked),
        *_growing(growth, doubling, stale=stale),
    ]
    return {
        "judgement": judgement,
        "words": f"{WORDS[judgement]}: {'; '.join(parts)}",
        "growth": growth,
        "doubling_steps": doubling,
        "masked": masked,
        "steps": len(after),
        "figures": figures,
    }


def _between(trend: pa.Table, first: int, end: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(trend["step"], first), pc.less(trend["step"], end))


def _before(trend: pa.Table, end: int, count: int) -> pa.Table:
    """Return the last uncorrected steps before `end`, at most `count`."""
    uncorrected = pc.is_null(trend["masked"], nan_is_null=True)
    rows = trend.filter(pc.and_(pc.less(trend["step"], end), uncorrected))
    return rows.slice(max(0, len(rows) - count))


def _early(after: pa.Table, applied_from: int, window: int) -> tuple[str, str]:
    return "too_early", f"{len(after)} of {window} steps since the trainer began to correct at step {applied_from:,}"


def _judgement(before: pa.Table, after: pa.Table) -> tuple[str, str]:
    """The word, and what it rests on; the reward decides, then the gradient norm."""
    if len(before) < FEWEST:
        return "no_effect_shown", f"only {len(before)} uncorrected steps were recorded to compare with"
    reward, norm = _break(before, after, "reward", factor=False), _break(before, after, "grad_norm", factor=True)
    return _by_reward(reward) or _by_norm(norm) or ("no_effect_shown", _unchanged(reward, norm))


def _by_reward(reward: _Break | None) -> tuple[str, str] | None:
    if reward is not None and reward.is_up():
        return "helped", "the reward is above where it was at the switch and where its trend was leading"
    if reward is not None and reward.is_down():
        return "harmed", "the reward is below where it was at the switch and where its trend was leading"
    return None


def _by_norm(norm: _Break | None) -> tuple[str, str] | None:
    """Masks and bounds make a gradient smaller by themselves: that one is, is no help unless it was rising."""
    if norm is not None and norm.is_up() and norm.step[0] > math.log(_FAR):
        return "harmed", f"the gradient norm is {math.exp(norm.step[0]):.2g} times what it was"
    if norm is not None and norm.is_down() and norm.slope[0] > norm.slope[1]:
        return "helped", "the gradient norm was rising and is below where it was"
    return None


def _unchanged(reward: _Break | None, norm: _Break | None) -> str:
    recorded = [name for name, change in (("reward", reward), ("gradient norm", norm)) if change is not None]
    if not recorded:
        return "neither reward nor gradient norm is recorded"
    return f"{' and '.join(recorded)} changed no more than {'they vary' if recorded[1:] else 'it varies'}"


def _break(before: pa.Table, after: pa.Table, name: str, *, factor: bool) -> _Break | None:
    """Return the change at the switch by lines through block medians, or None with too few steps on a side."""
    past, present = _Side.of(before, name, factor=factor), _Side.of(after, name, factor=factor)
    if past.medians is None or present.medians is None:
        return None
    x, at, centre = past.steps, float(present.steps[0]), float(present.steps.mean())
    slope, level, spread = _line(x, past.medians)
    noise = math.hypot(spread, _line(present.steps, present.medians)[2]) / math.sqrt(2)
    around, now = float(((x - x.mean()) ** 2).sum()), float(present.medians.mean())

    def against(place: float) -> tuple[float, float]:
        predicted = level + slope * (place - float(x.mean()))
        error = noise * math.sqrt(2 / _BLOCKS + (place - float(x.mean())) ** 2 / around)
        return now - predicted, _STUDENT * error

    return _Break((slope, _STUDENT * noise / math.sqrt(around)), against(at), against(centre))


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Slope, level at the mean of `x`, standard deviation around the line; least squares."""
    centred = x - x.mean()
    slope = float((centred * y).sum() / (centred**2).sum())
    rest = y - y.mean() - slope * centred
    return slope, float(y.mean()), math.sqrt(float((rest**2).sum()) / (len(x) - 2))


def _growth(before: pa.Table, after: pa.Table, window: int) -> tuple[str | None, float | None]:
    """Return whether K3 grows afterwards, and in how many steps it doubles then."""
    if (floats(after["k3"]) >= 0).sum() < FEWEST:
        return None, None
    doubling = _doubling(after, window)
    if doubling is not None:
        return "still_growing", doubling
    return "halted" if _doubling(before, window) is not None else "steady", None


def _doubling(table: pa.Table, window: int) -> float | None:
    """Return the steps in which K3 doubles: 1 / Theil–Sen slope of log2 K3; None unless its whole interval lies above
    0."""
    steps, values = table["step"].to_numpy(), floats(table["k3"])
    usable = np.isfinite(values) & (values > 0)
    if usable.sum() < FEWEST:
        return None
    slope = theil_sen(steps[usable], np.log2(values[usable]), confidence=_LEVEL)
    if slope is None or slope.low <= 0 or slope.value * _SLOWEST * window < 1:
        return None
    return 1.0 / slope.value


def _rest(figures: Iterable[Figure], of: str) -> list[str]:
    """Return reward and gradient norm in numbers, before `of` and now; nothing of what is unknown."""
    changes = [
        f"{figure['words']} {before['value']:.3g} → {after['value']:.3g}"
        for figure in figures
        if figure["name"] in {"reward", "grad_norm"} and (before := figure["before"]) and (after := figure["after"])
    ]
    return [f"from before the {of} to now: {', '.join(changes)}"] if changes else []


def _masked(masked: float | None) -> list[str]:
    return [] if masked is None else [f"{masked:.1%} of the tokens are masked"]


def _growing(growth: str | None, doubling: float | None, *, stale: bool) -> list[str]:
    """Return the words on K3, which a correction does not lower."""
    if growth == "still_growing":
        return [f"K3 still doubles every {doubling:.0f} steps: {remedy(stale=stale)}"]
    return (
        [{"halted": "K3 no longer grows", "steady": "no growth of K3 shows in these steps"}[growth]] if growth else []
    )


def compared(before: pa.Table, after: pa.Table) -> list[Figure]:
    """Compare rows of `controller_trend` before and after; quantities that were never measured are left out."""
    figures: list[Figure] = []
    for name, words, unit, factor in QUANTITIES:
        sides = [_Side.of(table, name, factor=factor) for table in (before, after)]
        if not any(side.count for side in sides):
            continue
        first, second = levels = [None if side.medians is None else interval(side.medians) for side in sides]
        change, sure = None, False
        if first is not None and second is not None:
            middle, half = second[0] - first[0], math.hypot(first[1], second[1])
            change, sure = _estimate(middle, half, min(side.count for side in sides), factor=factor), abs(middle) > half
        ends = [
            None if level is None else _estimate(*level, side.count, factor=factor)
            for level, side in zip(levels, sides, strict=True)
        ]
        figures.append(
            {
                "name": name,
                "words": words,
                "unit": unit,
                "sure": sure,
                "factor": factor,
                "before": ends[0],
                "after": ends[1],
                "change": change,
            }
        )
    return figures


def _estimate(middle: float, half: float, steps: int, *, factor: bool) -> Estimate:
    ends = (middle, middle - half, middle + half)
    value, low, high = (math.exp(end) for end in ends) if factor else ends
    return {"value": value, "low": low, "high": high, "steps": steps}
