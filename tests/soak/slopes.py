"""Slopes of a soak's series with intervals that account for autocorrelation.

Samples seconds apart depend on each other, so the textbook interval of a straight line is far too narrow. Here the line is fitted by
least squares, and its standard error is of Newey and West (Econometrica 1987) with a bandwidth of a tenth of the series; beside it
stands the Theil–Sen slope, which a few spikes do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.975
LEAST = 12  # samples below which no slope is given


@dataclass(frozen=True)
class Slope:
    """Change per hour with its 95 % interval; `robust`: Theil–Sen; `first`, `last`: medians of the first and last tenth."""

    per_hour: float
    low: float
    high: float
    robust: float
    first: float
    last: float

    @property
    def trend(self) -> str:
        """In a word; what changes by less than a thousandth of itself in an hour is flat, however sure that is."""
        if self.low <= 0 <= self.high or abs(self.per_hour) < 1e-3 * max(abs(self.last), 1e-9):
            return "flat"
        return "grows" if self.per_hour > 0 else "falls"


def slope(hours: np.ndarray, values: np.ndarray) -> Slope | None:
    """Of a series; None with fewer than `LEAST` samples."""
    known = np.isfinite(values)
    x, y = hours[known], values[known]
    if len(x) < LEAST:
        return None
    centred = x - x.mean()
    per_hour = float(centred @ y / (centred @ centred))
    error = _newey_west(centred, y - y.mean() - per_hour * centred)
    reach = float(stats.t.ppf(LEVEL, max(3, _effective(len(x))))) * error
    tenth = max(1, len(y) // 10)
    robust = float(stats.theilslopes(y, x).slope)
    return Slope(
        per_hour, per_hour - reach, per_hour + reach, robust, float(np.median(y[:tenth])), float(np.median(y[-tenth:]))
    )


def _bandwidth(n: int) -> int:
    return max(1, n // 10)


def _effective(n: int) -> int:
    """Degrees of freedom that a bandwidth of a tenth leaves of `n` samples."""
    return n // _bandwidth(n)


def _newey_west(x: np.ndarray, residuals: np.ndarray) -> float:
    scores = x * residuals
    bandwidth = _bandwidth(len(x))
    total = float(scores @ scores)
    for lag in range(1, bandwidth + 1):
        total += 2 * (1 - lag / (bandwidth + 1)) * float(scores[lag:] @ scores[:-lag])
    return float(np.sqrt(max(total, 0.0)) / (x @ x))
