"""When a rule fires, as a sentence fragment for lists. Pure."""

from __future__ import annotations

from typing import Final

from logprobe.alerts.rules import rule as rules
from logprobe.alerts.rules.rule import Rule

_EVENTS: Final = {
    "no_new_step": "no new step for {times:g}× the usual time",
    "collector_stopped": "one collector is silent while others are not",
    "plugin_missing": "{steps} steps without engine records that the trainer relies on",
    "ended_silently": "records and heartbeats stop without an end",
    "host_failed": "a recording process dies of an error",
}


def fires_when(rule: Rule) -> str:
    """The condition in words, with how long it has to hold.

    >>> when = {"kind": "threshold", "above": 0.1, "window": 20}
    >>> fires_when(Rule.model_validate({"name": "high", "metric": "k3_kl", "when": when, "for": 5}))
    'K3 above 0.1, median of 20 steps, for 5 steps'
    """
    parts = [_condition(rule), "" if rule.slice is None else f"in any part by {rule.slice}"]
    held = f"for {rule.for_} steps" if rule.for_ > 1 else ""
    return ", ".join(part for part in (*parts, held) if part)


def _condition(rule: Rule) -> str:  # noqa: C901, PLR0911 -- one line per kind
    when, name = rule.when, rule.called
    match when:
        case rules.Threshold():
            return _threshold(when, name)
        case rules.Calibration():
            return f"{name} is off 1 by more than {when.by:g}, chance and K3 allow, over {when.window} steps"
        case rules.Ratio():
            return f"{name} above {when.above:g}× its baseline over {when.short} steps and {when.above_long:g}× over {when.long}"
        case rules.Growth():
            return f"{name} is judged {when.level}"
        case rules.Trend():
            return f"{name} {'doubles' if when.doubling_within else 'halves'} within {when.within:g} steps"
        case rules.Absent():
            return f"{name} has no value{', after it had one' if when.once_seen else ''}"
        case rules.Nonfinite():
            return (
                f"more than {when.above} tokens have no usable log-prob"
                if when.above
                else "a token has no usable log-prob"
            )
        case rules.Exact():
            return "engine and trainer differ" + ("" if when.expected else ", after they were identical")
        case rules.Diagnosed():
            return _diagnosed(when)
        case rules.Unacknowledged():
            return "the trainer does not confirm a correction"
        case rules.Doubled():
            return "sequences are stored twice"
        case rules.DeadMan():
            return _EVENTS[when.event].format(times=when.times, steps=when.steps)


def _threshold(when: rules.Threshold, name: str) -> str:
    sides = [f"{side} {limit:g}" for side, limit in (("below", when.below), ("above", when.above)) if limit is not None]
    return f"{name} {' or '.join(sides)}" + (f", median of {when.window} steps" if when.window > 1 else "")


def _diagnosed(when: rules.Diagnosed) -> str:
    if when.verdicts:
        return f"the verdict is {' or '.join(when.verdicts).replace('_', ' ')}"
    named = " or ".join([*when.causes, *(f"a cause of the layer {layer}" for layer in when.layers)]).replace("_", " ")
    return f"the diagnosis names {named}, at least {when.confidence:.0%} sure"
