"""A run before and after its correction began, in numbers that say how sure they are.

Means of the medians of blocks of neighbouring steps, with an interval that knows them to be dependent: see
`logprobe.monitor.compare.level`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of block medians and the ends of its interval; of a factor the interval is geometric. `steps`: that it
    rests on."""

    value: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity on both sides of the switch.

    Attributes:
        name: column of `controller_trend`.
        words: for people.
        unit: as the catalog writes it.
        before: None: measured in too few steps.
        after: likewise.
        change: after minus before, or after over before where `factor`; None: one side is unknown.
        sure: whether the interval of the change leaves "no change" out.
        factor: how the change is told.
    """

    name: str
    words: str
    unit: str
    before: Estimate | None
    after: Estimate | None
    change: Estimate | None
    sure: bool
    factor: bool


def figures(before: pa.Table, after: pa.Table) -> list[Figure]:
    """What is different between the rows of `controller_trend` before and after; quantities that were never measured
    are left out."""
    measured = []
    for name, words, unit, factor in QUANTITIES:
        sides = [_usable(floats(side[name]), factor=factor) for side in (before, after)]
        if any(side.size for side in sides):
            measured.append(_figure((name, words, unit, factor), sides[0], sides[1]))
    return measured


class EstimateDocument(TypedDict):
    """An `Estimate`."""

    value: float
    low: float
    high: float
    steps: int


class FigureDocument(TypedDict):
    """A `Figure`."""

    name: str
    words: str
    unit: str
    sure: bool
    factor: bool
    before: EstimateDocument | None
    after: EstimateDocument | None
    change: EstimateDocument | None


def document(figure: Figure) -> FigureDocument:
    """As JSON has it."""
    return {
        "name": figure.name,
        "words": figure.words,
        "unit": figure.unit,
        "sure": figure.sure,
        "factor": figure.factor,
        "before": _document(figure.before),
        "after": _document(figure.after),
        "change": _document(figure.change),
    }


def _document(estimate: Estimate | None) -> EstimateDocument | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "steps": estimate.steps}


def _figure(quantity: tuple[str, str, str, bool], before: Floats, after: Floats) -> Figure:
    name, words, unit, factor = quantity
    first, second = _level(before), _level(after)
    change, sure = None, False
    if first is not None and second is not None:
        middle, half = second[0] - first[0], math.hypot(first[1], second[1])
        change, sure = _estimate(middle, half, min(before.size, after.size), factor=factor), abs(middle) > half
    return Figure(
        name,
        words,
        unit,
        None if first is None else _estimate(*first, before.size, factor=factor),
        None if second is None else _estimate(*second, after.size, factor=factor),
        change,
        sure,
        factor,
    )


def _level(values: Floats) -> tuple[float, float] | None:
    """Mean of block medians, and half the width of its interval; None for too few steps."""
    if values.size < FEWEST:
        return None
    return interval(np.array([np.median(block) for block in np.array_split(values, _BLOCKS)]))


def _estimate(middle: float, half: float, steps: int, *, factor: bool) -> Estimate:
    ends = (middle, middle - half, middle + half)
    value, low, high = (math.exp(end) for end in ends) if factor else ends
    return Estimate(value, low, high, steps)


def _usable(values: Floats, *, factor: bool) -> Floats:
    """What was measured; logarithms where a change is a factor."""
    usable = values[np.isfinite(values) & ((values > 0) if factor else True)]
    return np.log(usable) if factor else usable
