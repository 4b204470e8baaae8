"""Gaps between two scorings of the same tokens, with intervals by sequence. Pure.

Dimensions: ``_S`` sequences. Tokens of a sequence are not independent, so sequences are what is resampled.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.proof.sample import Floats, Scores

FEWEST: Final = 4  # sequences; an interval of fewer says nothing
_RESAMPLES: Final = 1000
_CLAMP: Final = 20.0  # of the exponential, as K3 is defined
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True)
class Sums:
    """Per sequence: `n` tokens that both scored, `k3` and `abs_diff` their sums, `broken` tokens that one of the two lacks."""

    n_S: Floats
    k3_S: Floats
    abs_diff_S: Floats
    broken_S: Floats


@dataclass(frozen=True, slots=True)
class Gap:
    """How far `b` is from `a`: d = b − a per token.

    Attributes:
        a: name of the scorer that is taken for the sampling policy.
        b: name of the other.
        k3: mean of e^d − d − 1.
        abs_diff_mean: mean of the absolute d.
        interval: 95 % of `k3`, by sequence; None: too few sequences.
        tokens: that both scored.
        broken: share of tokens to which one of the two gives no finite log-prob.
    """

    a: str
    b: str
    k3: float
    abs_diff_mean: float
    interval: tuple[float, float] | None
    tokens: int
    broken: float

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "interval": self.interval and list(self.interval)}


def sums(a: Scores, b: Scores) -> Sums | None:
    """What `gap` and `removed` are made of, 0 for sequences that one of the two lacks; None where no token was scored by both."""
    rows = [_of_sequence(x, y) for x, y in zip(a, b, strict=True)]
    if not any(row[0] + row[3] for row in rows):
        return None
    return Sums(*np.array(rows, np.float64).T)


def _of_sequence(a: Floats | None, b: Floats | None) -> tuple[float, float, float, float]:
    if a is None or b is None:
        return 0.0, 0.0, 0.0, 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    d = (b - a)[finite]
    k3 = np.expm1(np.minimum(d, _CLAMP)) - d
    return float(finite.sum()), float(k3.sum()), float(np.abs(d).sum()), float((~finite).sum())


def gap(name_a: str, a: Scores, name_b: str, b: Scores) -> Gap | None:
    """The gap between two scorings; None where there is no token to compare."""
    of = sums(a, b)
    if of is None:
        return None
    n, broken = float(of.n_S.sum()), float(of.broken_S.sum())
    return Gap(
        name_a,
        name_b,
        k3=float(of.k3_S.sum() / n) if n else math.inf,
        abs_diff_mean=float(of.abs_diff_S.sum() / n) if n else math.inf,
        interval=_resampled(of.k3_S, of.n_S),
        tokens=int(n),
        broken=broken / (n + broken),
    )


def _resampled(x_S: Floats, n_S: Floats) -> tuple[float, float] | None:
    """95 % interval of Σx/Σn by the bootstrap over sequences, always of the same seed."""
    used = n_S > 0
    if used.sum() < FEWEST:
        return None
    x, n = x_S[used], n_S[used]
    weights = np.random.default_rng(0).multinomial(len(x), np.full(len(x), 1 / len(x)), _RESAMPLES)
    low, high = np.quantile((weights @ x) / (weights @ n), [_TAIL, 1 - _TAIL])
    return float(low), float(high)


def removed(base: Sums, arm: Sums) -> tuple[float, tuple[float, float] | None]:
    """Share of the K3 of `base` that `arm` no longer has, and its 95 % interval: paired by sequence, Student's t on the ratio.

    Sequences that one of the two lacks are left out. Broken tokens count as the largest K3 of a clamped token would, lest
    a gap vanish by tokens that cannot be compared.
    """
    both_S = (arm.n_S + arm.broken_S > 0) & (base.n_S + base.broken_S > 0)
    a_S, b_S = _mean_parts(arm, both_S), _mean_parts(base, both_S)
    total = float(b_S.sum())
    if not total > 0:
        return 0.0, None
    share = 1 - float(a_S.sum()) / total
    if len(b_S) < FEWEST:
        return share, None
    residual_S = a_S - (1 - share) * b_S
    error = float(residual_S.std(ddof=1)) * math.sqrt(len(b_S)) / total
    width = student(len(b_S) - 1) * error
    return share, (share - width, share + width)


def _mean_parts(of: Sums, chosen_S: NDArray[np.bool_]) -> Floats:
    """The chosen sequences' parts of their mean K3, in units that both arms share."""
    tokens = float((of.n_S + of.broken_S)[chosen_S].sum())
    parts: Floats = (of.k3_S + _CLAMP * of.broken_S)[chosen_S] / max(tokens, 1.0)
    return parts


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t (Abramowitz and Stegun, 26.7.5); 1 % off at 4 degrees of freedom, less beyond.

    >>> round(student(10), 2), round(student(30), 2)
    (2.23, 2.04)
    """
    z = statistics.NormalDist().inv_cdf(1 - _TAIL)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
