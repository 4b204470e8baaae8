"""Lines through noisy series: how steep (Theil–Sen), and where they began to rise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FEWEST: Final = 3
_CLEARLY: Final = 0.7  # of the sum of squares that another shape leaves


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x, and the interval that holds the true one with the confidence asked for."""

    value: float
    low: float
    high: float


def theil_sen(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Slope | None:
    """The median of the slopes between all pairs of points; x and y of shape [n].

    Up to 29 % of the points may be anything without moving it far. Source, also of the interval: Sen, Estimates of the Regression
    Coefficient Based on Kendall's Tau, JASA 63 (1968).
    The interval takes the points as independent: thin out, or take blocks of, what is autocorrelated.

    Returns:
        None with fewer than 3 points or fewer than 3 different x.

    >>> theil_sen([0, 1, 2, 3, 4], [1, 3, 5, 7, 99]).value
    2.0
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(np.unique(xs)) < _FEWEST:
        return None
    first, second = np.triu_indices(len(xs), 1)
    different = xs[first] != xs[second]
    first, second = first[different], second[different]
    slopes = np.sort((ys[second] - ys[first]) / (xs[second] - xs[first]))
    reach = _reach(len(xs), confidence)
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def _reach(points: int, confidence: float) -> float:
    """How many ordered slopes the interval spans: z times the standard deviation of Kendall's S."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return z * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)


def bend(blocks: Sequence[tuple[int, float]]) -> int | None:
    """Where a series that was level began to rise: the bend of the best line of the form level, then rising.

    Args:
        blocks: first step and median of each block, steps ascending; the last ones are known to lie higher.

    Returns:
        A step at which a block begins; None with fewer than three blocks, or where nothing rises.
    """
    if len(blocks) < 3:  # noqa: PLR2004 - a level, a bend and a rise
        return None
    steps, values = np.asarray(blocks, np.float64).T
    rise_BB = np.maximum(steps[None, :] - steps[:-1, None], 0.0)  # bend × block
    centred_BB = rise_BB - rise_BB.mean(axis=1, keepdims=True)
    slope_B = centred_BB @ (values - values.mean()) / (centred_BB**2).sum(axis=1)
    gain_B = np.where(slope_B > 0, slope_B**2 * (centred_BB**2).sum(axis=1), 0.0)
    return int(steps[int(gain_B.argmax())]) if gain_B.any() else None


def ramp(values: ArrayLike) -> float:
    """Slope per point, at its end, of a series that was level and rises.

    0 where a jump from one level to another fits about as well, and where the rise explains less than half of how the series varies.

    Args:
        values: equidistant, oldest first; shape [n].
    """
    y = np.asarray(values, np.float64)
    if len(y) < 2 * _FEWEST:
        return 0.0
    place, y = np.arange(len(y)), y - y.mean()
    starts = place[1 : 1 - _FEWEST]
    rising_BN = np.maximum(place[None, :] - starts[:, None] + 1.0, 0.0)
    slopes, of_ramp = _fitted(rising_BN, y)
    _, of_jump = _fitted((rising_BN > 0).astype(np.float64), y)
    best = int(of_ramp.argmin())
    clearly = min(_CLEARLY * float(of_jump.min()), float(y @ y) / 2)
    return float(slopes[best]) if of_ramp[best] < clearly else 0.0


def _fitted(shapes_BN: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least-squares factor of each shape, and the sum of squares that it leaves; `y` is centred."""
    x = shapes_BN - shapes_BN.mean(axis=1, keepdims=True)
    factor = x @ y / (x * x).sum(axis=1)
    return factor, float(y @ y) - factor * (x @ y)
