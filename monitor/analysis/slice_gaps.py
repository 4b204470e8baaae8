"""Which slices the mismatch comes from: each one's part of Σ k3, and whether its K3 stands out from that of all the others.

Tokens of a sequence are no independent samples, so the standard error of a slice's K3 is clustered by sequence, as that of
`calibration_z` is.

Dimension: ``_G`` slices, ``_V`` sequences with a valid token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from logprobe.monitor.analysis.slices import Sequences, sliced
from logprobe.monitor.metrics.sums import Floats, PairSums, divide

TIMES: Final = 1.5  # the K3 of all others, from which on a slice stands out
SIGMAS: Final = 4.0  # standard errors of the difference: there may be a hundred slices to look at
FEWEST: Final = 8  # sequences on either side, below which a standard error means little


def against_rest(sequences: Sequences, dimension: str, pair: str) -> pa.Table:
    """Each slice against all other sequences.

    Returns:
        One row per slice, in the order of `logprobe.monitor.analysis.slices.split`: ``slice`` (null: unknown), ``tokens`` (valid ones), ``k3_share``
        (of Σ k3 over all slices), ``times_rest`` (its K3 over that of the others), ``z`` (their difference in standard errors), and
        ``worse``: the slice stands out. Null where it cannot be said.

    Raises:
        ConfigurationError: there is no such dimension.
    """
    slices = sliced(sequences, dimension)
    own = _moments(slices.sums.pair(pair))
    rest = _Moments(*(total.sum() - total for total in vars(own).values()))
    times = divide(own.mean, rest.mean)
    z = divide(own.mean - rest.mean, np.hypot(own.error, rest.error))
    return pa.table(
        {
            "slice": pa.array([name for _, name in slices.names], pa.string()),
            "tokens": pa.array(own.n.astype(np.int64)),
            "k3_share": _nullable(divide(own.k3, own.k3 + rest.k3)),
            "times_rest": _nullable(times),
            "z": _nullable(z),
            "worse": pa.array((times >= TIMES) & (z >= SIGMAS), mask=np.isnan(z)),
        }
    )


@dataclass(frozen=True)
class _Moments:
    """Sums over sequences [G]: how many, their valid tokens n, their Σ k3, and the products of the two."""

    count: Floats
    n: Floats
    k3: Floats
    nn: Floats
    kn: Floats
    kk: Floats

    @property
    def mean(self) -> Floats:
        """K3: the token mean."""
        return divide(self.k3, self.n)

    @property
    def error(self) -> Floats:
        """Standard error of the mean, clustered by sequence; NaN for fewer than `FEWEST` of them."""
        residual = self.kk - 2 * self.mean * self.kn + self.mean**2 * self.nn
        variance = np.maximum(residual, 0.0) * divide(self.count, self.count - 1)
        return np.where(self.count >= FEWEST, divide(np.sqrt(variance), self.n), np.nan)


def _moments(sums: PairSums) -> _Moments:
    n_V, k3_V, total = sums.lengths, sums.column("sum_k3"), sums.sequences.sum
    return _Moments(
        sums.sequences.count(), total(n_V), total(k3_V), total(n_V * n_V), total(k3_V * n_V), total(k3_V * k3_V)
    )


def _nullable(values: Floats) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))
