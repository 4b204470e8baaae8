"""Detect growth of K3, its onset and its rate, by a rule over a run's own past.

The baseline is the 90th percentile of block medians of log K3 in the first steps of a configuration. Growth is a recent
median that stays above multiples of it (see `GrowthRule`). The baseline follows a slow rise, as entropy or a curriculum
causes. Within the reported band of the setup, only a fast doubling is growth. All windows count measured steps and skip
steps without a value. The rule detects only change. A run that is wrong from its first step on is healthy by its own
standard. The causes and the absolute bands of the judgement detect that.

Theil–Sen lines through the noisy series give the slope and the onset of the rise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logprobe.monitor.judging.document import Verdict
from logprobe.monitor.judging.growth_rule import RULE, Threshold
from logprobe.monitor.judging.judgement import Growth

_HUNDRED: Final = 100  # from here on a ratio with two digits would have an exponent
_BLOCKS: Final = 80  # kept: how far back an onset is looked for
_TREND_BLOCKS: Final = 20  # the doubling time is that of the last so many blocks
_LATE_BLOCKS: Final = 10  # of these, or of the last so many where K3 clearly rises less there
_STEADY_BLOCKS: Final = 60  # by which a steady rise is told from healthy change
_FEWEST_BLOCKS: Final = 4  # for a trend
_FEWEST: Final = 3  # points of a level, a bend and a rise
_CLEARLY: Final = 0.7  # of the sum of squares that another shape leaves
# First step of an engine setup, and its name; None: of one that is not known.
Change: TypeAlias = tuple[int, str | None]
_LONGEST: Final = max(RULE.growing.short, RULE.growing.long, RULE.critical.short, RULE.critical.long)  # window


class _Latch:
    """State of a threshold, raised or not, and the number of consecutive steps with the opposite condition."""

    def __init__(self) -> None:
        self.raised, self._streak = False, 0

    def update(self, threshold: Threshold, *, exceeded: bool, calm: bool) -> None:
        self._streak = self._streak + 1 if (calm if self.raised else exceeded) else 0
        if self._streak >= (threshold.clear_steps if self.raised else threshold.confirm):
            self.raised, self._streak = not self.raised, 0


class Tracker:
    """Growth rule, step by step. Internal values are log K3. Not safe to share between threads."""

    def __init__(self, *, band: float | None = None, setup: str | None = None) -> None:
        """Set up the rule for the start of a run.

        Args:
            band: upper end of the setup's reported K3, or None if unknown.
            setup: setup of the engines at the first step, or None if unknown.
        """
        self._band = None if band is None else math.log(max(band, RULE.floor))
        self._setup = setup
        self._baselines: dict[str, float] = {}  # of setups before this one
        self._returned: int | None = None  # step since which the baseline is one of these
        self._last: int | None = None  # newest step, measured or not
        self._unmeasured = 0  # steps in a row without a value
        self._forget(count=0, baseline=None)

    def _forget(self, *, count: int, baseline: float | None) -> None:
        """Reset the state with a given baseline, or without one for a new calibration. `count`: measured steps so
        far."""
        self._count, self._baseline = count, baseline
        self._recent: list[tuple[int, float]] = []
        self._blocks: list[tuple[int, float]] = []  # first step and median
        self._growing, self._critical = _Latch(), _Latch()
        self._since: int | None = None

    def copy(self) -> Self:
        """Return an independent copy of the tracker."""
        return deepcopy(self)

    def follow(self, steps: Sequence[int], values: Sequence[float | None], changes: Sequence[Change] = ()) -> Self:
        """Process the next steps and return the tracker.

        Args:
            steps: next steps, ascending.
            values: K3 of each step, None or NaN if it was not measured.
            changes: first steps of new engine setups among these steps, ascending.
        """
        ahead = deque(changes)
        for step, value in zip(steps, values, strict=True):
            while ahead and ahead[0][0] <= step:
                self._recalibrate(*ahead.popleft())
            self._last = step
            self._advance(step, value)
        return self

    def verdict(self) -> Growth:
        """Return the verdict as of the last step, with the doubling time."""
        state = self._state()
        doubling, interval = self._doubling() if state in {"growing", "critical"} else (None, None)
        return Growth(
            verdict=state,
            since_step=self._since,
            baseline=None if self._baseline is None else math.exp(self._baseline),
            ratio=self._ratio(RULE.growing.short),
            doubling_steps=doubling,
            doubling_interval=interval,
            reasons=self._reasons(state, interval),
        )

    def _recalibrate(self, step: int, setup: str | None) -> None:
        """Switch to the baseline of a new setup, or to the stored one of an earlier setup."""
        if self._setup is not None and self._baseline is not None:
            self._baselines[self._setup] = self._baseline
        baseline = None if setup is None else self._baselines.get(setup)
        self._forget(count=0 if baseline is None else RULE.calibrate_to, baseline=baseline)
        self._setup, self._returned, self._unmeasured = setup, None if baseline is None else step, 0

    def _advance(self, step: int, k3: float | None) -> None:
        if k3 is None or not math.isfinite(k3) or k3 < -RULE.floor:
            self._unmeasured += 1
            if self._unmeasured >= RULE.blind:  # what is old must not be judged together with what comes
                self._forget(count=0 if self._baseline is None else self._count, baseline=self._baseline)
            return
        self._unmeasured = 0
        self._count += 1
        self._recent = [*self._recent, (step, math.log(max(k3, RULE.floor)))][-_LONGEST:]
        self._close_block()
        self._update()

    def _close_block(self) -> None:
        of_block = self._recent[-RULE.block :]
        if self._count % RULE.block or len(of_block) < RULE.block:
            return
        self._blocks.append((of_block[0][0], median(value for _, value in of_block)))
        if self._baseline is None:
            self._calibrate()
        elif not (self._growing.raised or self._critical.raised):
            self._baseline += self._followed(self._baseline)
        self._blocks = self._blocks[-max(_BLOCKS, RULE.calibrate_to // RULE.block) :]

    def _calibrate(self) -> None:
        """Freeze the baseline at its step, or earlier if a critical rise would otherwise become part of it."""
        normal = [value for _, value in self._blocks[RULE.calibrate_from // RULE.block :]]
        before = normal[: -_LONGEST // RULE.block]
        if self._count >= RULE.calibrate_to:
            self._baseline = float(np.quantile(normal, RULE.quantile))
        elif len(before) >= _FEWEST_BLOCKS:
            self._baseline = float(np.quantile(before, RULE.quantile))
            if not self._exceeds(RULE.critical):
                self._baseline = None

    def _followed(self, baseline: float) -> float:
        """Return the rise of the baseline towards the recent level, limited to a healthy rate.

        It is 0 while K3 clearly rises faster, since a baseline that follows growth hides it.
        """
        as_many = (RULE.calibrate_to - RULE.calibrate_from) // RULE.block
        usual = [value for _, value in self._blocks[-as_many:]]
        if len(usual) < as_many or (rise := median(usual) - baseline) <= 0:
            return 0.0
        lately = [value for _, value in self._blocks[-_STEADY_BLOCKS:]]
        slope = theil_sen(range(len(lately)), lately) if len(lately) == _STEADY_BLOCKS else None
        steady = slope is not None and slope.low > math.log(2) * RULE.block / RULE.steady
        return 0.0 if steady else min(rise, math.log(2) * RULE.block / RULE.follows)

    def _update(self) -> None:
        before = self._growing.raised or self._critical.raised
        for threshold, latch in ((RULE.growing, self._growing), (RULE.critical, self._critical)):
            short = self._ratio(threshold.short)
            if short is not None:
                calm = short < threshold.clear_ratio or self._as_others()
                latch.update(threshold, exceeded=self._exceeds(threshold), calm=calm)
        after = self._growing.raised or self._critical.raised
        if before != after:
            self._since = bend(self._blocks) if after else None

    def _exceeds(self, threshold: Threshold) -> bool:
        short, long = self._ratio(threshold.short), self._ratio(threshold.long)
        above = (short or 0.0) > threshold.short_ratio and (long or 0.0) > threshold.long_ratio
        return above and not self._as_others()

    def _as_others(self) -> bool:
        """Return whether K3 is within the band of its setup and does not double soon."""
        lately = [value for _, value in self._recent[-RULE.growing.short :]]
        if self._band is None or median(lately) > self._band:
            return False
        return ramp([value for _, value in self._blocks[-_TREND_BLOCKS:]]) < math.log(2) * RULE.block / RULE.fast

    def _ratio(self, window: int) -> float | None:
        """Return the median of the last `window` measured steps over the baseline, or None if either is missing."""
        if self._baseline is None or len(self._recent) < window:
            return None
        return math.exp(median(value for _, value in self._recent[-window:]) - self._baseline)

    def _state(self) -> Verdict:
        if self._last is None or self._unmeasured >= RULE.blind:
            return "no_data"
        if self._ratio(_LONGEST) is None:
            return "calibrating" if self._count else "no_data"
        return "critical" if self._critical.raised else "growing" if self._growing.raised else "healthy"

    def _doubling(self) -> tuple[float | None, tuple[float, float | None] | None]:
        """Return the current doubling time of K3 in steps, by the blocks since the onset, and its interval."""
        blocks = [block for block in self._blocks if block[0] >= (self._since or 0)][-_TREND_BLOCKS:]
        slope = theil_sen(*zip(*blocks, strict=True)) if len(blocks) >= _FEWEST_BLOCKS else None
        late = theil_sen(*zip(*blocks[-_LATE_BLOCKS:], strict=True)) if len(blocks) > _LATE_BLOCKS else None
        slope = late if slope is not None and late is not None and late.high < slope.low else slope
        if slope is None or slope.value <= 0:
            return None, None
        fastest = math.log(2) / slope.high
        if slope.low <= 0:
            return None, (fastest, None)
        return math.log(2) / slope.value, (fastest, math.log(2) / slope.low)

    def _reasons(self, state: Verdict, interval: tuple[float, float | None] | None) -> tuple[str, ...]:
        if state == "no_data":
            silent = f"K3 was not measured in the last {self._unmeasured} steps"
            return (silent if self._unmeasured else "no step has K3",)
        same = f"the baseline is that of the same engine setup before step {self._returned}"
        kept = () if self._returned is None else (same,)
        if state == "calibrating" and self._baseline is not None:
            return (f"{len(self._recent)} of the {_LONGEST} measured steps that are compared with it", *kept)
        if state == "calibrating":
            return (f"{self._count} of the {RULE.calibrate_to} measured steps that set the baseline",)
        ratio = self._ratio(RULE.growing.short) or 0.0
        times = f"{ratio:.2g}" if ratio < _HUNDRED else f"{ratio:,.0f}"
        words = f"median K3 of the last {RULE.growing.short} steps is {times} times the run's baseline"
        if state == "healthy":
            return (words, *kept)
        return (words, f"growth began at about step {self._since}", _pace(interval), *kept)


def _pace(interval: tuple[float, float | None] | None) -> str:
    if interval is None:
        return "it has stopped growing, and has not come back"
    if interval[1] is None:
        return "its current pace is within noise"
    return f"it doubles every {interval[0]:.0f} to {interval[1]:.0f} steps"


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x, and its confidence interval."""

    value: float
    low: float
    high: float


