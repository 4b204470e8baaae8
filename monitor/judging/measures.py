"""Pure statistics shared by the rules of diagnosis.

Dimensions: ``_N`` tokens, ``_S`` sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.metrics.sums import CLAMP

Floats = NDArray[np.float64]

# Standard errors: of 200 runs × 50 tests, 0.006 are false; looks at a growing run are many more.
SIGNIFICANT: Final = 5.0
# Of K3. Pure lag misses at most 0.14 of it (recorded policies 12 versions apart; simulated heavy tails: 0.12), raw
# log-probs are off by 1.7 to 2.5 of it, truncations by 10 or more.
_SECOND_ORDER: Final = 0.3


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tokens and its standard error clustered by sequence, NaN if unknown.

    >>> Mean(0.5, 0.1, 100).z
    5.0
    """

    value: float
    error: float
    n: int

    @property
    def z(self) -> float:
        """Distance from 0 in standard errors, or 0 if the error is unknown."""
        return self.value / self.error if self.error > 0 and math.isfinite(self.error) else 0.0


def from_sums(n: float, total: float, *, c_nn: float, c_xx: float, c_xn: float, sequences: int) -> Mean:
    """Return the mean Σx / Σn of sums over sequences, with the ratio estimator's error √(Σ(x − mean·n)²·S/(S−1)) / Σn.

    `c_nn`, `c_xx`, `c_xn`: sums over sequences of n², x² and x·n.

    >>> from_sums(4, 2.0, c_nn=8.0, c_xx=2.0, c_xn=4.0, sequences=2)
    Mean(value=0.5, error=0.0, n=4)
    """
    if n <= 0:
        return Mean(math.nan, math.nan, 0)
    value = total / n
    if sequences <= 1:
        return Mean(value, math.nan, int(n))
    spread = max(c_xx - 2 * value * c_xn + value * value * c_nn, 0.0)
    return Mean(value, math.sqrt(spread * sequences / (sequences - 1)) / n, int(n))


def off_one(deviation: float, z: float, k3: float) -> bool:
    """Return whether mean ρ − 1 differs from 0 beyond chance and tails. Then r is not from the sampled distribution.

    Standard errors alone are not sufficient. For lag with heavy tails, E[ρ] = 1 depends on a few tokens with an
    enormous ρ. A step without them is below 1 by ten standard errors, since the error misses them, too. K3 = mean(ρ −
    1) − mean d separates the cases. The mass that was not drawn is at most 1, but the remaining log-ratios make K3 many
    times as large. A truncation gives K3 of second order in the removed mass. Log-probs of another temperature deviate
    by more than their K3.

    >>> off_one(-0.13, -7.5, 1.8), off_one(-0.045, -75.0, 0.0019), off_one(0.07, 20.0, 0.03)
    (False, True, True)
    """
    return abs(z) > SIGNIFICANT and abs(deviation) > _SECOND_ORDER * k3


def clustered(values_N: Floats, sequence_N: NDArray[np.intp]) -> Mean:
    """Return the mean of token values with an error clustered by sequence.

    >>> clustered(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    Mean(value=2.0, error=1.0, n=4)
    """
    if not len(values_N):
        return Mean(math.nan, math.nan, 0)
    _, index_N = np.unique(sequence_N, return_inverse=True)
    x, n = np.bincount(index_N, values_N), np.bincount(index_N).astype(np.float64)
    return from_sums(
        float(n.sum()), float(x.sum()), c_nn=float(n @ n), c_xx=float(x @ x), c_xn=float(x @ n), sequences=len(n)
    )


def difference(a: Mean, b: Mean) -> float:
    """Return the excess of `a` over `b` in standard errors, or 0 if either error is unknown.

    >>> difference(Mean(2.0, 0.3, 9), Mean(1.0, 0.4, 9))
    2.0
    """
    error = math.hypot(a.error, b.error)
    return (a.value - b.value) / error if error > 0 and math.isfinite(error) else 0.0


def among(values: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the values that are among `steps`, which ascend: for few steps a tenth of the cost of `isin`."""
    if not len(steps):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(steps, values), len(steps) - 1)
    found: NDArray[np.bool_] = steps[places] == values
    return found


def k3_of(d_N: Floats) -> Floats:
    """Return K3 of each log-ratio [N]."""
    k3: Floats = np.expm1(np.clip(d_N, -CLAMP, CLAMP)) - d_N
    return k3


def correlation(x_N: Floats, y_N: Floats) -> float:
    """Return the Pearson correlation, NaN if one side does not vary."""
    if len(x_N) < 2 or not (np.ptp(x_N) > 0 and np.ptp(y_N) > 0):  # noqa: PLR2004 - two points make a line
        return math.nan
    return float(np.corrcoef(x_N, y_N)[0, 1])


def slope(x_N: Floats, y_N: Floats) -> float:
    """Return the least-squares slope of y on x, NaN if x does not vary.

    >>> slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    2.0
    """
    x = x_N - x_N.mean() if len(x_N) else x_N
    spread = float(x @ x)
    return float(x @ y_N) / spread if spread > 0 else math.nan


def logit(logprob_N: Floats) -> Floats:
    """Return log(p / (1 − p)) for log-probabilities log p, infinite for p = 1.

    >>> logit(np.log([0.5, 0.75])).round(6).tolist()
    [0.0, 1.098612]
    """
    with np.errstate(divide="ignore"):
        odds: Floats = logprob_N - np.log(-np.expm1(np.minimum(logprob_N, 0.0)))
    return odds
