"""Texts of notifications, the same for every channel. Pure."""

from __future__ import annotations

import math
from typing import Final

from logprobe.alerts.notification import CLOSED, Notification
from logprobe.monitor.number_text import number

_LAYERS: Final = {
    "semantic": "semantic: the engine reports log-probs it did not sample from",
    "inference_path": "inference path: the engine computes them differently",
    "objective": "objective: the policies differ, a correction applies",
    "unknown": "unknown: no test names the cause",
}
_UNITLESS: Final = (None, "", "fraction", "1e-4")


def heading(n: Notification) -> str:
    """Return a short heading of event, rule and run."""
    word = (n.level or n.severity) if n.state == "firing" else n.state.replace("_", " ")
    return f"{word.capitalize()}: {n.rule} · {n.run}"


def title(n: Notification) -> str:
    """Return the title of an updated message: the incident with its state, or the episode."""
    if n.incident is None:
        return heading(n)
    return f"Incident {n.incident}: {'closed' if n.state == CLOSED else n.run_severity or n.severity}"


def facts(n: Notification) -> list[tuple[str, str]]:
    """Return the known facts as (name, value)."""
    since = "" if n.since_step is None else f"since {n.since_step}"
    step = since if n.step is None else f"{n.step} ({since})" if since else str(n.step)
    value = "" if n.value is None else number(n.value) if math.isfinite(n.value) else str(n.value)
    rows = [
        ("Run now", n.run_severity),
        ("Metric", n.metric),
        ("Value", f"{value} {n.unit}" if value and n.unit not in _UNITLESS else value),
        ("Step", step),
        ("Layer", _LAYERS.get(n.layer or "", n.layer)),
        ("Cause", n.cause),
    ]
    return [(name, value) for name, value in rows if value]


def plain(n: Notification) -> str:
    """Return the whole message as plain text of several lines."""
    lines = [heading(n), n.summary, *(f"{name}: {value}" for name, value in facts(n))]
    lines += [f"What to do: {n.fix}"] if n.fix else []
    lines += [f"Preceding change: {change}" for change in n.changes]
    lines += [f"More: {n.more}"] if n.more else []
    return "\n".join([*lines, n.link] if n.link else lines)


def one_line(n: Notification) -> str:
    """Return the message in one line, for logs and channels with one line."""
    return " ".join(f"{heading(n)}: {n.summary}".split())
