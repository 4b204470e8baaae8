"""Notifications in words, the same for every channel. Pure: from a notification to text."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from logprobe.alerts.notification import CLOSED, Notification
from logprobe.monitor.liveness import span_words
from logprobe.monitor.number_text import number

_HEADINGS: Final = {
    "resolved": "Resolved",
    "acknowledged": "Acknowledged",
    "no_data": "No data",
    "updated": "Updated",
    "still_firing": "Still firing",
    CLOSED: "Closed",
}
_LAYERS: Final = {
    "semantic": "semantic: the engine reports log-probs it did not sample from",
    "inference_path": "inference path: the engine computes them differently",
    "objective": "objective: the policies differ, a correction applies",
    "unknown": "unknown: no test names the cause",
}
_UNITLESS: Final = ("", "fraction", "1e-4")


def heading(notification: Notification) -> str:
    """What happened to which rule and run, in a few words."""
    state = notification.state
    word = notification.severity.capitalize() if state == "firing" else _HEADINGS.get(state, _words(state))
    return f"{word}: {notification.rule} · {notification.run}"


def title(notification: Notification) -> str:
    """What stands above a message that is brought up to date: the incident and how it stands, or the episode."""
    n = notification
    if n.incident is None:
        return heading(n)
    return f"Incident {n.incident}: {'closed' if n.state == CLOSED else n.run_severity or n.severity}"


def facts(notification: Notification) -> list[tuple[str, str]]:
    """What is known, as (name, value); what is unknown is left out."""
    n = notification
    rows = [
        ("Run now", n.run_severity or ""),
        ("Series", " · ".join(part for part in (n.metric, n.pair, n.slice) if part)),
        ("Value", _value(n)),
        ("Step", _step(n)),
        ("Doubles in", f"{_number(n.doubling_steps)} steps" if n.doubling_steps is not None else ""),
        ("Layer", _LAYERS.get(n.layer, n.layer) if n.layer else ""),
        ("Cause", n.cause or ""),
    ]
    return [(name, value) for name, value in rows if value]


def plain(notification: Notification) -> str:
    """The whole message as plain text of several lines."""
    n = notification
    lines = [heading(n), n.summary, *(f"{name}: {value}" for name, value in facts(n))]
    if n.fix:
        lines.append(f"What to do: {n.fix}")
    lines += [f"Preceding change: {change}" for change in n.changes]
    if n.description:
        lines.append(n.description)
    if n.link:
        lines.append(n.link)
    if n.runbook:
        lines.append(f"Runbook: {n.runbook}")
    return "\n".join(lines)


def one_line(notification: Notification) -> str:
    """The message in one line, for a log or where nothing else can be shown."""
    return " ".join(f"{heading(notification)}: {notification.summary}".split())


def _value(n: Notification) -> str:
    if n.value is None:
        return ""
    if n.unit == "seconds" and math.isfinite(n.value) and n.baseline is None:
        return span_words(timedelta(seconds=n.value))
    unit = f" {n.unit}" if n.unit and n.unit not in _UNITLESS else ""
    if n.baseline is None:
        return f"{_number(n.value)}{unit}"
    times = f", ×{_number(n.value / n.baseline)}" if n.baseline > 0 and math.isfinite(n.value / n.baseline) else ""
    return f"{_number(n.value)}{unit} (baseline {_number(n.baseline)}{times})"


def _step(n: Notification) -> str:
    if n.step is None:
        return f"since {n.since_step}" if n.since_step is not None else ""
    return f"{n.step} (since {n.since_step})" if n.since_step is not None else str(n.step)


def _number(value: float) -> str:
    return number(value) if math.isfinite(value) else str(value)


def _words(state: str) -> str:
    return state.replace("_", " ").capitalize()
