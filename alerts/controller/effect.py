"""Effect of a correction: one judgement of a run before and after its trainer began to correct. Audit, banner,
pages and command line share it.

A correction repairs the objective, not the engine, so it does not lower K3. It should change the reward and the
gradient norm. Each is compared with its own past, as in an interrupted time series. An improvement exceeds both the
level at the switch and the extrapolated earlier trend. A reward that was already rising, or is at its minimum, shows no
effect. If the reward certainly equals its level before the growth, the text states that the reward was kept.

| first that holds | judgement |
|---|---|
| fewer than `STEPS` steps since | too_early |
| fewer than `FEWEST` uncorrected steps before | no_effect_shown |
| the interval of the reward is above both, or below both | helped, harmed |
| the gradient norm is above both, and at least doubled | harmed |
| the gradient norm was rising, and is below both | helped, although masks alone make it smaller |
| else | no_effect_shown |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.monitor.compare.level import interval
from logprobe.monitor.ragged import floats

Floats = NDArray[np.float64]

STEPS: Final = 50  # corrected steps after which the effect is judged, and as many before
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
REACH: Final = 4  # times `STEPS` back, in which uncorrected steps are looked for
WORDS: Final = {
    "helped": "helped",
    "no_effect_shown": "no effect shown",
    "harmed": "harmed",
    "too_early": "too early to judge",
}
ADVICE: Final = "lower the learning rate, or return to a checkpoint from before the onset"
_KEPT_WORDS: Final = "reward kept"  # of a run that shows no effect: it is what it was before the growth
_LOST: Final = 0.1  # share of the reward that may be gone, at most, for it to be kept
_FAR: Final = 2.0  # a gradient norm that is so many times what it was has changed
_BLOCKS: Final = 10
_STUDENT: Final = 2.92  # two-sided 99 % of Student's t with 2 × (_BLOCKS − 2) degrees of freedom


class Estimate(TypedDict):
    """Mean of block medians and its interval, geometric for a factor. `steps`: number of steps."""

    value: float
    low: float
    high: float
    steps: int


class Figure(TypedDict):
    """One quantity on both sides of the switch, as JSON.

    `before`, `after`: estimate, or None for too few measured steps. `change`: difference, or ratio if `factor`, or None
    if one side is unknown. `sure`: true if the interval of the change excludes no change.
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

    `judgement`: a key of `WORDS`. `masked`: masked share of the tokens. `steps`: steps on each side.
    """

    judgement: str
    words: str
    masked: float | None
    steps: int
    figures: list[Figure]


def remedy(*, stale: str) -> str:
    """Return the remedy for growth that a correction does not stop. That for stale tokens, if any, is first."""
    return f"{stale}, {ADVICE}" if stale else ADVICE


def judge(
    trend: pa.Table,
    masked_from: int,
    applied_from: int,
    *,
    grown_since: int | None = None,
) -> Effect:
    """Judge the effect of a correction.

    The judgement compares with the steps before the switch, the figures with the steps before the growth. A window that
    contains growth of 64× has no level for comparison.

    Args:
        trend: rows of `controller_trend`, beginning `REACH` × `STEPS` before the earliest step of the following
            arguments.
        masked_from: first step of the newest uninterrupted series of corrected steps.
        applied_from: first step that the trainer corrected with the configuration in question.
        grown_since: first step of the growth that triggered the correction, or None if unknown.
    """
    step = trend["step"]
    after = trend.filter(pc.and_(pc.greater_equal(step, applied_from), pc.less(step, applied_from + STEPS)))
    before = _before(trend, masked_from, min(STEPS, len(after)))
    onset = masked_from if grown_since is None else min(grown_since, masked_from)
    normal = _before(trend, onset, min(STEPS, len(after)))
    since_growth = grown_since is not None and len(normal) >= FEWEST
    figures = compared(normal if since_growth else before, after)
    levels = {each["name"]: (each["before"], each["after"]) for each in figures}
    if len(trend) == 0 or pc.max(step).as_py() < applied_from + STEPS - 1:
        judgement = "too_early"
        why = f"{len(after)} of {STEPS} steps since the trainer began to correct at step {applied_from:,}"
    else:
        judgement, why = _judgement(before, after)
    parts = [why, *_changes(levels, "growth" if since_growth else "correction")]
    masked = levels.get("masked", (None, None))[1]
    if masked is not None:
        parts.append(f"{masked['value']:.1%} of the tokens are masked")
    kept = judgement == "no_effect_shown" and since_growth and _kept(figures)
    return {
        "judgement": judgement,
        "words": f"{_KEPT_WORDS if kept else WORDS[judgement]}: {'; '.join(parts)}",
        "masked": None if masked is None else masked["value"],
        "steps": len(after),
        "figures": figures,
    }


def _kept(figures: list[Figure]) -> bool:
    """Return whether the interval of the reward's change excludes a loss of more than `_LOST`."""
    for each in figures:
        if each["name"] == "reward" and each["before"] is not None and each["change"] is not None:
            return each["change"]["low"] >= -_LOST * abs(each["before"]["value"])
    return False


def _before(trend: pa.Table, end: int, count: int) -> pa.Table:
    """Return the last uncorrected steps before `end`, at most `count`."""
    rows = trend.filter(pc.and_(pc.less(trend["step"], end), pc.is_null(trend["masked"], nan_is_null=True)))
    return rows.slice(max(0, len(rows) - count))


