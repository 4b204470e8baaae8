"""Smoothing of a line: a centred median, which neither lags behind nor is moved by a single spike."""

from __future__ import annotations

from typing import Final

import numpy as np

from logprobe.app.dashboard.data.series import Floats

LONGEST: Final = 999  # steps; beyond that a run has a level, and no trend


def centred_median(y: Floats, steps: int) -> Floats:
    """The median of the `steps` values around each one; shape [n] as `y`.

    Windows are odd (one is added to an even `steps`), end where a gap (NaN) begins, and are shorter at the ends. A gap stays a gap.
    `browser/traces.js` smooths what it has by the same rule; change both together.

    >>> centred_median(np.array([1.0, 9.0, 2.0, np.nan, 7.0]), 3).tolist()
    [5.0, 2.0, 5.5, nan, 7.0]
    """
    import polars as pl  # noqa: PLC0415 - takes longer to load than all else that a first chart needs

    known = np.isfinite(y)
    frame = pl.DataFrame({"y": y, "stretch": np.cumsum(~known)}).filter(known)
    smoothed = pl.col("y").rolling_median(steps | 1, min_samples=1, center=True).over("stretch")
    result = np.full(len(y), np.nan)
    result[known] = frame.select(smoothed)["y"].to_numpy()
    return result
