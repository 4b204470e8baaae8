"""Difference between a run's level of a metric and the reference's, with an interval for dependent steps.

The interval is Student's t over differences of block medians. Autocorrelated neighbouring blocks reduce the effective
number to ``B·(1 − φ)/(1 + φ)``. The autocorrelation φ is corrected for its bias in short series (Marriott and Pope
1954).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.parity.recipe import Band
from logprobe.monitor.judging.parity.trajectories import Trend, in_blocks, margin, scaled

Floats = NDArray[np.float64]

# Two-sided 97 % quantiles of Student's t for 1, 2, … degrees of freedom: with what a departure adds (`follow`),
# unchanged runs are told apart in at most 5 of 100 metrics; docs/compare.md has what was measured.
_STUDENT: Final = (
    21.205, 5.643, 3.896, 3.298, 3.003, 2.829, 2.715, 2.634, 2.574, 2.527, 2.491, 2.461, 2.436, 2.415, 2.397, 2.382,
    2.368, 2.356,
)  # fmt: skip
_STRONGEST: Final = 0.9
_FEWEST: Final = 4.0  # independent blocks that are left at the least


@dataclass(frozen=True, slots=True)
class Level:
    """Run against reference over all common steps.

    Attributes:
        value: median of the run's block medians, in the metric's unit.
        reference: the same median of the reference.
        difference: excess of the run over the reference, a ratio minus 1 if the band is a factor, else in the metric's
            unit.
        low: lower end of the interval of `difference`.
        high: upper end of that interval.
        side: 1 above, −1 below, 0 without a significant and relevant difference.
        factor: true if `difference` is a ratio minus 1.
    """

    value: float
    reference: float
    difference: float
    low: float
    high: float
    side: int
    factor: bool = False


def level(band: Band, run: Trend, reference: Trend) -> Level | None:
    """Return the two levels over their common measured steps, or None for too few."""
    blocked = in_blocks(run, reference)
    if blocked is None:
        return None
    _, ours_BT, theirs_BT = blocked
    ours_B, theirs_B = (np.median(scaled(band, values), axis=1) for values in (ours_BT, theirs_BT))
    mean, half = interval(ours_B - theirs_B)
    matters = abs(mean) > max(half, margin(band, theirs_B))
    return Level(
        value=float(np.median(np.median(ours_BT, axis=1))),
        reference=float(np.median(np.median(theirs_BT, axis=1))),
        difference=_shown(band, mean),
        low=_shown(band, mean - half),
        high=_shown(band, mean + half),
        side=int(np.sign(mean)) if matters else 0,
        factor=band.factor is not None,
    )


def interval(differences_B: Floats) -> tuple[float, float]:
    """Return the mean of the blocks' differences [B] and half the width of its interval.

    >>> interval(np.zeros(10))
    (0.0, 0.0)
    >>> mean, half = interval(np.tile([0.9, 1.1], 8))
    >>> round(mean, 2), round(half, 2)
    (1.0, 0.06)
    """
    count = len(differences_B)
    memory = _memory(differences_B)
    independent = max(count * (1 - memory) / (1 + memory), _FEWEST)
    quantile = _STUDENT[min(int(independent) - 1, len(_STUDENT)) - 1]
    return float(differences_B.mean()), quantile * float(differences_B.std(ddof=1)) / math.sqrt(independent)


def _memory(values_B: Floats) -> float:
    """Return the autocorrelation of neighbours, between 0 and `_STRONGEST`."""
    rest = values_B - values_B.mean()
    energy = float((rest**2).sum())
    if not energy:
        return 0.0
    correlation = float((rest[1:] * rest[:-1]).sum()) / energy
    return min(max(correlation + (1 + 3 * correlation) / len(values_B), 0.0), _STRONGEST)


def _shown(band: Band, value: float) -> float:
    return value if band.factor is None else math.expm1(value)
