"""Is K3 growing, since which step, and how fast? A rule over a run's own past, as pure functions of steps and values.

The baseline is the 90th percentile of block medians of log K3 in the first steps of a configuration. Growth is a recent
median that stays above multiples of it (see `GrowthRule`). The baseline follows a rise that is as slow as entropy's or
a curriculum's; and within the band that the setup is reported to have, only what doubles soon is growth. All windows
count measured steps; a step without a value fills none. The rule only sees change: a run that is wrong from its first
step on is healthy by its own standard, and what says so are the causes and the absolute bands of the diagnosis.

Lines through noisy series say how steep (Theil–Sen), and where they began to rise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logprobe.monitor.judging.document import Verdict
from logprobe.monitor.judging.growth_rule import RULE, Threshold
from logprobe.monitor.judging.judgement import Growth

_HUNDRED: Final = 100  # from here on a ratio with two digits would have an exponent
_BLOCKS: Final = 80  # kept: how far back an onset is looked for
_TREND_BLOCKS: Final = 20  # the doubling time is that of the last so many blocks
_STEADY_BLOCKS: Final = 60  # by which a steady rise is told from healthy change
_FEWEST_BLOCKS: Final = 4  # for a trend
Change: TypeAlias = tuple[
    int, str | None
]  # first step of an engine setup, and its name; None: of one that is not known
_FEWEST: Final = 3  # points of a level, a bend and a rise
_LONGEST: Final = max(RULE.growing.short, RULE.growing.long, RULE.critical.short, RULE.critical.long)  # window
_CLEARLY: Final = 0.7  # of the sum of squares that another shape leaves


def judge(
    steps: Sequence[int],
    values: Sequence[float | None],
    *,
    config_changes: Sequence[Change] = (),
    band: float | None = None,
    setup: str | None = None,
) -> Growth:
    """The verdict on K3 over a run.

    Args:
        steps: any order; of a step that comes twice the later value counts.
        values: K3 of each step; None or NaN where it was not measured.
        config_changes: from which steps on the engines had which setup, ascending.
        band: K3 up to which the setup is as others report it; None: not known.
        setup: of the engines at the first step; None: not known.
    """
    tracker = Tracker()
    tracker.know(band)
    tracker.begin(setup)
    series = sorted(dict(zip(steps, values, strict=True)).items())
    tracker.follow([step for step, _ in series], [value for _, value in series], config_changes)
    return tracker.verdict()


@dataclass(slots=True)
class _Latch:
    """Whether a threshold is raised, and for how many steps in a row the opposite has been true."""

    raised: bool = False
    streak: int = 0

    def update(self, threshold: Threshold, *, exceeded: bool, calm: bool) -> None:
        turning = calm if self.raised else exceeded
        self.streak = self.streak + 1 if turning else 0
        if self.streak >= (threshold.clear_steps if self.raised else threshold.confirm):
            self.raised, self.streak = not self.raised, 0


@dataclass(slots=True)
class _Memory:
    """Everything a tracker knows, as plain data; values are log K3."""

    last: int | None = None  # newest step, measured or not
    count: int = 0  # measured steps of this configuration
    unmeasured: int = 0  # steps in a row without a value
    recent: list[tuple[int, float]] = field(default_factory=list)
    blocks: list[tuple[int, float]] = field(default_factory=list)  # first step and median
    baseline: float | None = None
    growing: _Latch = field(default_factory=_Latch)
    critical: _Latch = field(default_factory=_Latch)
    since: int | None = None
    band: float | None = None  # upper end, of the setup
    setup: str | None = None  # of the engines
    baselines: dict[str, float] = field(default_factory=dict)  # of setups before this one
    returned: int | None = None  # step since which the baseline is one of these; None: it is not


class Tracker:
    """The rule, step by step. Not to be shared between threads."""

    def __init__(self) -> None:
        """Start a run of which nothing is known."""
        self._memory = _Memory()

    def copy(self) -> Tracker:
        """Return a tracker that goes on from here, too."""
        other = Tracker()
        other._memory = deepcopy(self._memory)
        return other

    def know(self, band: float | None) -> None:
        """Set the K3 up to which the setup is as others report it; None: not known."""
        self._memory.band = None if band is None else math.log(max(band, RULE.floor))

    def begin(self, setup: str | None) -> None:
        """The run's first steps are of this engine setup; None: not known."""
        self._memory.setup = setup

    def recalibrate(self, change: Change) -> None:
        """From that step on the engines have another setup: the run has a new normal, or that of the same setup
        before."""
        memory, (step, setup) = self._memory, change
        if memory.setup is not None and memory.baseline is not None:
            memory.baselines[memory.setup] = memory.baseline
        baseline = None if setup is None else memory.baselines.get(setup)
        count, returned = (0, None) if baseline is None else (RULE.calibrate_to, step)
        self._memory = self._anew(count=count, baseline=baseline)
        self._memory.setup, self._memory.returned = setup, returned

    def _anew(self, **kept: Any) -> _Memory:
        same = ("last", "band", "setup", "baselines", "returned")
        return _Memory(**{name: getattr(self._memory, name) for name in same}, **kept)

    def follow(self, steps: Sequence[int], values: Sequence[float | None], changes: Sequence[Change]) -> None:
        """Takes the next steps, ascending; `changes`: of the engines' setup, at steps to come."""
        ahead = deque(changes)
        for step, value in zip(steps, values, strict=True):
            while ahead and ahead[0][0] <= step:
                self.recalibrate(ahead.popleft())
            self._memory.last = step
            self._advance(step, self._log(value))

    def verdict(self) -> Growth:
        """The verdict as of the last step, with the doubling time."""
        state = self._state()
        doubling, interval = self._doubling() if state in {"growing", "critical"} else (None, None)
        return Growth(
            verdict=state,
            since_step=self._memory.since,
            baseline=_exp(self._memory.baseline),
            ratio=self._ratio(RULE.growing.short),
            doubling_steps=doubling,
            doubling_interval=interval,
            reasons=self._reasons(state, interval),
        )

    def _log(self, value: float | None) -> float | None:
        if value is None or not math.isfinite(value) or value < -RULE.floor:
            return None
        return math.log(max(value, RULE.floor))

    def _advance(self, step: int, log_k3: float | None) -> None:
        memory = self._memory
        if log_k3 is None:
            memory.unmeasured += 1
            if memory.unmeasured >= RULE.blind:  # what is old must not be judged together with what comes
                count = 0 if memory.baseline is None else memory.count
                self._memory = self._anew(count=count, unmeasured=memory.unmeasured, baseline=memory.baseline)
            return
        memory.unmeasured = 0
        memory.count += 1
        memory.recent = [*memory.recent, (step, log_k3)][-_LONGEST:]
        self._close_block()
        self._update()

    def _close_block(self) -> None:
        memory = self._memory
        of_block = memory.recent[-RULE.block :]
        if memory.count % RULE.block or len(of_block) < RULE.block:
            return
        memory.blocks.append((of_block[0][0], median(value for _, value in of_block)))
        if memory.baseline is None:
            self._calibrate()
        elif not (memory.growing.raised or memory.critical.raised):
            self._follow()
        memory.blocks = memory.blocks[-max(_BLOCKS, RULE.calibrate_to // RULE.block) :]

    def _calibrate(self) -> None:
        """Freezes the baseline at its time, or before a rise that is critical already would become part of it."""
        memory = self._memory
        normal = [value for _, value in memory.blocks[RULE.calibrate_from // RULE.block :]]
        if memory.count >= RULE.calibrate_to:
            memory.baseline = self._quantile(normal)
        elif len(before := normal[: -_LONGEST // RULE.block]) >= _FEWEST_BLOCKS:
            memory.baseline = self._quantile(before)
            if not self._exceeds(RULE.critical):
                memory.baseline = None

    def _follow(self) -> None:
        """Move the baseline up to what has been usual for as long as it was set by, no faster than healthy change is,
        and not while K3 clearly rises faster: a baseline that follows growth hides it."""
        memory = self._memory
        as_many = (RULE.calibrate_to - RULE.calibrate_from) // RULE.block
        usual = [value for _, value in memory.blocks[-as_many:]]
        if memory.baseline is None or len(usual) < as_many or (rise := median(usual) - memory.baseline) <= 0:
            return
        lately = [value for _, value in memory.blocks[-_STEADY_BLOCKS:]]
        slope = theil_sen(range(len(lately)), lately) if len(lately) == _STEADY_BLOCKS else None
        if slope is None or slope.low <= math.log(2) * RULE.block / RULE.steady:
            memory.baseline += min(rise, math.log(2) * RULE.block / RULE.follows)

    def _quantile(self, values: Sequence[float]) -> float:
        return float(np.quantile(values, RULE.quantile))

    def _update(self) -> None:
        memory = self._memory
        before = memory.growing.raised or memory.critical.raised
        for threshold, latch in ((RULE.growing, memory.growing), (RULE.critical, memory.critical)):
            short = self._ratio(threshold.short)
            if short is not None:
                calm = short < threshold.clear_ratio or self._as_others()
                latch.update(threshold, exceeded=self._exceeds(threshold), calm=calm)
        after = memory.growing.raised or memory.critical.raised
        if before != after:
            memory.since = bend(memory.blocks) if after else None

    def _exceeds(self, threshold: Threshold) -> bool:
        short, long = self._ratio(threshold.short), self._ratio(threshold.long)
        above = (short or 0.0) > threshold.short_ratio and (long or 0.0) > threshold.long_ratio
        return above and not self._as_others()

    def _as_others(self) -> bool:
        """Whether K3 is within the band of its setup and does not double soon: higher than it was, and no more than
        others have."""
        memory = self._memory
        lately = [value for _, value in memory.recent[-RULE.growing.short :]]
        if memory.band is None or median(lately) > memory.band:
            return False
        return ramp([value for _, value in memory.blocks[-_TREND_BLOCKS:]]) < math.log(2) * RULE.block / RULE.fast

    def _ratio(self, window: int) -> float | None:
        """Median of the last `window` measured steps over the baseline; None without a baseline or so many steps."""
        memory = self._memory
        if memory.baseline is None or len(memory.recent) < window:
            return None
        return math.exp(median(value for _, value in memory.recent[-window:]) - memory.baseline)

    def _state(self) -> Verdict:
        memory = self._memory
        if memory.last is None or memory.unmeasured >= RULE.blind:
            return "no_data"
        if self._ratio(_LONGEST) is None:
            return "calibrating" if memory.count else "no_data"
        if memory.critical.raised:
            return "critical"
        return "growing" if memory.growing.raised else "healthy"

    def _doubling(self) -> tuple[float | None, tuple[float, float | None] | None]:
        """Steps in which K3 doubles, by the blocks since the onset, and the interval."""
        since = self._memory.since or 0
        blocks = [block for block in self._memory.blocks if block[0] >= since][-_TREND_BLOCKS:]
        slope = theil_sen(*zip(*blocks, strict=True)) if len(blocks) >= _FEWEST_BLOCKS else None
        if slope is None or slope.value <= 0:
            return None, None
        fastest = math.log(2) / slope.high
        if slope.low <= 0:
            return None, (fastest, None)
        return math.log(2) / slope.value, (fastest, math.log(2) / slope.low)

    def _reasons(self, state: Verdict, interval: tuple[float, float | None] | None) -> tuple[str, ...]:
        memory = self._memory
        if state == "no_data":
            silent = f"K3 was not measured in the last {memory.unmeasured} steps"
            return (silent if memory.unmeasured else "no step has K3",)
        same = f"the baseline is that of the same engine setup before step {memory.returned}"
        kept = () if memory.returned is None else (same,)
        if state == "calibrating" and memory.baseline is not None:
            return (f"{len(memory.recent)} of the {_LONGEST} measured steps that are compared with it", *kept)
        if state == "calibrating":
            return (f"{memory.count} of the {RULE.calibrate_to} measured steps that set the baseline",)
        ratio = self._ratio(RULE.growing.short)
        words = f"median K3 of the last {RULE.growing.short} steps is {_times(ratio)} times the run's baseline"
        if state == "healthy":
            return (words, *kept)
        return (words, f"growth began at about step {memory.since}", _pace(interval), *kept)


def _times(ratio: float | None) -> str:
    """Two digits at least, and no exponent."""
    return "?" if ratio is None else f"{ratio:.2g}" if ratio < _HUNDRED else f"{ratio:,.0f}"


def _pace(interval: tuple[float, float | None] | None) -> str:
    if interval is None:
        return "it has stopped growing, and has not come back"
    if interval[1] is None:
        return "its current pace is within noise"
    return f"it doubles every {interval[0]:.0f} to {interval[1]:.0f} steps"


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x, and the interval that holds the true one with the confidence asked for."""

    value: float
    low: float
    high: float


def theil_sen(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Slope | None:
    """The median of the slopes between all pairs of points; x and y of shape [n].

    Up to 29 % of the points may be anything without moving it far. Source, also of the interval: Sen, Estimates of the
    Regression Coefficient Based on Kendall's Tau, JASA 63 (1968). The interval takes the points as independent: thin
    out, or take blocks of, what is autocorrelated.

    Returns:
        None with fewer than 3 points or fewer than 3 different x.

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
    reach = _reach(len(xs), confidence)
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def _reach(points: int, confidence: float) -> float:
    """How many ordered slopes the interval spans: z times the standard deviation of Kendall's S."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return z * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)


def bend(blocks: Sequence[tuple[int, float]]) -> int | None:
    """Where a series that was level began to rise: the bend of the best line of the form level, then rising.

    Args:
        blocks: first step and median of each block, steps ascending; the last ones are known to lie higher.

    Returns:
        A step at which a block begins; None with fewer than three blocks, or where nothing rises.
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
    """Slope per point, at its end, of a series that was level and rises.

    0 where a jump from one level to another fits about as well, and where the rise explains less than half of how the
    series varies.

    Args:
        values: equidistant, oldest first; shape [n].
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
    """Least-squares factor of each shape, and the sum of squares that it leaves; `y` is centred."""
    x = shapes_BN - shapes_BN.mean(axis=1, keepdims=True)
    factor = x @ y / (x * x).sum(axis=1)
    return factor, float(y @ y) - factor * (x @ y)
