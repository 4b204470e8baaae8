"""Thinning of columns for a chart, and the choice of its scale, as pure functions.

Peaks, gaps and ends are preserved.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_POINTS: Final = 2000
_DECADES: Final = 2.0  # span from which a linear axis hides the beginning of growth
_LOW_QUANTILE: Final = 0.02  # share of the values that may lie below a logarithmic axis
_FAR: Final = 30.0  # times below that quantile: such points are left below the axis


def thin(x: Floats, y: Floats, *, max_points: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Return at most `max_points` of the points ``(x, y)``, shape [n], `x` ascending. Gaps (NaN in `y`) are preserved.

    The finite points are split into parts of equal size. The smallest and the largest value of each part remain, and
    the first and the last point.
    """
    if len(x) <= max_points:
        return x, y
    finite = np.flatnonzero(np.isfinite(y))
    gaps = int(np.count_nonzero(np.diff(finite) > 1))  # each takes a point of its own
    room = max(max_points - gaps, max_points // 2)
    chosen = finite
    if len(finite) > room:
        chosen = finite[_extremes(y[finite], room // 2 - 1)]
    before = np.concatenate([[0], np.cumsum(~np.isfinite(y))])
    breaks = np.flatnonzero(before[chosen[1:]] > before[chosen[:-1]])
    return np.insert(x[chosen], breaks + 1, x[chosen[breaks] + 1]), np.insert(y[chosen], breaks + 1, np.nan)


def _extremes(values: Floats, parts: int) -> npt.NDArray[np.intp]:
    """Return the places of the ends of `values`, and of the smallest and the largest value of each of so many parts."""
    starts = np.linspace(0, len(values), parts, endpoint=False).astype(np.intp)
    part = np.repeat(np.arange(parts), np.diff(starts, append=len(values)))
    places = [np.array([0, len(values) - 1])]
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(values == extreme.reduceat(values, starts)[part])
        places.append(hits[np.unique(part[hits], return_index=True)[1]])
    return np.unique(np.concatenate(places))


def wants_log(values: Floats) -> bool:
    """Return true if finite values span too many decades for a linear axis."""
    return bool(len(values) and (values > 0).all() and np.log10(values.max() / values.min()) >= _DECADES)


def floor_of(values: Floats) -> float:
    """Return the lower end of a logarithmic axis, chosen to exclude a few tiny outliers."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        return 0.0
    return max(float(positive.min()), float(np.quantile(positive, _LOW_QUANTILE)) / _FAR)


def spread(values: Floats, points: int) -> Floats:
    """Return at most `points` evenly spaced values for a sparkline, including the last value."""
    if len(values) <= points:
        return values
    chosen: Floats = values[np.linspace(0, len(values) - 1, points).round().astype(np.int64)]
    return chosen
