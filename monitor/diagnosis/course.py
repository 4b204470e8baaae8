"""How the gap went over the steps: where it changed, and whether by a jump or a ramp. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence import ROUNDING, Evidence, Series
from logprobe.monitor.diagnosis.measures import SIGNIFICANT, Floats, Mean, difference, from_sums
from logprobe.monitor.diagnosis.tokens import Tokens

_COLUMNS: Final = ("n", "x", "c_nn", "c_xx", "c_xn", "sequences")
_FEWEST: Final = 50  # tokens on either side of a change
_ABRUPT: Final = 3  # steps in which a jump is over
_QUIET: Final = 20  # steps of normal before a late change
_AFTER: Final = 5
_POINTS: Final = 800
_LENGTHS: Final = (0, 1, 2, 3, 6, 10, 16, 25, 40, 64, 100, 160, 250, 400)


@dataclass(frozen=True, slots=True)
class Change:
    """Where mean |d| changed for good.

    Attributes:
        step: first step after it.
        before: mean |d|.
        after: mean |d|.
        z: standard errors of the difference.
    """

    step: int
    before: Mean
    after: Mean
    z: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after.value / self.before.value if self.before.value > 0 else math.inf


def change(evidence: Evidence) -> Change | None:
    """The most significant lasting rise of |d| among tokens whose weights are those of the trainer, or of unknown age."""
    tokens = evidence.tokens
    if tokens is None:
        return None if evidence.scaled else _split(*_of_series(evidence.series))
    fresh = tokens.where(~(tokens.lag > 0))
    return _split(*_of_tokens(fresh)) if len(fresh) else None


def _of_tokens(tokens: Tokens) -> tuple[NDArray[np.int64], Floats]:
    """Steps [G] and their sums [G, columns]."""
    steps, step_N = np.unique(tokens.step, return_inverse=True)
    sequences, first, sequence_N = np.unique(tokens.sequence, return_index=True, return_inverse=True)
    n, x = np.bincount(sequence_N).astype(np.float64), np.bincount(sequence_N, np.abs(tokens.d))
    of_sequence = np.stack([n, x, n * n, x * x, x * n, np.ones(len(sequences))], axis=1)
    sums = np.zeros((len(steps), len(_COLUMNS)))
    np.add.at(sums, step_N[first], of_sequence)
    return steps, sums


def _of_series(series: Series) -> tuple[NDArray[np.int64], Floats]:
    names = ("n", "abs_d", "c_nn", "c_aa", "c_an", "compared")
    return series.step, np.nan_to_num(np.stack([series[name].astype(np.float64) for name in names], axis=1))


def _split(steps: NDArray[np.int64], sums: Floats) -> Change | None:
    before, whole = np.cumsum(sums, axis=0), sums.sum(axis=0)
    found: Change | None = None
    for place in range(1, len(steps)):
        low, high = _mean(before[place - 1]), _mean(whole - before[place - 1])
        if min(low.n, high.n) < _FEWEST:
            continue
        z = difference(high, low)
        if z > SIGNIFICANT and (found is None or z > found.z):
            found = Change(int(steps[place]), low, high, z)
    return found


def _mean(row: Floats) -> Mean:
    n, x, c_nn, c_xx, c_xn, sequences = (float(value) for value in row)
    return from_sums(n, x, c_nn=c_nn, c_xx=c_xx, c_xn=c_xn, sequences=int(sequences))


@dataclass(frozen=True, slots=True)
class Bend:
    """A lasting rise of log K3 after a quiet beginning.

    Attributes:
        step: where it began.
        ratio: of K3, median of the last steps over median before.
        z: of the difference of mean logs.
        abrupt: over within a few steps, rather than a ramp.
    """

    step: int
    ratio: float
    z: float
    abrupt: bool


def bend(series: Series) -> Bend | None:
    """The best of all jumps and ramps of log K3, if the rise is significant; None where there is none.

    A ramp starts at a step and is linear until another, then flat; a jump is one that is over in a few steps. The better one is that with
    the smaller sum of squares.
    """
    steps, y = _logs(series)
    found = [(*_best_start(y, length), length) for length in _LENGTHS if len(y) - length > _QUIET + _AFTER]
    if not found:
        return None
    _, start, length = min(found)
    rise, z = _rise(y[:start], y[start + length // 2 :])
    if z < SIGNIFICANT or rise < math.log(2):
        return None
    return Bend(int(steps[start]), math.exp(rise), z, length <= _ABRUPT)


def _logs(series: Series) -> tuple[NDArray[np.int64], Floats]:
    """Steps with a value and log K3 there; of long runs medians of blocks, so that there are at most `_POINTS`."""
    known = np.isfinite(series.k3)
    steps, y = series.step[known], np.log(np.maximum(series.k3[known], ROUNDING / 100))
    block = -(-len(y) // _POINTS)
    if block <= 1:
        return steps, y
    whole = len(y) // block * block
    return steps[:whole:block], np.median(y[:whole].reshape(-1, block), axis=1)


def _best_start(y: Floats, length: int) -> tuple[float, int]:
    """Least sum of squares of a shape that is 0 before its start, rises for `length` points, then is 1; and that start."""
    starts = np.arange(_QUIET, len(y) - _AFTER)
    shape = np.clip((np.arange(len(y)) - starts[:, None] + 1) / (length + 1), 0, 1)
    x, centred = shape - shape.mean(axis=1, keepdims=True), y - y.mean()
    squares = centred @ centred - (x @ centred) ** 2 / (x * x).sum(axis=1)
    best = int(squares.argmin())
    return float(squares[best]), int(starts[best])


def _rise(before: Floats, after: Floats) -> tuple[float, float]:
    if min(len(before), len(after)) < _AFTER:
        return 0.0, 0.0
    error = math.hypot(before.std(ddof=1) / math.sqrt(len(before)), after.std(ddof=1) / math.sqrt(len(after)))
    rise = float(np.median(after) - np.median(before))
    return rise, rise / error if error > 0 else 0.0