def _judgement(before: pa.Table, after: pa.Table) -> tuple[str, str]:
    """Return the judgement and its reason."""
    if len(before) < FEWEST:
        return "no_effect_shown", f"only {len(before)} uncorrected steps were recorded to compare with"
    reward, norm = _break(before, after, "reward", factor=False), _break(before, after, "grad_norm", factor=True)
    where = "where it was at the switch and where its trend was leading"
    if reward is not None and (reward.is_up or reward.is_down):
        side = "above" if reward.is_up else "below"
        return "helped" if reward.is_up else "harmed", f"the reward is {side} {where}"
    if norm is not None and norm.is_up and norm.step[0] > math.log(_FAR):
        return "harmed", f"the gradient norm is {math.exp(norm.step[0]):.2g} times what it was"
    if norm is not None and norm.is_down and norm.slope[0] > norm.slope[1]:
        return "helped", "the gradient norm was rising and is below where it was"
    recorded = [name for name, change in (("reward", reward), ("gradient norm", norm)) if change is not None]
    if not recorded:
        return "no_effect_shown", "neither reward nor gradient norm is recorded"
    vary = "they vary" if recorded[1:] else "it varies"
    return "no_effect_shown", f"{' and '.join(recorded)} changed no more than {vary}"


# --- One quantity on one side of the switch, and across it ---


@dataclass(frozen=True, slots=True)
class _Side:
    """Measured steps of a quantity on one side of the switch.

    `steps`, `medians`: means and medians of blocks of neighbouring steps, logarithms for factors, empty for fewer than
    `FEWEST` steps.
    """

    count: int
    steps: Floats
    medians: Floats


def _side(table: pa.Table, name: str, *, factor: bool) -> _Side:
    steps, values = _usable(table, name, positive=factor)
    if len(values) < FEWEST:
        return _Side(len(values), np.empty(0), np.empty(0))
    blocks = np.array_split(np.log(values) if factor else values, _BLOCKS)
    places = np.array([block.mean() for block in np.array_split(steps, _BLOCKS)])
    return _Side(len(values), places, np.array([np.median(block) for block in blocks]))


def _usable(table: pa.Table, name: str, *, positive: bool) -> tuple[Floats, Floats]:
    values = floats(table[name])
    usable = np.isfinite(values) & ((values > 0) | (not positive))
    return table["step"].to_numpy().astype(np.float64)[usable], values[usable]


class _Break(NamedTuple):
    """Change of a quantity at the switch, in its unit (logarithms where changes are factors).

    Each value has half the width of its interval: the earlier slope per step, the later level against the level at the
    switch, and the later level against the extrapolated earlier trend.
    """

    slope: tuple[float, float]
    step: tuple[float, float]
    beyond: tuple[float, float]

    @property
    def is_up(self) -> bool:
        """Return whether the intervals of both comparisons lie above 0."""
        return all(value > half for value, half in (self.step, self.beyond))

    @property
    def is_down(self) -> bool:
        """Return whether the intervals of both comparisons lie below 0."""
        return all(value < -half for value, half in (self.step, self.beyond))


def _break(before: pa.Table, after: pa.Table, name: str, *, factor: bool) -> _Break | None:
    """Return the change at the switch by lines through block medians, or None with too few steps on a side."""
    past, present = _side(before, name, factor=factor), _side(after, name, factor=factor)
    if not len(past.medians) or not len(present.medians):
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
    """Return slope, level at the mean of `x`, and standard deviation of the residuals, by least squares."""
    centred = x - x.mean()
    slope = float((centred * y).sum() / (centred**2).sum())
    rest = y - y.mean() - slope * centred
    return slope, float(y.mean()), math.sqrt(float((rest**2).sum()) / (len(x) - 2))


def _changes(levels: dict[str, tuple[Estimate | None, Estimate | None]], of: str) -> list[str]:
    """Return the known values of reward and gradient norm before `of` and now."""
    words = {name: words for name, words, *_ in QUANTITIES}
    changes = [
        f"{words[name]} {before['value']:.3g} → {after['value']:.3g}"
        for name, (before, after) in levels.items()
        if name in {"reward", "grad_norm"} and before is not None and after is not None
    ]
    return [f"from before the {of} to now: {', '.join(changes)}"] if changes else []


def compared(before: pa.Table, after: pa.Table) -> list[Figure]:
    """Compare rows of `controller_trend` before and after. Omit quantities that were never measured."""
    return [
        figure
        for name, words, unit, factor in QUANTITIES
        if (figure := _figure(before, after, name, words, unit, factor=factor)) is not None
    ]


def _figure(before: pa.Table, after: pa.Table, name: str, words: str, unit: str, *, factor: bool) -> Figure | None:
    sides = [_side(table, name, factor=factor) for table in (before, after)]
    if not any(side.count for side in sides):
        return None
    first, second = levels = [interval(side.medians) if len(side.medians) else None for side in sides]
    change, sure = None, False
    if first is not None and second is not None:
        middle, half = second[0] - first[0], math.hypot(first[1], second[1])
        change, sure = _estimate(middle, half, min(side.count for side in sides), factor=factor), abs(middle) > half
    ends = [
        None if level is None else _estimate(*level, side.count, factor=factor)
        for level, side in zip(levels, sides, strict=True)
    ]
    return {
        "name": name,
        "words": words,
        "unit": unit,
        "sure": sure,
        "factor": factor,
        "before": ends[0],
        "after": ends[1],
        "change": change,
    }


def _estimate(middle: float, half: float, steps: int, *, factor: bool) -> Estimate:
    ends = (middle, middle - half, middle + half)
    value, low, high = (math.exp(end) for end in ends) if factor else ends
    return {"value": value, "low": low, "high": high, "steps": steps}
