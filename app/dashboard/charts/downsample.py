"""Fewer points for a chart without losing what the eye would see: peaks, gaps and the ends.

A trace is thinned with MinMaxLTTB (Van Der Donckt et al. 2023, arXiv:2305.00332); the envelope says, bucket by bucket,
how far the values left out reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

MAX_POINTS: Final = 2000
_BUCKETS: Final = 400  # of an envelope: a few pixels each
_MIN_LTTB: Final = 4  # below that there is nothing to choose


@dataclass(frozen=True)
class Envelope:
    """Smallest and largest value per bucket of neighbouring points, at the bucket's middle."""

    x: Floats
    low: Floats
    high: Floats


def thin(x: Floats, y: Floats, *, max_points: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most `max_points` of the points ``(x, y)``, shape [n], `x` ascending; NaN in `y` is a gap and stays one.

    Unchanged when there are no more than `max_points`. First and last finite point, and extremes, are kept.
    """
    if len(x) <= max_points:
        return x, y
    finite = np.flatnonzero(np.isfinite(y))
    # Every chosen point may be followed by one gap, so only half of the room is for points when there are gaps.
    room = max_points if len(finite) == len(x) else max_points // 2
    chosen = finite[_choose(x[finite], y[finite], room)]
    return _with_gaps(x, y, chosen)


def envelope(x: Floats, y: Floats, *, max_points: int = MAX_POINTS) -> Envelope | None:
    """What `thin` left out, or None where it leaves nothing out. A bucket of gaps only is NaN."""
    if len(x) <= max_points:
        return None
    starts = np.linspace(0, len(x), _BUCKETS, endpoint=False).astype(np.int64)
    low = np.fmin.reduceat(y, starts)
    high = np.fmax.reduceat(y, starts)
    ends = np.append(starts[1:], len(x)) - 1
    return Envelope((x[starts] + x[ends]) / 2, low, high)


def _choose(x: Floats, y: Floats, room: int) -> Indices:
    if len(x) <= max(room, _MIN_LTTB):
        return np.arange(len(x))
    picked = MinMaxLTTBDownsampler().downsample(np.ascontiguousarray(x), np.ascontiguousarray(y), n_out=room)
    return np.asarray(picked, dtype=np.int64)


def _with_gaps(x: Floats, y: Floats, chosen: Indices) -> tuple[Floats, Floats]:
    """The chosen points, and one NaN wherever a gap lay between two of them."""
    gaps = np.concatenate([[0], np.cumsum(~np.isfinite(y))])
    broken = np.flatnonzero(gaps[chosen[1:]] > gaps[chosen[:-1]])
    where = chosen[broken] + 1  # a NaN's own position is good enough for a break in the line
    return np.insert(x[chosen], broken + 1, x[where]), np.insert(y[chosen], broken + 1, np.nan)
