"""Conditions on steps: what is watched, in words, and what is seen of it in a step. One class each.

Pure: facts and what is remembered in, an observation and what is remembered out. Looking at the same steps again gives
the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from logprobe.alerts.rules.fields import Factor, Finite, Model, Window
from logprobe.alerts.rules.judging.observation import Memory, Observation, StepFacts
from logprobe.monitor.analysis import identity
from logprobe.monitor.judging.growth import Tracker, theil_sen
from logprobe.monitor.judging.growth_kept import Judged, take
from logprobe.monitor.judging.growth_rule import K3, RULE, GrowthRule
from logprobe.monitor.judging.growth_rule import Threshold as GrowthThreshold
from logprobe.monitor.judging.measures import off_one
from logprobe.monitor.judging.result import Growth as GrowthVerdict
from logprobe.monitor.number_text import number

if TYPE_CHECKING:  # a rule has a condition
    from logprobe.alerts.rules.rule import Rule

_BROKEN: Final = ("nonfinite_tokens", "impossible_tokens")
_CALIBRATION: Final = ("ratio_mean", "calibration_z", "k3_kl", "ess")
_CARRYING: Final = 0.1  # of the tokens carry the mean ratio; where fewer do, it says nothing
_TREND_BLOCKS: Final = 20


class OnSteps(Model):
    """A condition that looks at every step in order."""

    of_metric: ClassVar[bool] = True  # whether a rule with it names a metric
    counts_steps: ClassVar[bool] = True  # for `for` and `keep_firing`

    @abstractmethod
    def words(self, name: str) -> str:
        """When it holds, as a fragment of a sentence about the metric called `name`."""

    def reads(self, rule: Rule) -> tuple[str, ...]:
        """Catalog keys that it looks at."""
        return () if rule.key is None else (rule.key,)

    @abstractmethod
    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        """What is seen in one step. `part`: the slice, None: the whole step; `memory`: what the last call returned,
        empty at first."""


class Threshold(OnSteps):
    """The metric is beyond a fixed value: `above` it, `below` it, or outside the two.

    With a `window`, the median of the last measured steps is compared. `clear`: the value it has to come back to;
    between the two nothing changes.
    """

    kind: Literal["threshold"]
    above: Finite | None = None
    below: Finite | None = None
    clear: Finite | None = None
    window: Window = 1

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("give `above`, `below`, or both")
        if self.above is not None and self.below is not None:
            if self.below >= self.above:
                raise ValueError("`below` must be less than `above`: the metric is fine between the two")
            if self.clear is not None:
                raise ValueError("`clear` goes with one of `above` and `below`; with both, leave it out")
        elif self.clear is not None:
            _check_side(self.above, self.below, self.clear)
        return self

    def words(self, name: str) -> str:
        limits = (("below", self.below), ("above", self.above))
        sides = [f"{side} {limit:g}" for side, limit in limits if limit is not None]
        return f"{name} {' or '.join(sides)}" + (f", median of {self.window} steps" if self.window > 1 else "")

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        value = _value(rule, part, facts)
        if value is None:
            return _missing(rule, facts), memory
        recent = _recent(memory, facts, value, self.window)
        if len(recent) < self.window:
            words = f"{len(recent)} of the {self.window} measured steps that are compared"
            return Observation("between", words, value), {"recent": recent}
        judged = median(point[1] for point in recent)
        words = f"{_of(self.window)}{rule.called} is {number(judged)}; it should be {_limits(self)}"
        return Observation(_side(judged, self), words, judged), {"recent": recent}


class Ratio(OnSteps):
    """The metric has grown against the run's own frozen baseline: short and long recent median both exceed multiples of
    it.

    Windows in measured steps. `clear`: the short median has to come back to this multiple.
    """

    kind: Literal["ratio"]
    short: Window = 10
    above: Factor
    long: Window = 40
    above_long: Factor
    clear: Factor
    floor: Factor = 1e-5

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.short > self.long:
            raise ValueError("`short` is longer than `long`")
        _check_side(self.above, None, self.clear)
        return self

    def words(self, name: str) -> str:
        return (
            f"{name} above {self.above:g}× its baseline over {self.short} steps and {self.above_long:g}× over "
            f"{self.long}"
        )

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        value = _value(rule, part, facts)
        tracker = Tracker(_growth_rule(self), memory.get("tracker"))
        point = tracker.add(facts.step, value)
        kept = {"tracker": tracker.state()}
        if value is None:
            return _missing(rule, facts), kept
        if point.baseline is None or point.short_ratio is None or point.long_ratio is None:
            return Observation("between", "the run's baseline is not set yet", value), kept
        bad = point.short_ratio > self.above and point.long_ratio > self.above_long
        verdict: Any = "bad" if bad else "good" if point.short_ratio < self.clear else "between"
        words = (
            f"the median of the last {self.short} steps of {rule.called} is {number(point.short_ratio)} times the "
            "run's baseline"
        )
        # The doubling time costs a regression, and is of interest only while something is wrong.
        growth = tracker.verdict() if verdict != "good" else None
        return _grown(verdict, words, growth, point.short_ratio * point.baseline), kept


class Growth(OnSteps):
    """The verdict on growth that diagnosis and dashboard show, as it is, with its own windows and hysteresis."""

    kind: Literal["growth"]
    level: Literal["growing", "critical"]

    def words(self, name: str) -> str:
        return f"{name} is judged {self.level}"

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        value = _value(rule, part, facts)
        judged, kept = _judged(rule, part, facts, value, memory)
        if judged.verdict == "no_data" or value is None:
            return _missing(rule, facts), kept
        if judged.verdict == "calibrating":  # also for a while after a long gap, when an alert may be firing
            return Observation("between", "the run's baseline is not set yet", value), kept
        levels = {"growing"} if self.level == "critical" else set()
        bad = judged.verdict in {"growing", "critical"} - levels
        recent = None if judged.ratio is None or judged.baseline is None else judged.ratio * judged.baseline
        times = "unknown" if judged.ratio is None else number(judged.ratio)
        words = f"{rule.called} is at {times} times the run's baseline"
        return _grown("bad" if bad else "good", words, judged if bad else None, recent), kept


class Trend(OnSteps):
    """The metric doubles (or halves) within so many steps, by a robust line through its logarithm over `window`
    measured steps.

    Wrong only when even the flattest line of the 95 % interval rises (or falls). `clear`: it takes more steps than
    that.
    """

    kind: Literal["trend"]
    window: Annotated[int, Field(ge=10, le=1_000)] = 100
    doubling_within: Factor | None = None
    halving_within: Factor | None = None
    clear: Factor | None = None

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if (self.doubling_within is None) == (self.halving_within is None):
            raise ValueError("give either `doubling_within` or `halving_within`")
        if self.clear is not None and self.clear < self.within:
            raise ValueError("`clear` must be more steps than the rule allows")
        return self

    @property
    def within(self) -> float:
        """Steps, whichever way."""
        return self.doubling_within or self.halving_within or 0.0

    def words(self, name: str) -> str:
        return f"{name} {'doubles' if self.doubling_within else 'halves'} within {self.within:g} steps"

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        value = _value(rule, part, facts)
        if value is None or value <= 0:  # has no logarithm
            return _missing(rule, facts), memory
        recent = _recent(memory, facts, value, self.window)
        kept = {"recent": recent}
        if len(recent) < self.window:
            return Observation("between", f"{len(recent)} of {self.window} steps of the trend", value), kept
        line = theil_sen(*_blocks(recent, 1.0 if self.doubling_within is not None else -1.0))
        if line is None:
            return Observation("between", f"{rule.called} has too few distinct steps for a trend", value), kept
        return _bent(rule, self, value, line.value, line.low), kept


class Absent(OnSteps):
    """The metric has no value. `once_seen`: only after it had one in this run."""

    kind: Literal["absent"]
    once_seen: bool = True

    def words(self, name: str) -> str:
        return f"{name} has no value{', after it had one' if self.once_seen else ''}"

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        value = _value(rule, part, facts)
        if value is not None:
            return Observation("good", f"{rule.called} is measured", value), {"last": facts.step}
        last = memory.get("last")
        if last is None and self.once_seen:
            return Observation("good", f"{rule.called} was never measured in this run"), memory
        words = (
            f"{rule.called} was last measured in step {last}"
            if last is not None
            else f"{rule.called} was never measured"
        )
        return Observation("bad", words, since_step=None if last is None else last + 1), memory


class Nonfinite(OnSteps):
    """More than `above` tokens of the step have a log-prob that is not finite, or cannot be one."""

    of_metric = False
    kind: Literal["nonfinite"]
    above: Annotated[int, Field(ge=0)] = 0

    def words(self, name: str) -> str:
        return (
            f"more than {self.above} tokens have no usable log-prob" if self.above else "a token has no usable log-prob"
        )

    def reads(self, rule: Rule) -> tuple[str, ...]:
        return tuple(f"{rule.of_pair}.{name}" for name in _BROKEN)

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        counts = [facts.values.get((key, part)) for key in self.reads(rule)]
        counted = [count for count in counts if count is not None]
        if not counted:
            return Observation("missing", f"step {facts.step} has no token with both log-probs"), memory
        total = sum(counted)
        message = f"{total:.0f} tokens of step {facts.step} have no usable log-prob"
        return Observation("bad" if total > self.above else "good", message, total, "tokens"), memory


class Exact(OnSteps):
    """Engine and trainer differ in some token, in a run that was identical to the last bit before.

    `expected`: the run is meant to be identical, so any difference counts from the first step on.
    """

    of_metric = False
    kind: Literal["exact"]
    expected: bool = False

    def words(self, name: str) -> str:
        return "engine and trainer differ" + ("" if self.expected else ", after they were identical")

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        if facts.identity is None or not facts.identity.n:
            return Observation("missing", f"step {facts.step} has no token with both log-probs"), memory
        streak = memory.get("streak", 0) + 1 if facts.identity.identical else 0
        armed = self.expected or memory.get("armed", False) or streak >= identity.ENOUGH_STEPS
        kept = {"streak": streak, "armed": armed}
        if not facts.identity.differs:
            return Observation("good", f"no token of step {facts.step} differs", 0.0), kept
        differing = facts.identity.n - facts.identity.zero
        words = f"{differing} of {facts.identity.n} tokens of step {facts.step} differ between engine and trainer"
        return Observation("bad" if armed else "good", words, differing / facts.identity.n, "fraction"), kept


class Calibration(OnSteps):
    """The mean importance ratio is off 1, and neither chance nor a heavy tail explains it: metric `ratio_mean`.

    Medians over `window` measured steps: off by more than `by`, by five standard errors of that many steps, and by more
    of K3 than lag makes (`off_one` of the diagnosis says why). Where few tokens carry the mean (effective sample size)
    nothing is known.
    """

    kind: Literal["calibration"]
    by: Factor = 0.05
    window: Window = 20

    def words(self, name: str) -> str:
        return f"{name} is off 1 by more than {self.by:g}, chance and K3 allow, over {self.window} steps"

    def reads(self, rule: Rule) -> tuple[str, ...]:
        return tuple(f"{rule.of_pair}.{name}" for name in _CALIBRATION)

    def observe(self, rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
        values = [facts.values.get((key, part)) for key in self.reads(rule)]
        measured = [value for value in values if value is not None and math.isfinite(value)]
        if len(measured) < len(values):
            return _missing(rule, facts), memory
        recent = [*memory.get("recent", []), [facts.step, *measured]][-self.window :]
        if len(recent) < self.window:
            message = f"{len(recent)} of the {self.window} measured steps that are compared"
            return Observation("between", message, measured[0]), {"recent": recent}
        ratio, z, k3, ess = (median(values) for values in list(zip(*recent, strict=True))[1:])
        verdict, message = _calibrated(self, ratio, z * math.sqrt(self.window), k3, ess)
        return Observation(verdict, f"{_of(self.window)}{rule.called} is {number(ratio)}{message}", ratio), {
            "recent": recent
        }


def _check_side(above: float | None, below: float | None, clear: float) -> None:
    if (above is not None and clear > above) or (below is not None and clear < below):
        raise ValueError("`clear` is on the wrong side: the value has to return to it")


def _value(rule: Rule, part: str | None, facts: StepFacts) -> float | None:
    value = None if rule.key is None else facts.values.get((rule.key, part))
    return value if value is not None and math.isfinite(value) else None


def _missing(rule: Rule, facts: StepFacts) -> Observation:
    return Observation("missing", f"{rule.called} was not measured in step {facts.step}")


def _recent(memory: Memory, facts: StepFacts, value: float, window: int) -> list[list[float]]:
    """The last `window` measured steps as [step, value], this one included."""
    return [*memory.get("recent", []), [facts.step, value]][-window:]


def _of(window: int) -> str:
    return "" if window == 1 else f"the median of the last {window} steps of "


def _limits(when: Threshold) -> str:
    if when.above is not None and when.below is not None:
        return f"between {number(when.below)} and {number(when.above)}"
    return f"at most {number(when.above)}" if when.above is not None else f"at least {number(when.below)}"


def _side(value: float, when: Threshold) -> Any:
    if (when.above is not None and value > when.above) or (when.below is not None and value < when.below):
        return "bad"
    if when.clear is None:
        return "good"
    cleared = value <= when.clear if when.above is not None else value >= when.clear
    return "good" if cleared else "between"


def _calibrated(when: Calibration, ratio: float, z: float, k3: float, ess: float) -> tuple[Any, str]:
    if abs(ratio - 1) <= when.by:
        return "good", ""
    if ess < _CARRYING:
        return "between", f", but {ess:.1%} of the tokens carry it: whether it should be 1 is not known"
    if not off_one(ratio - 1, z, k3):
        return "good", f": no more than lag with K3 {number(k3)} makes of it"
    return "bad", f"; it should be 1 ({z:.0f} standard errors, K3 {number(k3)})"


def _growth_rule(when: Ratio) -> GrowthRule:
    threshold = GrowthThreshold(
        short=when.short,
        short_ratio=when.above,
        long=when.long,
        long_ratio=when.above_long,
        confirm=1,
        clear_ratio=when.clear,
        clear_steps=1,
    )
    return GrowthRule(floor=when.floor, growing=threshold, critical=threshold)


def _judged(
    rule: Rule, part: str | None, facts: StepFacts, value: float | None, memory: Memory
) -> tuple[Judged, Memory]:
    """As everybody sees the growth of K3; the growth of another metric, or of a slice, is this rule's own to judge."""
    if (rule.key, part) == (K3, None) and facts.growth is not None:
        return facts.growth, {}
    tracker = Tracker(RULE, memory.get("tracker"))
    return take(tracker, facts.step, value), {"tracker": tracker.state()}


