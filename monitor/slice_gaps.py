"""Which slices the mismatch comes from: each one's part of Σ k3, and whether its K3 stands out from that of all the others.

Tokens of a sequence are no independent samples, so the standard error of a slice's K3 is clustered by sequence, as that of
`calibration_z` is.

Dimension: ``_G`` slices, ``_V`` sequences with a valid token.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from logprobe.monitor.metrics.sums import Floats, PairSums, divide
from logprobe.monitor.slices import Sequences, sliced

TIMES: Final = 1.5  # the K3 of all others, from which on a slice stands out
SIGMAS: Final = 4.0  # standard errors of the difference: there may be a hundred slices to look at
FEWEST: Final = 8  # sequences on either side, below which a standard error means little


def against_rest(sequences: Sequences, dimension: str, pair: str) -> pa.Table:
    """Each slice against all other sequences.

    Returns:
        One row per slice, in the order of `logprobe.monitor.slices.split`: ``slice`` (null: unknown), ``tokens`` (valid ones), ``k3_share``
        (of Σ k3 over all slices), ``times_rest`` (its K3 over that of the others), ``z`` (their difference in standard errors), and
        ``worse``: the slice stands out. Null where it cannot be said.

    Raises:
        ConfigurationError: there is no such dimension.
    """
    slices = sliced(sequences, dimension)
    sums = slices.sums.pair(pair)
    n, k3, count = sums.n, sums.tokens["sum_k3"].astype(np.float64), sums.sequences.count()
    spread = _squared_error(sums, divide(k3, n))
    rest_n, rest_k3 = n.sum() - n, k3.sum() - k3
    mean, rest = divide(k3, n), divide(rest_k3, rest_n)
    # Others are many slices: their spread about their own means is what remains when their means are alike.
    error = np.sqrt(divide(spread, n**2) + divide(spread.sum() - spread, rest_n**2))
    z, times = divide(mean - rest, error), divide(mean, rest)
    enough = (count >= FEWEST) & (count.sum() - count >= FEWEST)
    z = np.where(enough, z, np.nan)
    return pa.table(
        {
            "slice": pa.array([name for _, name in slices.names], pa.string()),
            "tokens": pa.array(n.astype(np.int64)),
            "k3_share": _nullable(divide(k3, np.full(len(k3), k3.sum()))),
            "times_rest": _nullable(times),
            "z": _nullable(z),
            "worse": pa.array((times >= TIMES) & (z >= SIGMAS), mask=np.isnan(z)),
        }
    )


def _squared_error(sums: PairSums, mean_G: Floats) -> Floats:
    """Variance of Σ k3 about its mean, clustered by sequence [G]."""
    residuals_V = sums.column("sum_k3") - mean_G[sums.sequences.index] * sums.lengths
    count = sums.sequences.count()
    return np.nan_to_num(sums.sequences.sum(residuals_V**2) * divide(count, count - 1))


def _nullable(values: Floats) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))
