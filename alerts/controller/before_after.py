"""A run before and after its correction began, in numbers that say how sure they are.

Means of the medians of blocks of neighbouring steps, with an interval that knows them to be dependent: see
`logprobe.monitor.compare.level`.
"""

from __future__ import annotations

import math
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.compare.level import interval
from logprobe.monitor.ragged import floats

Floats = NDArray[np.float64]

FEWEST: Final = 10  # points on a side; fewer say nothing about a level or a slope
_BLOCKS: Final = 10
# Column of `controller_trend`, words, unit, and whether a change is told as a factor.
QUANTITIES: Final = (
    ("k3", "K3", "nats", True),
    ("masked", "share of the tokens masked", "", False),
    ("ess", "ESS of the ratios", "", False),
    ("weight_ess", "ESS of the weights", "", False),
    ("reward", "reward", "", False),
    ("grad_norm", "gradient norm", "", True),
)


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


def figures(before: pa.Table, after: pa.Table) -> list[Figure]:
    """Compare rows of `controller_trend` before and after; quantities that were never measured are left out."""
    measured = []
    for name, words, unit, factor in QUANTITIES:
        sides = [_usable(floats(side[name]), factor=factor) for side in (before, after)]
        if any(side.size for side in sides):
            measured.append(_figure((name, words, unit, factor), sides[0], sides[1]))
    return measured


def _figure(quantity: tuple[str, str, str, bool], before: Floats, after: Floats) -> Figure:
    name, words, unit, factor = quantity
    first, second = _level(before), _level(after)
    change, sure = None, False
    if first is not None and second is not None:
        middle, half = second[0] - first[0], math.hypot(first[1], second[1])
        change, sure = _estimate(middle, half, min(before.size, after.size), factor=factor), abs(middle) > half
    return {
        "name": name,
        "words": words,
        "unit": unit,
        "sure": sure,
        "factor": factor,
        "before": None if first is None else _estimate(*first, before.size, factor=factor),
        "after": None if second is None else _estimate(*second, after.size, factor=factor),
        "change": change,
    }


def _level(values: Floats) -> tuple[float, float] | None:
    """Mean of block medians, and half the width of its interval; None for too few steps."""
    if values.size < FEWEST:
        return None
    return interval(np.array([np.median(block) for block in np.array_split(values, _BLOCKS)]))


def _estimate(middle: float, half: float, steps: int, *, factor: bool) -> Estimate:
    ends = (middle, middle - half, middle + half)
    value, low, high = (math.exp(end) for end in ends) if factor else ends
    return {"value": value, "low": low, "high": high, "steps": steps}


def _usable(values: Floats, *, factor: bool) -> Floats:
    """What was measured; logarithms where a change is a factor."""
    usable = values[np.isfinite(values) & ((values > 0) if factor else True)]
    return np.log(usable) if factor else usable
