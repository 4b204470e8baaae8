"""What each kind of condition sees in a step. Pure: facts and what it remembers in, an observation and what it remembers out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from logprobe.alerts.rules.judging.observation import Memory, Observation, StepFacts
from logprobe.alerts.rules.rule import Absent, Calibration, Exact, Growth, Nonfinite, Ratio, Rule, Threshold, Trend
from logprobe.monitor.analysis import identity
from logprobe.monitor.diagnosis.evidence.measures import off_one
from logprobe.monitor.diagnosis.growth.judging import Judged, take
from logprobe.monitor.diagnosis.growth.onset import Tracker
from logprobe.monitor.diagnosis.growth.rule import K3, RULE, GrowthRule
from logprobe.monitor.diagnosis.growth.rule import Threshold as GrowthThreshold
from logprobe.monitor.diagnosis.growth.trend import theil_sen
from logprobe.monitor.diagnosis.result import Growth as GrowthVerdict

_BROKEN: Final = ("nonfinite_tokens", "impossible_tokens")
_CALIBRATION: Final = ("ratio_mean", "calibration_z", "k3_kl", "ess")
_CARRYING: Final = 0.1  # of the tokens carry the mean ratio; where fewer do, it says nothing
_TREND_BLOCKS: Final = 20
# What Python raises for numbers that do not fit a formula, or for a memory that an older version left behind.
_EVALUATION_ERRORS: Final = (ArithmeticError, LookupError, TypeError, ValueError)


def observe(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    """What `rule` sees in one step.

    Args:
        rule: with a condition on steps.
        part: the slice that is looked at; None: the whole step.
        facts: of the step.
        memory: what the last call returned; empty at first.
    """
    try:
        return _OBSERVERS[type(rule.when)](rule, part, facts, memory)
    except _EVALUATION_ERRORS as error:
        # One rule that cannot be evaluated says so, and the others go on.
        return Observation("error", f"the rule cannot be evaluated ({type(error).__name__}: {error})"), memory


def metrics_of(rule: Rule) -> tuple[str, ...]:
    """Catalog keys that the rule's condition reads."""
    if isinstance(rule.when, Nonfinite):
        return tuple(f"{rule.of_pair}.{name}" for name in _BROKEN)
    if isinstance(rule.when, Calibration):
        return tuple(f"{rule.of_pair}.{name}" for name in _CALIBRATION)
    return () if rule.key is None else (rule.key,)


def number(value: float | None) -> str:
    """For sentences: three digits."""
    return "unknown" if value is None else f"{value:.3g}"


def _value(rule: Rule, part: str | None, facts: StepFacts) -> float | None:
    value = None if rule.key is None else facts.values.get((rule.key, part))
    return value if value is not None and math.isfinite(value) else None


def _missing(rule: Rule, facts: StepFacts) -> Observation:
    return Observation("missing", f"{rule.called} was not measured in step {facts.step}")


def _recent(memory: Memory, facts: StepFacts, value: float, window: int) -> list[list[float]]:
    """The last `window` measured steps as [step, value], this one included."""
    return [*memory.get("recent", []), [facts.step, value]][-window:]


