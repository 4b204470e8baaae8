"""Fewer points for a chart without losing what the eye would see: peaks, gaps and the ends.

A trace is thinned with MinMaxLTTB (Van Der Donckt et al. 2023, arXiv:2305.00332); the envelope says, bucket by bucket,
how far the values left out reached. What the reader zoomed to gets nearly all of the room, what lies around it the
rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Window = tuple[float, float]

MAX_POINTS: Final = 2000
_BUCKETS: Final = 400  # of an envelope: a few pixels each
_MIN_LTTB: Final = 4  # below that there is nothing to choose
_AROUND: Final = 0.05  # share of the points that either side of a window gets


@dataclass(frozen=True)
class Envelope:
    """Smallest and largest value per bucket of neighbouring points, at the bucket's middle."""

    x: Floats
    low: Floats
    high: Floats


def thin(x: Floats, y: Floats, window: Window | None = None, *, max_points: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most `max_points` of the points ``(x, y)``, shape [n], `x` ascending; NaN in `y` is a gap and stays one.

    Unchanged when there are no more than `max_points`. First and last finite point, and extremes, are kept; so is every
    point of `window` (lowest and highest x of interest) when there is room for it.
    """
    if len(x) <= max_points:
        return x, y
    finite = np.flatnonzero(np.isfinite(y))
    parts = _parts(x[finite], window, _room(finite, max_points))
    chosen = [finite[start:end][_choose(x[finite[start:end]], y[finite[start:end]], n)] for start, end, n in parts]
    return _with_gaps(x, y, np.concatenate([*chosen, np.empty(0, dtype=np.int64)]))


def envelope(x: Floats, y: Floats, window: Window | None = None, *, max_points: int = MAX_POINTS) -> Envelope | None:
    """What `thin` left out, or None where it leaves nothing out. A bucket is NaN where all is gap, and where all is
    drawn."""
    if len(x) <= max_points:
        return None
    starts = np.concatenate([_buckets(start, end, room) for start, end, room in _parts(x, window, _BUCKETS)])
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    for start, end, room in _parts(x, window, _room(np.flatnonzero(np.isfinite(y)), max_points)):
        if end - start <= room:
            drawn = (starts >= start) & (starts < end)
            low[drawn] = high[drawn] = np.nan
    ends = np.append(starts[1:], len(x)) - 1
    return Envelope((x[starts] + x[ends]) / 2, low, high)


def _room(finite: Indices, max_points: int) -> int:
    """How many points may be chosen: a gap between two of them takes its own point."""
    gaps = int(np.count_nonzero(np.diff(finite) > 1))
    return max(max_points - gaps, max_points // 2)


def _parts(x: Floats, window: Window | None, room: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and room of what lies before, within and after the window; of everything, where there is none."""
    if window is None:
        yield 0, len(x), room
        return
    first, last = int(np.searchsorted(x, window[0])), int(np.searchsorted(x, window[1], side="right"))
    side = max(_MIN_LTTB, int(_AROUND * room))
    before, after = min(first, side), min(len(x) - last, side)
    parts = ((0, first, before), (first, last, room - before - after), (last, len(x), after))
    yield from (part for part in parts if part[1] > part[0])


def _buckets(start: int, end: int, room: int) -> Indices:
    return start + np.linspace(0, end - start, min(room, end - start), endpoint=False).astype(np.int64)


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
