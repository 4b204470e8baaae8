"""Words of a notification."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alert_notes import NOTE

from logprobe.alerts.sending import messages


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(0.031, "nats", "0.031 nats"), (0.98, "fraction", "0.98"), (float("inf"), "nats", "inf nats"), (0.5, None, "0.5")],
)
def test_value(value: float, unit: str | None, expected: str) -> None:
    assert dict(messages.facts(replace(NOTE, value=value, unit=unit)))["Value"] == expected


def test_plain_text_has_everything() -> None:
    note = replace(NOTE, fix="switch MIS on", more="logprobe show run", link="http://x/step")
    assert messages.plain(note).splitlines() == [
        "Critical: k3 grows · run",
        "K3 of backend is 26 times its baseline",
        "Metric: backend.k3_kl",
        "Value: 0.031 nat",
        "Step: 140 (since 118)",
        "What to do: switch MIS on",
        "Preceding change: weight sync 14",
        "More: logprobe show run",
        "http://x/step",
    ]
    assert "\n" not in messages.one_line(replace(NOTE, summary="two\nlines"))