def theil_sen(x: ArrayLike, y: ArrayLike) -> Slope | None:
    """Return the median of the slopes between all pairs of points, with x and y of shape [n].

    Up to 29 % of the points may be arbitrary without a large effect. Source, also of the interval: Sen, Estimates of
    the Regression Coefficient Based on Kendall's Tau, JASA 63 (1968). The interval assumes independent points. Thin out
    autocorrelated data, or use blocks.

    Returns:
        The slope, or None with fewer than 3 points or fewer than 3 different x.

    >>> theil_sen([0, 1, 2, 3, 4], [1, 3, 5, 7, 99]).value
    2.0
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(np.unique(xs)) < _FEWEST:
        return None
    first, second = np.triu_indices(len(xs), 1)
    different = xs[first] != xs[second]
    first, second = first[different], second[different]
    slopes = np.sort((ys[second] - ys[first]) / (xs[second] - xs[first]))
    reach = _reach(len(xs))
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def _reach(points: int) -> float:
    """Return half the width of a 95 % interval in ordered slopes: z times the standard deviation of Kendall's S."""
    z = NormalDist().inv_cdf(0.975)
    return z * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)


def bend(blocks: Sequence[tuple[int, float]]) -> int | None:
    """Return the step where a level series began to rise, from the best fit of a level followed by a line.

    Args:
        blocks: first step and median of each block, steps ascending. The last ones must lie higher.

    Returns:
        The first step of a block, or None with fewer than three blocks or without a rise.
    """
    if len(blocks) < _FEWEST:
        return None
    steps, values = np.asarray(blocks, np.float64).T
    rise_BB = np.maximum(steps[None, :] - steps[:-1, None], 0.0)  # bend × block
    centred_BB = rise_BB - rise_BB.mean(axis=1, keepdims=True)
    slope_B = centred_BB @ (values - values.mean()) / (centred_BB**2).sum(axis=1)
    gain_B = np.where(slope_B > 0, slope_B**2 * (centred_BB**2).sum(axis=1), 0.0)
    return int(steps[int(gain_B.argmax())]) if gain_B.any() else None


def ramp(values: ArrayLike) -> float:
    """Return the final slope per point of a level series that rises.

    It is 0 if a jump between two levels fits about as well, or if the rise explains less than half of the variance.

    Args:
        values: equidistant, oldest first, shape [n].
    """
    y = np.asarray(values, np.float64)
    if len(y) < 2 * _FEWEST:
        return 0.0
    place, y = np.arange(len(y)), y - y.mean()
    starts = place[1 : 1 - _FEWEST]
    rising_BN = np.maximum(place[None, :] - starts[:, None] + 1.0, 0.0)
    slopes, of_ramp = _fitted(rising_BN, y)
    _, of_jump = _fitted((rising_BN > 0).astype(np.float64), y)
    best = int(of_ramp.argmin())
    clearly = min(_CLEARLY * float(of_jump.min()), float(y @ y) / 2)
    return float(slopes[best]) if of_ramp[best] < clearly else 0.0


def _fitted(shapes_BN: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least-squares factor of each shape, and the residual sum of squares. `y` must be centred."""
    x = shapes_BN - shapes_BN.mean(axis=1, keepdims=True)
    factor = x @ y / (x * x).sum(axis=1)
    return factor, float(y @ y) - factor * (x @ y)