def _threshold(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Threshold = rule.when  # type: ignore[assignment]
    value = _value(rule, part, facts)
    if value is None:
        return _missing(rule, facts), memory
    recent = _recent(memory, facts, value, when.window)
    if len(recent) < when.window:
        words = f"{len(recent)} of the {when.window} measured steps that are compared"
        return Observation("between", words, value), {"recent": recent}
    judged = median(point[1] for point in recent)
    words = f"{_of(when.window)}{rule.called} is {number(judged)}; it should be {_limits(when)}"
    return Observation(_side(judged, when), words, judged), {"recent": recent}


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


def _calibration(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Calibration = rule.when  # type: ignore[assignment]
    values = [facts.values.get((key, part)) for key in metrics_of(rule)]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values):
        return _missing(rule, facts), memory
    recent = [*memory.get("recent", []), [facts.step, *known]][-when.window :]
    if len(recent) < when.window:
        words = f"{len(recent)} of the {when.window} measured steps that are compared"
        return Observation("between", words, known[0]), {"recent": recent}
    ratio, z, k3, ess = (median(values) for values in list(zip(*recent, strict=True))[1:])
    verdict, words = _calibrated(when, ratio, z * math.sqrt(when.window), k3, ess)
    return Observation(verdict, f"{_of(when.window)}{rule.called} is {number(ratio)}{words}", ratio), {"recent": recent}


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


def _ratio(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Ratio = rule.when  # type: ignore[assignment]
    value = _value(rule, part, facts)
    tracker = Tracker(_growth_rule(when), memory.get("tracker"))
    point = tracker.add(facts.step, value)
    kept = {"tracker": tracker.state()}
    if value is None:
        return _missing(rule, facts), kept
    if point.baseline is None or point.short_ratio is None or point.long_ratio is None:
        return Observation("between", "the run's baseline is not set yet", value), kept
    bad = point.short_ratio > when.above and point.long_ratio > when.above_long
    verdict: Any = "bad" if bad else "good" if point.short_ratio < when.clear else "between"
    words = f"the median of the last {when.short} steps of {rule.called} is {number(point.short_ratio)} times the run's baseline"
    # The doubling time costs a regression, and is of interest only while something is wrong.
    growth = tracker.verdict() if verdict != "good" else None
    return _grown(verdict, words, growth, point.short_ratio * point.baseline), kept


def _growth(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Growth = rule.when  # type: ignore[assignment]
    value = _value(rule, part, facts)
    judged, kept = _judged(rule, part, facts, value, memory)
    if judged.verdict == "no_data" or value is None:
        return _missing(rule, facts), kept
    if judged.verdict == "calibrating":  # also for a while after a long gap, when an alert may be firing
        return Observation("between", "the run's baseline is not set yet", value), kept
    levels = {"growing"} if when.level == "critical" else set()
    bad = judged.verdict in {"growing", "critical"} - levels
    recent = None if judged.ratio is None or judged.baseline is None else judged.ratio * judged.baseline
    words = f"{rule.called} is at {number(judged.ratio)} times the run's baseline"
    return _grown("bad" if bad else "good", words, judged if bad else None, recent), kept


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


def _trend(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Trend = rule.when  # type: ignore[assignment]
    value = _value(rule, part, facts)
    if value is None or value <= 0:  # has no logarithm
        return _missing(rule, facts), memory
    recent = _recent(memory, facts, value, when.window)
    kept = {"recent": recent}
    if len(recent) < when.window:
        return Observation("between", f"{len(recent)} of {when.window} steps of the trend", value), kept
    line = theil_sen(*_blocks(recent, 1.0 if when.doubling_within is not None else -1.0))
    if line is None:
        return Observation("between", f"{rule.called} has too few distinct steps for a trend", value), kept
    return _bent(rule, when, value, line.value, line.low), kept


def _blocks(recent: Sequence[Sequence[float]], sign: float) -> tuple[list[float], list[float]]:
    """First steps and median logarithms of blocks: neighbouring steps are alike, and the interval takes points as independent."""
    size = max(1, len(recent) // _TREND_BLOCKS)
    starts = range(len(recent) % size, len(recent), size)
    medians = [sign * median(math.log(known) for _, known in recent[start : start + size]) for start in starts]
    return [recent[start][0] for start in starts], medians


def _bent(rule: Rule, when: Trend, value: float, slope: float, flattest: float) -> Observation:
    word = "doubles" if when.doubling_within is not None else "halves"
    if slope <= 0 or flattest <= 0:
        return Observation("good", f"{rule.called} has no significant trend", value)
    steps = math.log(2) / slope
    verdict: Any = "bad" if steps <= when.within else "good" if steps > (when.clear or when.within) else "between"
    return Observation(verdict, f"{rule.called} {word} every {steps:.0f} steps", value, doubling_steps=steps)


def _absent(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Absent = rule.when  # type: ignore[assignment]
    value = _value(rule, part, facts)
    if value is not None:
        return Observation("good", f"{rule.called} is measured", value), {"last": facts.step}
    last = memory.get("last")
    if last is None and when.once_seen:
        return Observation("good", f"{rule.called} was never measured in this run"), memory
    words = (
        f"{rule.called} was last measured in step {last}" if last is not None else f"{rule.called} was never measured"
    )
    return Observation("bad", words, since_step=None if last is None else last + 1), memory


def _nonfinite(rule: Rule, part: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Nonfinite = rule.when  # type: ignore[assignment]
    counts = [facts.values.get((key, part)) for key in metrics_of(rule)]
    known = [count for count in counts if count is not None]
    if not known:
        return Observation("missing", f"step {facts.step} has no token with both log-probs"), memory
    total = sum(known)
    words = f"{total:.0f} tokens of step {facts.step} have no usable log-prob"
    return Observation("bad" if total > when.above else "good", words, total, "tokens"), memory


def _exact(rule: Rule, _: str | None, facts: StepFacts, memory: Memory) -> tuple[Observation, Memory]:
    when: Exact = rule.when  # type: ignore[assignment]
    if facts.identity is None or not facts.identity.n:
        return Observation("missing", f"step {facts.step} has no token with both log-probs"), memory
    streak = memory.get("streak", 0) + 1 if facts.identity.identical else 0
    armed = when.expected or memory.get("armed", False) or streak >= identity.ENOUGH_STEPS
    kept = {"streak": streak, "armed": armed}
    if not facts.identity.differs:
        return Observation("good", f"no token of step {facts.step} differs", 0.0), kept
    differing = facts.identity.n - facts.identity.zero
    words = f"{differing} of {facts.identity.n} tokens of step {facts.step} differ between engine and trainer"
    return Observation("bad" if armed else "good", words, differing / facts.identity.n, "fraction"), kept


_Observer = Callable[[Rule, str | None, StepFacts, Memory], tuple[Observation, Memory]]
_OBSERVERS: Final[Mapping[type, _Observer]] = {
    Threshold: _threshold,
    Calibration: _calibration,
    Ratio: _ratio,
    Growth: _growth,
    Trend: _trend,
    Absent: _absent,
    Nonfinite: _nonfinite,
    Exact: _exact,
}


def parts_of(rule: Rule, facts: StepFacts | None) -> list[str | None]:
    """The slices of a step that a rule looks at; of no step: those that it names."""
    if rule.slice is None:
        return [None]
    dimension, named, _ = rule.slice.partition("=")
    if named:
        return [rule.slice]
    return [] if facts is None else [f"{dimension}={name}" for name in sorted(facts.slices.get(dimension, ()))]
