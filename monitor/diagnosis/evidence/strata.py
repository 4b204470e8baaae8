"""The gap step by step, by what may tell causes apart: requests that differ in one thing are compared within the same
steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.measures import Floats, Mean, from_sums

_PAIRED: Final = 8  # steps with both sides of a contrast
_HARDLY: Final = (
    0.05  # of the tokens: too few to stand for all, as the first steps of a trainer that is always one version ahead
)


def of_one_lag(lag: Floats, tokens: Floats) -> NDArray[np.bool_]:
    """Rows of one weight lag, as requests are compared: 0 or unknown, or, where hardly any tokens have that, the lag of
    most tokens."""
    own: NDArray[np.bool_] = ~(lag > 0)
    if own.all() or tokens[own].sum() > _HARDLY * tokens.sum():
        return own
    lags, index = np.unique(lag[~own], return_inverse=True)
    most: NDArray[np.bool_] = lag == lags[np.bincount(index, tokens[~own]).argmax()]
    return most


@dataclass(frozen=True, eq=False)
class Strata:
    """The gap of some steps, by step and by what may tell causes apart; arrays [R].

    Attributes:
        step: optimizer step.
        lag: in versions; NaN where unknown.
        cached: 1 with cached prompt tokens, 0 without, −1 where unknown.
        in_flight: 1 sampled by several weight versions, 0 by one, −1 where unknown.
        replica: name, or null.
        version: of the weights that sampled; of a label without a number its place; NaN where unknown.
        sequences: how many.
        tokens: how many.
        sum_k3: of their K3.
        sum_abs_d: of their |d|.
        c_nn: sum over sequences of n².
        c_aa: of (Σ|d|)².
        c_an: of Σ|d|·n.
    """

    step: NDArray[np.int64]
    lag: Floats
    cached: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    replica: NDArray[np.object_]
    version: Floats
    sequences: Floats
    tokens: Floats
    sum_k3: Floats
    sum_abs_d: Floats
    c_nn: Floats
    c_aa: Floats
    c_an: Floats

    def where(self, keep: NDArray[np.bool_]) -> Strata:
        """Some of them."""
        return Strata(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})

    @cached_property
    def alike(self) -> Strata:
        """Those of one weight lag, see `of_one_lag`."""
        return self.where(of_one_lag(self.lag, self.tokens))

    def within(self, steps: NDArray[np.int64]) -> Strata:
        """Those of some steps."""
        return self.where(np.isin(self.step, steps))

    def by_step(self, steps: NDArray[np.int64], sums: str = "sum_k3") -> Floats:
        """Mean of K3, or of what else is summed, of each of these steps [G], ascending, all of which are there."""
        some = self.within(steps)
        index = np.searchsorted(steps, some.step)
        rates: Floats = np.bincount(index, getattr(some, sums)) / np.bincount(index, some.tokens)
        return rates

    def totals(self) -> tuple[NDArray[np.int64], Floats]:
        """Steps [G], ascending, and sums of each: n, |d|, n², |d|², |d|·n, sequences [G, 6]."""
        steps, index = np.unique(self.step, return_inverse=True)
        columns = (self.tokens, self.sum_abs_d, self.c_nn, self.c_aa, self.c_an, self.sequences)
        return steps, np.stack([np.bincount(index, column, len(steps)) for column in columns], axis=1)

    @property
    def n(self) -> int:
        """Tokens."""
        return int(self.tokens.sum())

    @property
    def k3(self) -> float:
        """Mean K3; NaN without a token."""
        return float(self.sum_k3.sum()) / float(self.tokens.sum()) if self.n else math.nan

    @property
    def abs_d(self) -> Mean:
        """Mean |d|, error clustered by sequence."""
        sums = {"c_nn": self.c_nn.sum(), "c_xx": self.c_aa.sum(), "c_xn": self.c_an.sum()}
        return from_sums(
            float(self.tokens.sum()),
            float(self.sum_abs_d.sum()),
            sequences=int(self.sequences.sum()),
            **{name: float(value) for name, value in sums.items()},
        )


@dataclass(frozen=True, slots=True)
class Contrast:
    """By how much some requests are above others of the same steps.

    Attributes:
        value: difference of K3, relative to that of the others; NaN where no step has both.
        z: standard errors of the difference over steps: of K3 or of |d|, whichever is clearer. A few tokens make most
            of K3 where tails are heavy, and much less of |d|.
        steps: with both sides.
    """

    value: float
    z: float
    steps: int


def contrast(worse: Strata, better: Strata) -> Contrast:
    """Compares two groups of requests step by step."""
    steps = np.intersect1d(worse.step, better.step)
    if len(steps) < _PAIRED:
        return Contrast(math.nan, 0.0, 0)
    over = {name: _over(worse, better, steps, name) for name in ("sum_k3", "sum_abs_d")}
    if any(mean is None for mean in over.values()):
        return Contrast(math.nan, 0.0, 0)
    means = [mean for mean in over.values() if mean is not None]
    return Contrast(means[0].value, max(mean.z for mean in means), len(steps))


def _over(worse: Strata, better: Strata, steps: NDArray[np.int64], sums: str) -> Mean | None:
    high, low = worse.by_step(steps, sums), better.by_step(steps, sums)
    if not low.mean() > 0:
        return None
    over = (high - low) / low.mean()
    return Mean(float(over.mean()), float(over.std(ddof=1)) / math.sqrt(len(over)), len(over))


def rise_of(strata: Strata, step: int) -> Mean:
    """Mean |d| from a step on over that before, less 1, with its standard error; NaN where either side has no token."""
    before, after = strata.where(strata.step < step).abs_d, strata.where(strata.step >= step).abs_d
    if not (before.n and after.n and before.value > 0):
        return Mean(math.nan, math.nan, 0)
    ratio = after.value / before.value
    error = ratio * math.hypot(after.error / after.value, before.error / before.value) if after.value > 0 else math.nan
    return Mean(ratio - 1, error, min(before.n, after.n))
