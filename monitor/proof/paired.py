"""Mismatch between two scorings of the same tokens, with intervals by sequence. Pure.

Dimensions: ``_S`` sequences. Tokens of a sequence are not independent, so sequences are resampled.

`Cost` has the speed and memory of an engine. `speed` compares an arm with the configured engine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.proof.sample import Floats, Scores

FEWEST: Final = 4  # sequences; an interval of fewer says nothing
_RESAMPLES: Final = 1000
_CLAMP: Final = 20.0  # of the exponential, as K3 is defined
_TAIL: Final = 0.025
OFF: Final = 1e-3  # absolute d that float32 implementations of a small model never reach
_FAR: Final = 30.0  # times the median: rounding reaches 10 to 20
_RATIOS: Final = (math.log(0.9), math.log(1.1))
LEFT: Final = 0.05  # of K3 and of the mean absolute d that a change may leave and still be what makes the gap
_FOLLOWS: Final = 0.3  # correlation of what is left with what was changed; noise has none


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums per sequence. `n`: tokens scored by both. `k3`, `abs_diff`: sums over these. `broken`: tokens that one
    scorer lacks.
    """

    n_S: Floats
    k3_S: Floats
    abs_diff_S: Floats
    broken_S: Floats


@dataclass(frozen=True, slots=True)
class Gap:
    """Mismatch between `a` and `b`, with d = b − a per token.

    Attributes:
        a: name of the scorer in the role of the sampling policy.
        b: name of the other scorer.
        k3: mean of e^d − d − 1.
        abs_diff_mean: mean of the absolute d.
        interval: 95 % interval of `k3` by sequence, or None for too few sequences.
        tokens: number of tokens scored by both.
        broken: share of tokens without a finite log-prob from one of the two.
        p50: median of the absolute d. `p95` and `p99` are further quantiles.
        largest: largest absolute d.
        outside: share of ratios e^d outside [0.9, 1.1].
        off: number of tokens with an absolute d above 1e-3.
        tail: number of tokens of `off` with an absolute d far above that of the other tokens.
        unequal: number of tokens whose log-probs differ in a bit of float32.
        first_unequal: sequence and response position of the first unequal token, or None if all are equal.
        sequences_off: places of the sequences with tokens of the tail, or of `off` without a tail.
    """

    a: str
    b: str
    k3: float
    abs_diff_mean: float
    interval: tuple[float, float] | None
    tokens: int
    broken: float
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    largest: float = 0.0
    outside: float = 0.0
    off: int = 0
    tail: int = 0
    sequences_off: tuple[int, ...] = ()
    unequal: int = 0
    first_unequal: tuple[int, int] | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form."""
        interval = self.interval and list(self.interval)
        first = self.first_unequal and list(self.first_unequal)
        return {**asdict(self), "interval": interval, "sequences_off": list(self.sequences_off), "first_unequal": first}


def sums(a: Scores, b: Scores) -> Sums | None:
    """Return the sums for `gap` and `removed`, or None without a token scored by both. Sums of missing sequences are
    0.
    """
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
    """Return the mismatch between two scorings, or None without a token to compare."""
    of = sums(a, b)
    if of is None:
        return None
    n, broken = float(of.n_S.sum()), float(of.broken_S.sum())
    signed = np.concatenate([d[np.isfinite(d)] for d in differences(a, b)])
    sizes = [np.abs(d) for d in differences(a, b)]
    every = np.abs(signed)
    p50, p95, p99, largest = np.quantile(every, [0.5, 0.95, 0.99, 1.0]).tolist() if n else [math.inf] * 4
    far = max(OFF, _FAR * p50)
    tail = int((every > far).sum())
    limit = far if tail else OFF
    unequal = _unequal(a, b)
    return Gap(
        name_a,
        name_b,
        k3=float(of.k3_S.sum() / n) if n else math.inf,
        abs_diff_mean=float(of.abs_diff_S.sum() / n) if n else math.inf,
        interval=_resampled(of.k3_S, of.n_S),
        tokens=int(n),
        broken=broken / (n + broken),
        p50=p50,
        p95=p95,
        p99=p99,
        largest=largest,
        outside=float(np.mean((signed < _RATIOS[0]) | (signed > _RATIOS[1]))) if n else 1.0,
        off=int((every > OFF).sum()),
        tail=tail,
        sequences_off=tuple(at for at, size in enumerate(sizes) if bool((size > limit).any())),
        unequal=len(unequal),
        first_unequal=next(iter(unequal), None),
    )


def _unequal(a: Scores, b: Scores) -> list[tuple[int, int]]:
    """Return the places of tokens that only one side has or whose log-probs differ in float32."""
    return [
        (at, int(token))
        for at, (x, y) in enumerate(zip(a, b, strict=True))
        if x is not None and y is not None
        for token in np.flatnonzero(~((x.astype(np.float32) == y.astype(np.float32)) | (np.isnan(x) & np.isnan(y))))
    ]


def differences(a: Scores, b: Scores) -> list[Floats]:
    """Return d = b − a per token of each sequence, NaN for a non-finite log-prob, empty for a missing sequence."""
    per_sequence = []
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            per_sequence.append(np.empty(0))
            continue
        with np.errstate(invalid="ignore"):
            d = y - x
        per_sequence.append(np.where(np.isfinite(x) & np.isfinite(y), d, np.nan))
    return per_sequence


def _resampled(x_S: Floats, n_S: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of Σx/Σn by the bootstrap over sequences, with a fixed seed."""
    used = n_S > 0
    if used.sum() < FEWEST:
        return None
    x, n = x_S[used], n_S[used]
    weights = np.random.default_rng(0).multinomial(len(x), np.full(len(x), 1 / len(x)), _RESAMPLES)
    low, high = np.quantile((weights @ x) / (weights @ n), [_TAIL, 1 - _TAIL])
    return float(low), float(high)