def _grown(verdict: Any, words: str, growth: Judged | GrowthVerdict | None, value: float | None) -> Observation:
    if growth is None:
        return Observation(verdict, words, value)
    return Observation(
        verdict,
        "; ".join(growth.reasons) if growth.since_step is not None else words,
        value,
        baseline=growth.baseline,
        since_step=growth.since_step,
        doubling_steps=growth.doubling_steps,
    )


def _blocks(recent: Sequence[Sequence[float]], sign: float) -> tuple[list[float], list[float]]:
    """First steps and median logarithms of blocks: neighbouring steps are alike, and the interval takes points as
    independent."""
    size = max(1, len(recent) // _TREND_BLOCKS)
    starts = range(len(recent) % size, len(recent), size)
    medians = [sign * median(math.log(value) for _, value in recent[start : start + size]) for start in starts]
    return [recent[start][0] for start in starts], medians


def _bent(rule: Rule, when: Trend, value: float, slope: float, flattest: float) -> Observation:
    word = "doubles" if when.doubling_within is not None else "halves"
    if slope <= 0 or flattest <= 0:
        return Observation("good", f"{rule.called} has no significant trend", value)
    steps = math.log(2) / slope
    verdict: Any = "bad" if steps <= when.within else "good" if steps > (when.clear or when.within) else "between"
    return Observation(verdict, f"{rule.called} {word} every {steps:.0f} steps", value, doubling_steps=steps)
