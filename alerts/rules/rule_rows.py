"""Rules as an editor shows them: where each stands, and the fields of a form for the common kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logprobe.alerts.rules.rule import Rule, Threshold


def row(rule: Rule, shipped: str | None, own: str | None, in_force: Mapping[str, Rule]) -> dict[str, Any]:
    """A rule for a list. `origin`: ``shipped``, ``changed`` (shipped, and the home's file says more) or ``home``."""
    origin = "home" if shipped is None else "shipped" if own is None else "changed"
    return {
        "name": rule.name,
        "severity": rule.severity,
        "kind": rule.when.kind,
        "metric": rule.key,
        "slice": rule.slice,
        "enabled": rule.enabled,
        "special": rule.enabled and in_force.get(rule.name) != rule,
        "origin": origin,
        "text": own or shipped or "",
        "shipped": shipped,
        "form": form(rule, shipped=shipped is not None),
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
