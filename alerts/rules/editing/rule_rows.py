"""Rules as an editor shows them: where each stands, and the fields of a form for the common kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from logprobe.alerts.rules.editing.wording import fires_when
from logprobe.alerts.rules.rule import Rule, Threshold
from logprobe.alerts.rules.rule_file import OVERLAY

BUILT_IN: Final = "built in"


class Layer(NamedTuple):
    """What one file says of a rule: its name, or `BUILT_IN`, and the text of the entry."""

    file: str
    text: str


def row(rule: Rule, layers: Sequence[Layer], in_force: Mapping[str, Rule]) -> dict[str, Any]:
    """A rule for a list. `below`: what `layers` say below the entry that is edited; `own`: that entry is the editor's."""
    return {
        "name": rule.name,
        "severity": rule.severity,
        "kind": rule.when.kind,
        "metric": rule.key,
        "fires": fires_when(rule),
        "slice": rule.slice,
        "enabled": rule.enabled,
        "special": rule.enabled and in_force.get(rule.name) != rule,
        "where": ", changed in ".join(layer.file for layer in layers),
        "own": bool(layers) and layers[-1].file == OVERLAY,
        "text": layers[-1].text if layers else "",
        "below": [layer._asdict() for layer in layers[:-1]],
        "form": form(rule, shipped=bool(layers) and layers[0].file == BUILT_IN),
    }


def form(rule: Rule, *, shipped: bool) -> dict[str, Any] | None:
    """The fields of a guided form; None: the rule says more than the form has room for. What is `shipped` stays below an entry."""
    when, said = rule.when, rule.annotations
    if not isinstance(when, Threshold) or (when.above is not None and when.below is not None):
        return None
    if not shipped and (rule.cause or rule.layer or rule.labels or said.description or said.runbook or said.fix):
        return None
    says = {"above": when.above, "below": when.below}
    side = next(name for name, value in says.items() if value is not None)
    return {
        "name": rule.name,
        "metric": rule.key,
        "slice": rule.slice or "",
        "side": side,
        "limit": says[side],
        "clear": when.clear,
        "window": when.window,
        "for": rule.for_,
        "keep_firing": rule.keep_firing,
        "severity": rule.severity,
        "summary": rule.annotations.summary,
    }
