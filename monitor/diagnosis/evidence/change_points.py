"""How the gap went over the steps: where it changed, and whether by a jump or a ramp. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.evidence import LEAST, ROUNDING, Evidence, Series
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, Floats, Mean, from_sums
from logprobe.monitor.diagnosis.evidence.once import once
from logprobe.monitor.diagnosis.evidence.strata import Strata
from logprobe.monitor.diagnosis.evidence.tokens import Tokens

_COLUMNS: Final = ("n", "x", "c_nn", "c_xx", "c_xn", "sequences")
_FEWEST: Final = 50  # tokens on either side of a change
_SIDE: Final = 20  # steps on either side, of runs that have so many on both: a quiet step or an odd one is no change
_CLUSTERED: Final = (
    2 * _SIDE
)  # steps from which on errors are clustered by step: what moves a whole step moves all of its sequences
_CLEARER: Final = 1.3  # times the standard errors, before a rise that ended is preferred to one that lasts
_WINDOWS: Final = 64  # between whose ends a change is looked for: finer ones cost the square and tell no more
_ABRUPT: Final = 3  # steps in which a jump is over
_QUIET: Final = 20  # steps of normal before a late change
_AFTER: Final = 5  # steps or blocks, of which there is a median and an error
_POINTS: Final = 250  # of a curve that shapes are fitted to
TOLD: Final = 1.0  # log-likelihood ratio from which one of two shapes is the better one
_RISING: Final = 10  # steps of a rise from which its shape is told
_STARTS: Final = 60  # tried
_POWERS: Final = (0.0, 0.5, 1.0, 1.5, 2.0)  # of the updates missed: K3 grows by at most their square
_LEVELS_OFF: Final = (1.0, 0.75, 0.5)  # of what follows its start: where a drift ends
_SIZES: Final = tuple(np.geomspace(3e-2, 1e3, 37).tolist())  # of what one missed update adds, over the noise
_LENGTHS: Final = (0, 1, 2, 3, 6, 10, 16, 25, 40, 64, 100, 160)  # points of a rise, each about 1.6 times the one before
# Correlation from one value to the next, at most: nearer to 1 a short series would tell nothing.
_MEMORY: Final = 0.9  # of what is new in a value
_MEMORY_OF_ERROR: Final = 0.95


@dataclass(frozen=True, slots=True)
class Change:
    """Where mean |d| rose.

    Attributes:
        step: first step after it.
        until: last step of it; None: it lasts.
        before: mean |d| of all other steps.
        after: mean |d| from `step` to `until`.
        z: standard errors of the difference.
    """

    step: int
    until: int | None
    before: Mean
    after: Mean
    z: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after.value / self.before.value if self.before.value > 0 else math.inf


def change(evidence: Evidence) -> Change | None:
    """The most significant rise of |d| among tokens of one weight lag: of the trainer's weights or of unknown age, if
    there are some."""
    tokens = evidence.tokens
    if tokens is None:
        own = evidence.own
        return None if evidence.scaled else _split(*(_of_series(evidence.series) if own is None else own.totals()))
    return _risen(tokens.alike)


def agreed_before(evidence: Evidence, risen: Change) -> bool:
    """Whether both sides computed the same until then, which also says that each update had arrived."""
    before = evidence.series.k3[evidence.series.step < risen.step]
    return risen.until is None and len(before) > 1 and float(np.nanmedian(before)) < ROUNDING


def beginning(evidence: Evidence, risen: Change) -> int:
    """First step of a rise: where rounding ends, if the gap was rounding before; else where K3 began to grow, or its
    most significant step."""
    earlier = (evidence.series.step < risen.step) & (evidence.series.k3 < ROUNDING)
    if evidence.scaled or not earlier.any():
        grown = evidence.growth.since_step
        return risen.step if grown is None or risen.until is not None else min(risen.step, grown)
    after = evidence.series.step > evidence.series.step[earlier].max()
    return int(evidence.series.step[after][0])


@once
def _risen(tokens: Tokens) -> Change | None:
    return _split(*_of_tokens(tokens)) if len(tokens) else None


def _of_tokens(tokens: Tokens) -> tuple[NDArray[np.int64], Floats]:
    """Steps [G] and their sums [G, columns]."""
    steps, step_N = np.unique(tokens.step, return_inverse=True)
    sequences, first, sequence_N = np.unique(tokens.sequence, return_index=True, return_inverse=True)
    n, x = np.bincount(sequence_N).astype(np.float64), np.bincount(sequence_N, np.abs(tokens.d))
    of_sequence = np.stack([n, x, n * n, x * x, x * n, np.ones(len(sequences))], axis=1)
    of_step = step_N[first]
    return steps, np.stack([np.bincount(of_step, column, len(steps)) for column in of_sequence.T], axis=1)


def _of_series(series: Series) -> tuple[NDArray[np.int64], Floats]:
    names = ("n", "abs_d", "c_nn", "c_aa", "c_an", "compared")
    return series.step, np.nan_to_num(np.stack([series[name].astype(np.float64) for name in names], axis=1))


def shifted_since(series: Series, sign: float) -> int | None:
    """First step from which on mean ρ lies higher (sign 1) or lower (−1) than before; the first of all where it always
    did."""
    names = ("n", "ratio_m1", "c_nn", "c_qq", "c_qn", "compared")
    signs = np.array([1, sign, 1, 1, sign, 1])
    sums = np.nan_to_num(np.stack([series[name].astype(np.float64) for name in names], axis=1)) * signs
    split = _split(series.step, sums)
    if split is not None and split.until is None:
        return split.step
    return int(series.step[0]) if len(series) else None


def _split(steps: NDArray[np.int64], sums: Floats) -> Change | None:
    """The most significant rise that lasts to the end, or a window of steps that is much more so."""
    if len(steps) >= _CLUSTERED:
        n, x = sums[:, 0], sums[:, 1]
        sums = np.stack([n, x, n * n, x * x, x * n, (n > 0).astype(np.float64)], axis=1)
    before = np.concatenate([np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)])
    starts, ends = np.arange(1, len(steps)), np.full(max(len(steps) - 1, 0), len(steps))
    lasting = _best(steps, before, starts, ends)
    edges = np.unique(np.linspace(0, len(steps), min(len(steps), _WINDOWS) + 1).astype(np.int64))
    first, second = np.triu_indices(len(edges), 1)
    window = _best(steps, before, edges[first], edges[second])
    return window if window and (lasting is None or window.z > _CLEARER * lasting.z) else lasting


def _best(
    steps: NDArray[np.int64], before: Floats, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Change | None:
    """Of the windows [start, end), that which exceeds all other steps by most standard errors."""
    inside = before[ends] - before[starts]
    outside = before[-1] - inside
    with np.errstate(divide="ignore", invalid="ignore"):
        (high, high_error), (low, low_error) = _means(inside), _means(outside)
        z = (high - low) / np.hypot(high_error, low_error)
    few, side = (inside[:, 0] < _FEWEST) | (outside[:, 0] < _FEWEST), _SIDE if len(steps) >= _CLUSTERED else 1
    z[~np.isfinite(z) | few | (ends - starts < side) | (len(steps) - (ends - starts) < side)] = 0.0
    if not len(z) or z.max() <= SIGNIFICANT:
        return None
    best = int(z.argmax())
    end = int(ends[best])
    return Change(
        step=int(steps[starts[best]]),
        until=int(steps[end - 1]) if end < len(steps) else None,
        before=_mean(outside[best]),
        after=_mean(inside[best]),
        z=float(z[best]),
    )


def _means(rows: Floats) -> tuple[Floats, Floats]:
    """`measures.from_sums` for many rows of `_COLUMNS`: means and their errors."""
    n, x, c_nn, c_xx, c_xn, sequences = rows.T
    value = x / n
    spread = np.maximum(c_xx - 2 * value * c_xn + value * value * c_nn, 0.0)
    return value, np.sqrt(spread * sequences / (sequences - 1)) / n


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


@once
def bend(series: Series) -> Bend | None:
    """The best of all jumps and ramps of log K3, if the rise is significant; None where there is none.

    A ramp starts at a step and is linear until another, then flat; a jump is one that is over in a few steps. The
    better one is that with the smaller sum of squares.
    """
    return _bend(*_logs(series))


def _bend(steps: NDArray[np.int64], y: Floats) -> Bend | None:
    starts = [(*_best_start(y, length), length) for length in _LENGTHS if len(y) - length > _QUIET + _AFTER]
    if not starts:
        return None
    _, start, length = min(starts)
    rise, z = _rise(y[:start], y[start + length // 2 :])
    if z < SIGNIFICANT or rise < math.log(2):
        return None
    lasted = int(steps[min(start + length, len(steps) - 1)] - steps[start])
    return Bend(int(steps[start]), math.exp(rise), z, lasted <= _ABRUPT)


def stays_level(evidence: Evidence) -> bool:
    """Whether K3 of tokens of one lag jumped once and has not moved since: what never arrives falls behind further with
    every update."""
    own = evidence.own
    steps, y = _logs_of(evidence.series if own is None else own)
    jump = _bend(steps, y)
    if jump is None or not jump.abrupt:
        return False
    after = y[steps >= jump.step]
    half = len(after) // 2
    return half >= _AFTER and _rise(after[:half], after[half:])[1] < SIGNIFICANT / 2


def pace(evidence: Evidence) -> float | None:
    """Log-likelihood ratio of policies that drift apart over updates that do not arrive, by how K3 of tokens of one lag
    rises; None: too few steps.

    A drift multiplies K3 (log K3 rises along a line, and may level off). Weights that stay behind add to it from one
    step to the next as a power of the updates missed, at most the second: log K3 rises ever more slowly. Residuals are
    taken as a first-order autoregression, whose memory is that of the run's first half.
    """
    own = evidence.own
    return _pace(evidence.series if own is None else own)


@once
def _pace(own: Series | Strata) -> float | None:
    _, y = _logs_of(own)
    starts = np.arange(_QUIET, len(y) - _RISING, max(len(y) // _STARTS, 1))
    if not len(starts):
        return None
    quiet = np.array([np.median(y[:start]) for start in starts])
    after = np.arange(len(y)) - starts[:, None] + 1.0
    memory = _memory(y[: max(len(y) // 2, _QUIET)])
    drift, powers = _misfit_of_drift(y, quiet, after, memory), _misfit_of_powers(y, quiet, after, memory)
    return len(y) / 2 * math.log(max(powers, 1e-12) / max(drift, 1e-12))


def _logs_of(own: Series | Strata) -> tuple[NDArray[np.int64], Floats]:
    """Steps and log K3 there."""
    if isinstance(own, Series):
        return _logs(own)
    steps = np.unique(own.step[own.tokens > 0])
    return steps, np.log(np.maximum(own.by_step(steps), LEAST)) if len(steps) else np.zeros(0)


def _memory(y: Floats) -> float:
    """Correlation of a value with the one before."""
    left = y - y.mean()
    spread = float(left @ left)
    return min(max(float(left[1:] @ left[:-1]) / spread, 0.0), _MEMORY) if spread > 0 else 0.0


def _innovations(values: Floats, memory: float) -> Floats:
    """What is new in each value [..., G − 1]."""
    new: Floats = values[..., 1:] - memory * values[..., :-1]
    return new


def _misfit_of_drift(y: Floats, quiet: Floats, after: Floats, memory: float) -> float:
    """Least sum of squares of lines that start at a step and level off after a part of what follows."""
    best, rise = math.inf, _innovations(y - quiet[:, None], memory)
    for part in _LEVELS_OFF:
        x = _innovations(np.clip(after, 0, part * after.max(axis=1, keepdims=True)), memory)
        slope = np.maximum((x * rise).sum(axis=1) / (x * x).sum(axis=1), 0.0)
        best = min(best, float(((rise - slope[:, None] * x) ** 2).sum(axis=1).min()))
    return best


def _misfit_of_powers(y: Floats, quiet: Floats, after: Floats, memory: float) -> float:
    """Least sum of squares of a level to which a power of the steps since a start is added."""
    best = math.inf
    for power in _POWERS:
        x = np.where(after > 0, np.maximum(after, 0.0) ** power, 0.0)
        for size in _SIZES:
            left = _innovations(y - quiet[:, None] - np.log1p(size * x), memory)
            best = min(best, float((left**2).sum(axis=1).min()))
    return best


def _logs(series: Series) -> tuple[NDArray[np.int64], Floats]:
    """Steps with a value and log K3 there; of long runs medians of blocks, so that there are at most `_POINTS`."""
    measured = np.isfinite(series.k3)
    steps, y = series.step[measured], np.log(np.maximum(series.k3[measured], LEAST))
    block = -(-len(y) // _POINTS)
    if block <= 1:
        return steps, y
    whole = len(y) // block * block
    return steps[:whole:block], np.median(y[:whole].reshape(-1, block), axis=1)


def _best_start(y: Floats, length: int) -> tuple[float, int]:
    """Least sum of squares of a shape that is 0 before its start, rises for `length` points, then is 1; and that
    start."""
    starts = np.arange(_QUIET, len(y) - _AFTER)
    shape = np.clip((np.arange(len(y)) - starts[:, None] + 1) / (length + 1), 0, 1)
    x, centred = shape - shape.mean(axis=1, keepdims=True), y - y.mean()
    squares = centred @ centred - (x @ centred) ** 2 / (x * x).sum(axis=1)
    best = int(squares.argmin())
    return float(squares[best]), int(starts[best])


def _rise(before: Floats, after: Floats) -> tuple[float, float]:
    if min(len(before), len(after)) < _AFTER:
        return 0.0, 0.0
    error = math.hypot(_error(before), _error(after))
    rise = float(np.median(after) - np.median(before))
    return rise, rise / error if error > 0 else 0.0


def _error(values: Floats) -> float:
    """Standard error of a mean of values that may be correlated from one to the next (first-order autoregression)."""
    left = values - values.mean()
    spread = float(left @ left)
    memory = float(left[1:] @ left[:-1]) / spread if spread > 0 else 0.0
    memory = min(max(memory, 0.0), _MEMORY_OF_ERROR)
    return math.sqrt(spread / (len(values) - 1) / len(values) * (1 + memory) / (1 - memory))
