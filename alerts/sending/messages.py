"""Notifications in words, the same for every channel. Pure: from a notification to text."""

from __future__ import annotations

import math
from typing import Final

from logprobe.alerts.notification import CLOSED, Notification
from logprobe.monitor.number_text import number

_HEADINGS: Final = {
    "resolved": "Resolved",
    "acknowledged": "Acknowledged",
    "changed": "Changed",
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
    """Return event, rule and run in a few words."""
    state = notification.state
    now = notification.level or notification.severity
    word = now.capitalize() if state == "firing" else _HEADINGS.get(state, _words(state))
    return f"{word}: {notification.rule} · {notification.run}"


def title(notification: Notification) -> str:
    """Return the title of a message that is brought up to date: the incident and how it stands, or the episode."""
    n = notification
    if n.incident is None:
        return heading(n)
    return f"Incident {n.incident}: {'closed' if n.state == CLOSED else n.run_severity or n.severity}"


def facts(notification: Notification) -> list[tuple[str, str]]:
    """Return the known facts as (name, value)."""
    n = notification
    rows = [
        ("Run now", n.run_severity or ""),
        ("Metric", n.metric or ""),
        ("Value", _value(n)),
        ("Step", _step(n)),
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
    if n.more:
        lines.append(f"More: {n.more}")
    if n.link:
        lines.append(n.link)
    return "\n".join(lines)


def one_line(notification: Notification) -> str:
    """The message in one line, for a log or where nothing else can be shown."""
    return " ".join(f"{heading(notification)}: {notification.summary}".split())


def _value(n: Notification) -> str:
    if n.value is None:
        return ""
    unit = f" {n.unit}" if n.unit and n.unit not in _UNITLESS else ""
    return f"{_number(n.value)}{unit}"


def _step(n: Notification) -> str:
    if n.step is None:
        return f"since {n.since_step}" if n.since_step is not None else ""
    return f"{n.step} (since {n.since_step})" if n.since_step is not None else str(n.step)


def _number(value: float) -> str:
    return number(value) if math.isfinite(value) else str(value)


def _words(state: str) -> str:
    return state.replace("_", " ").capitalize()
