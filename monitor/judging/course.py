"""Test "course": the shape of log K3 over steps, and labels that arrive without weights.

The shapes are a level, a jump, a ramp, and a power of the number of updates. A drifting policy gives a line in log K3.
Weights that stop arriving make K3 grow like a power of the number of missed updates. A log-likelihood ratio tells which
of the two fits better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.frame import SUMS, Bools, Frame, Steps, Strata
from logprobe.monitor.judging.measures import SIGNIFICANT, Floats, Mean, difference
from logprobe.monitor.judging.once import once
from logprobe.monitor.judging.records import Gap, Rounding
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Shape:
    """Best of the four shapes of log K3.

    Attributes:
        kind: name of the shape.
        step: step at which it leaves the level, or None for a level.
        ratio: factor by which K3 has risen.
        drift: log-likelihood ratio of the ramp over the better of power and jump.
    """

    kind: Literal["level", "jump", "ramp", "power"]
    step: int | None
    ratio: float
    drift: float


_LEVEL: Final = Shape("level", None, 1.0, 0.0)
_PARTS: Final = 4  # of a window
_ROUNDING: Final = 1e-9  # relative, of sums that are added in another order


def shape_of(steps: Steps, log_G: Floats) -> Shape | None:
    """Fit the shapes by least squares of AR(1) innovations. Return None for too few steps."""
    if len(log_G) < number("shape_steps"):
        return None
    block = -(-len(log_G) // int(number("shape_blocks")))
    if block > 1:
        whole = len(log_G) // block * block
        steps, log_G = steps[:whole:block], np.median(log_G[:whole].reshape(-1, block), axis=1)
    begin, apart = int(number("shape_begin")), max(len(log_G) // 60, 1)
    fit, half = _Fit(log_G, np.arange(begin, len(log_G) - 5, apart)), len(log_G) / 2
    level, fits = max(fit.level(), 1e-12), {"jump": fit.jump(), "ramp": fit.ramp()}

    def gain(of: _Cost) -> float:
        return half * math.log(level / max(of.cost, 1e-12))

    if max(map(gain, fits.values())) < number("shape_first_look"):
        return _LEVEL  # a power law that is told from a level is told by a jump or a ramp, too
    fits["power"] = fit.power()
    if apart > 1:  # a jump between two starts would be bent into another shape
        near = np.unique([of.start + by for of in fits.values() for by in range(1 - apart, apart)])
        fine = _Fit(log_G, near[(near >= begin) & (near < len(log_G) - 5)])
        finer = {"jump": fine.jump(), "ramp": fine.ramp(), "power": fine.power()}
        fits = {name: min(of, finer[name], key=lambda each: each.cost) for name, of in fits.items()}
    kind = min(fits, key=lambda name: fits[name].cost)
    best = fits[kind]
    if gain(best) < number("shape_gain") or best.ratio < number("shape_ratio"):
        return _LEVEL
    others = max(min(fits["power"].cost, fits["jump"].cost), 1e-12)
    drift = half * math.log(others / max(fits["ramp"].cost, 1e-12))
    named: Literal["jump", "ramp", "power"] = "jump" if kind == "jump" else "ramp" if kind == "ramp" else "power"
    return Shape(named, int(steps[best.start]), best.ratio, drift)


@dataclass(frozen=True, slots=True)
class _Cost:
    cost: float
    start: int
    ratio: float


class _Fit:
    """Fits of one series as arrays [starts, steps]."""

    def __init__(self, log_G: Floats, starts: NDArray[np.int64]) -> None:
        """Prepare the series for every step at which a shape may start."""
        begin = log_G[: max(len(log_G) // 2, int(number("shape_begin")))]
        left = begin - begin.mean()
        memory = float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-300)
        self._memory = min(max(memory, 0.0), number("shape_memory"))
        self._log = log_G
        self.starts = starts
        self._after = np.maximum(np.arange(len(log_G)) - self.starts[:, None] + 1.0, 0.0)
        quiet = np.array([np.median(log_G[:start]) for start in self.starts])
        self._target = self._new(log_G - quiet[:, None])

    def level(self) -> float:
        return float((self._new(self._log - np.median(self._log)) ** 2).sum())

    def jump(self) -> _Cost:
        return self._scaled((self._after > 0).astype(np.float64))

    def ramp(self) -> _Cost:
        """Fit a line that ends at the last step, or earlier."""
        most = self._after.max(1, keepdims=True)
        fits = [self._scaled(np.clip(self._after, 0, part * most)) for part in (1.0, 0.75, 0.5)]
        return min(fits, key=lambda fit: fit.cost)

    def power(self) -> _Cost:
        """Fit log(1 + size · updates^power)."""
        best = _Cost(math.inf, 0, 1.0)
        for power in (0.5, 1.0, 1.5, 2.0):
            raised = self._after**power
            for size in np.geomspace(3e-2, 1e3, 25):
                x = np.log1p(size * raised)
                cost = ((self._target - self._new(x)) ** 2).sum(1)
                start = int(cost.argmin())
                if cost[start] < best.cost:
                    best = _Cost(float(cost[start]), int(self.starts[start]), _ratio(float(x[start].max())))
        return best

    def _scaled(self, x: Floats) -> _Cost:
        new = self._new(x)
        slope = np.maximum((new * self._target).sum(1) / np.maximum((new * new).sum(1), 1e-12), 0.0)
        cost = ((self._target - slope[:, None] * new) ** 2).sum(1)
        start = int(cost.argmin())
        return _Cost(float(cost[start]), int(self.starts[start]), _ratio(float(slope[start] * x[start].max())))

    def _new(self, values: Floats) -> Floats:
        fresh: Floats = values[..., 1:] - self._memory * values[..., :-1]
        return fresh


def _ratio(log_rise: float) -> float:
    return math.exp(min(log_rise, 50.0))


@once
def shape(table: Strata) -> Shape | None:
    """Return the shape of log K3 of a table."""
    return shape_of(*logs(table))


def logs(table: Strata) -> tuple[Steps, Floats]:
    """Return the steps of a table and log K3 of each."""
    steps = table.steps
    if not len(steps):
        return steps, np.zeros(0)
    return steps, np.log(np.maximum(table.by_step(steps), number("least_k3")))


def rise_of(table: Strata, step: int) -> Mean:
    """Return the ratio of mean |d| from a step on to that before, less 1, or NaN if either part is empty."""
    before, after = table.where(table.step < step).abs_d, table.where(table.step >= step).abs_d
    if not (before.n and after.n and before.value > 0):
        return Mean(math.nan, math.nan, 0)
    ratio = after.value / before.value
    error = ratio * math.hypot(after.error / after.value, before.error / before.value) if after.value > 0 else math.nan
    return Mean(ratio - 1, error, min(before.n, after.n))


def affected(before: Gap, after: Gap) -> float:
    """Return the share of tokens that a rise of the mismatch affects, from sums alone, or 1 if unknown.

    Of log-ratios d ~ N(0, s²), a share w becomes N(0, s² + S²). Mean d² rises F times and mean |d| G times: G = 1 − w +
    w·√(1 + (F − 1)/w), thus w = (G − 1)²/(F + 1 − 2G).
    """
    if not (before.square > 0 and after.square > before.square):
        return 1.0
    square, size = after.square / before.square, after.size / before.size
    rise, rest = max(size - 1, 0.0) ** 2, square + 1 - 2 * size
    return rise / rest if rise < rest else 1.0


def affected_sequences(rows: Strata) -> float:
    """Return the share of sequences with most of the mismatch, from sums alone, or 1 if they are alike.

    If only a share w of the sequences has it, their means of |d| vary by (1 − w)/w of the squared mean. Independent
    tokens vary by mean d² / (mean |d|)² − 1, and mean d² is about 2·K3. Sequences of neighbouring steps and one lag are
    compared.
    """
    if rows.sequences.sum() < number("fewest_sequences"):
        return 1.0
    part = np.searchsorted(rows.steps, rows.step) * _PARTS // max(len(rows.steps), 1)
    lags, lag = np.unique(rows.lag, return_inverse=True)
    sums = {name: np.bincount(part * len(lags) + lag, getattr(rows, name)) for name in SUMS}
    sums = {name: values[sums["sum_abs_d"] > 0] for name, values in sums.items()}
    n, size = sums["tokens"], sums["sum_abs_d"] / sums["tokens"]
    spread = sums["c_aa"] / size**2 - 2 * sums["c_an"] / size + sums["c_nn"]
    by_chance = 2 * sums["sum_k3"] / size**2 - n
    return 1 / (1 + max(float((spread - by_chance).sum() / sums["c_nn"].sum()), 0.0))


def affected_tokens(windows: Sequence[tuple[Tokens, ...]]) -> float | None:
    """Return the share of tokens that a rise of the mismatch affects at most, by log-ratios, or None if unknown.

    Noise of the logits moves the log-prob of a token by 1 − p of it, so d / (1 − p) does not depend on how sure the
    policy is. Tokens without a rise keep small ones. The lost part of these is compared with that of a rise of all
    tokens, which adds independent noise to the earlier ones.

    Args:
        windows: tokens before and after the rise, of groups of lags. The group with the largest rise is judged.
    """

    def rise(window: tuple[Tokens, ...]) -> float:
        enough = min(map(len, window)) >= number("fewest")
        before, after = (float(np.mean(tokens.d**2)) for tokens in window) if enough else (1.0, 0.0)
        return after / max(before, 1e-300)

    before, after = max(windows, key=rise)
    if rise((before, after)) < number("growth_ratio"):
        return None
    free_B, free_A = (np.maximum(-np.expm1(np.minimum(side.r, 0.0)), number("nearly_zero")) for side in (before, after))
    order = np.argsort(after.step, kind="stable")  # the rise continues in the window
    parts = zip(np.array_split(after.d[order] ** 2, _PARTS), np.array_split(free_A[order] ** 2, _PARTS), strict=True)
    more = np.array([np.mean(d2) / np.mean(free2) for d2, free2 in parts]) - np.mean(before.d**2) / np.mean(free_B**2)
    rng, was = np.random.default_rng(3), before.d / free_B
    added = np.sqrt(np.maximum(more, 0.0))[rng.integers(0, _PARTS, len(was))] * rng.standard_normal(len(was))
    small = float(np.quantile(np.abs(was), number("small_part")))
    kept, expected = (float(np.mean(np.abs(x) < small)) / number("small_part") for x in (after.d / free_A, was + added))
    if expected > 1 - number("small_lost"):
        return None
    error = math.sqrt(max(kept, 1 / len(after)) / (number("small_part") * len(after)))
    return (1 - kept + error) / (1 - expected)


def odd_steps(table: Strata, far: float) -> Steps | None:
    """Return the recurring steps whose K3 exceeds `far`, unlike that of all others, or None.

    Mean |d| of the other steps must vary little and be several times smaller, so that few extreme tokens do not decide.
    """
    steps = table.steps
    if len(steps) < number("shape_begin"):
        return None
    abs_d, k3 = table.by_step(steps, "sum_abs_d"), table.by_step(steps)
    usual = float(np.median(abs_d))
    odd: NDArray[np.bool_] = abs_d > number("place_ratio") * usual
    between = ((abs_d > number("place_wide_lift") * usual) & ~odd).sum()
    lately = odd[len(odd) // 2 :]
    times = np.count_nonzero(np.diff(odd.astype(np.int8), prepend=0) > 0)
    rare = times >= number("agreed_steps") and odd.sum() < number("most") * len(odd)
    if not rare or between > number("agreed_gap") * odd.sum() or not lately.any():
        return None
    return steps[odd] if float(np.median(k3[odd])) > far else None


def short_rise(table: Strata) -> int | None:
    """Return the step at which mean |d| of a short run rises threefold and stays high, or None.

    A few extreme tokens dominate |d| and may be absent from a single step. The rise must therefore follow three steps,
    or steps in which both sides agree up to rounding.
    """
    best, at, first = SIGNIFICANT, None, table.steps[: int(number("few"))].max(initial=-1)
    for step in _larger_after(table, number("short_rise")):
        if step <= first and table.where(table.step < step).k3 > number("rounding_k3"):
            continue
        rise = rise_of(table, step)
        if rise.n >= number("rise_tokens") and rise.error > 0 and rise.value > number("short_rise") and rise.z > best:
            best, at = rise.z, step
    return at


def _larger_after(table: Strata, rise: float) -> list[int]:
    """Return the steps from which on mean |d| may exceed its earlier value by more than `rise` times that value."""
    steps = table.steps
    rows = table.within(steps)
    index = np.searchsorted(steps, rows.step)
    n, d = (np.cumsum(np.bincount(index, sums, len(steps))) for sums in (rows.tokens, rows.sum_abs_d))
    before, after = d[:-1] / n[:-1], (d[-1:] - d[:-1]) / np.maximum(n[-1:] - n[:-1], 1)
    larger: list[int] = steps[1:][after > (1 + rise) * before * (1 - _ROUNDING)].tolist()
    return larger


def abrupt(steps: Steps, log_G: Floats, step: int) -> bool:
    """Return whether most of a rise is complete within five steps."""
    at, span = int(np.searchsorted(steps, step)), int(number("abrupt_steps"))
    if at < span or len(log_G) - at < span:
        return False
    rise = float(np.median(log_G[-span:]) - np.median(log_G[:at]))
    near = float(np.median(log_G[at + 1 : at + span + 1]) - np.median(log_G[at - span : at]))
    return near > max(number("abrupt_share") * rise, math.log(2))


def rounded_updates(frame: Frame) -> Rounding | None:
    """Return the rounding of the trainer's weights for the engines, if it came to lose most of each update.

    At first the engine's dtype held the weights exactly, as those of a checkpoint in it. Updates below its precision
    then left them between its values.
    """
    dtype = frame.weights_dtype
    found = None if dtype is None else frame.weights.rounding(dtype)
    if found is None or not found.crossing < number("most"):
        return None
    return found if found.exact[1] < number("most") < found.exact[0] else None


def without_load(frame: Frame) -> tuple[int, ...]:
    """Return the versions whose label arrived without a load, or with the fingerprints of older weights."""
    weights = frame.weights
    return tuple(weights.numbered(weights.without_load) or weights.numbered(frame.readings.recurring))


def labels_lie(table: Strata, versions: tuple[int, ...]) -> tuple[Bools, float] | None:
    """Return a mask of the rows of such versions [R] and their distance from the others in standard errors, or None."""
    column = table.groups.get("version")
    if column is None or not versions:
        return None
    odd = column.isin(versions)
    if not odd.any() or odd.all():
        return None
    worse, better = table.where(odd), table.where(~odd)
    z = difference(worse.abs_d, better.abs_d)
    return (odd, z) if z > SIGNIFICANT and worse.k3 > number("labels_ratio") * better.k3 else None