def removed(base: Sums, arm: Sums) -> tuple[float, tuple[float, float] | None]:
    """Return the share of the K3 of `base` that `arm` removes, with its 95 % interval (Student's t, paired by
    sequence).

    Sequences missing in one of the two are omitted. Broken tokens count with the largest K3 of a clamped token, so that
    incomparable tokens cannot hide a mismatch.
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


def restores(base: Sums, arm: Sums, base_d: Sequence[Floats], arm_d: Sequence[Floats], floor: float) -> bool:
    """Return whether a change explains a mismatch. The residual must be noise and small in K3 and mean absolute d.

    A change that merely resembles the fault can halve K3, which a few tokens dominate. Its residual then depends on the
    change. Below `floor` this dependence is not tested.

    Args:
        base: sums of the original mismatch.
        arm: sums of the mismatch with the change.
        base_d: d of `base` per sequence.
        arm_d: d of `arm` per sequence.
        floor: K3 that counts as agreement.
    """
    both_S = (arm.n_S + arm.broken_S > 0) & (base.n_S + base.broken_S > 0)
    before, after = (float(_mean_parts(of, both_S).sum()) for of in (base, arm))
    if not before > 0 or after > LEFT * before or (arm.broken_S > base.broken_S).any():
        return False
    d, left = (
        np.concatenate([d_of_sequences[at] for at in np.flatnonzero(both_S)]) for d_of_sequences in (base_d, arm_d)
    )
    both_finite = np.isfinite(d) & np.isfinite(left)
    d, left = d[both_finite], left[both_finite]
    if float(np.abs(left).mean()) > LEFT * float(np.abs(d).mean()):
        return False
    return after <= floor or not _follows(left, d - left)


def _follows(left_N: Floats, change_N: Floats) -> bool:
    """Return whether the remaining mismatch depends significantly on the change."""
    if not (left_N.std() > 0 and change_N.std() > 0):
        return False
    correlation = float(np.corrcoef(left_N, change_N)[0, 1])
    return abs(correlation) > max(_FOLLOWS, 4 / math.sqrt(len(left_N)))


def _mean_parts(of: Sums, chosen_S: NDArray[np.bool_]) -> Floats:
    """Return the chosen sequences' parts of their mean K3, in a unit common to both arms."""
    tokens = float((of.n_S + of.broken_S)[chosen_S].sum())
    parts: Floats = (of.k3_S + _CLAMP * of.broken_S)[chosen_S] / max(tokens, 1.0)
    return parts


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (Abramowitz and Stegun, 26.7.5). The error is 1 % at 4 degrees of
    freedom and smaller above.

    >>> round(student(10), 2), round(student(30), 2)
    (2.23, 2.04)
    """
    z = statistics.NormalDist().inv_cdf(1 - _TAIL)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an engine. `rates`: tokens/s of rounds over the sample. `room`: tokens in its KV cache, or None."""

    rates: tuple[float, ...] = ()
    kv_tokens: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Mean rate of the rounds, averaged by time."""
        return statistics.harmonic_mean(self.rates) if self.rates else None


UNMEASURED: Final = Cost()


def speed(arm: Cost, baselines: Sequence[Cost]) -> tuple[float, float, float] | None:
    """Return the ratio of an arm's speed to the baselines' with its 95 % interval, or None for fewer than two rounds.

    Rounds of one engine vary less than engines do, so the interval includes the difference between two starts.
    """
    of_starts = [[math.log(rate) for rate in cost.rates] for cost in baselines if len(cost.rates) > 1]
    own = [math.log(rate) for rate in arm.rates]
    if len(own) < 2 or not of_starts:  # noqa: PLR2004 - no variance
        return None
    means = [statistics.fmean(logs) for logs in of_starts]
    between = statistics.variance(means) if len(means) > 1 else 0.0
    within = sum(statistics.variance(logs) / len(logs) for logs in of_starts) / len(of_starts) ** 2
    error = math.sqrt(statistics.variance(own) / len(own) + within + between * (1 + 1 / len(means)))
    width = student(max(len(own) - 1, 2)) * error
    ratio = statistics.fmean(own) - statistics.fmean(means)
    return math.exp(ratio), math.exp(ratio - width), math.exp(ratio + width)
