"""The picture that proves a finding, as a block of `browser/report.js`. Pure."""

from __future__ import annotations

from logprobe.app.dashboard.charts.scales import floor_of
from logprobe.app.dashboard.elements.blocks import Block
from logprobe.app.text.numbers import number
from logprobe.monitor.diagnosis.culprit import Picture


def picture(proof: Picture) -> Block:
    """K3 of the tokens concerned beside that of the others, on a logarithmic axis where all values allow one."""
    values = [value for points in proof.lines.values() for _, value in points if value is not None]
    log = bool(values) and min(values) > 0
    steps = [step for points in proof.lines.values() for step, _ in points]
    limits = [] if proof.limit is None else [{"word": proof.limit_name, "value": proof.limit, "quiet": True}]
    since = "" if proof.since is None else f" Since step {proof.since:,}."
    return {
        "type": "picture",
        "name": f"{proof.cause}-k3",
        "title": "K3 by step",
        "hint": "some steps are left out" if proof.sampled else "",
        "unit": "nats",
        "lines": [{"slice": name, "points": list(points)} for name, points in proof.lines.items()],
        "limits": limits,
        "spans": [],
        "marks": []
        if proof.since is None
        else [{"step": proof.since, "words": f"since step {proof.since:,}", "tone": "critical"}],
        "log": log,
        "floor": floor_of(values, [] if proof.limit is None else [proof.limit]) if log else None,
        "whole": [min(steps), max(*steps, min(steps) + 1)],
        "alt": f"{proof.words}{since} Newest: {_newest(proof)}.",
    }


def _newest(proof: Picture) -> str:
    last = {name: next((v for _, v in reversed(points) if v is not None), None) for name, points in proof.lines.items()}
    return ", ".join(f"{name} {number(value)}" for name, value in last.items())
