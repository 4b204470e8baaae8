"""Words of a notification."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alert_notes import NOTE

from logprobe.alerts.sending import messages


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("firing", "Critical: k3 grows · run"),
        ("resolved", "Resolved: k3 grows · run"),
        ("no_data", "No data: k3 grows · run"),
        ("mis_armed", "Mis armed: k3 grows · run"),
    ],
)
def test_heading(state: str, expected: str) -> None:
    assert messages.heading(replace(NOTE, state=state)) == expected


@pytest.mark.parametrize(
    ("value", "baseline", "unit", "expected"),
    [
        (0.031, 0.0012, "nats", "0.031 nats (baseline 0.0012, ×25.8)"),
        (0.98, None, "fraction", "0.98"),
        (2400.0, None, "seconds", "40 min"),
        (float("inf"), None, "seconds", "inf seconds"),
        (float("inf"), 0.1, "nats", "inf nats (baseline 0.1)"),
        (0.5, 0.0, None, "0.5 (baseline 0)"),
    ],
)
def test_value(value: float, baseline: float | None, unit: str | None, expected: str) -> None:
    assert dict(messages.facts(replace(NOTE, value=value, baseline=baseline, unit=unit)))["Value"] == expected


def test_plain_text_has_everything() -> None:
    note = replace(
        NOTE, fix="switch MIS on", description="They drift apart.", link="http://x/step", runbook="http://x/run"
    )
    assert messages.plain(note).splitlines() == [
        "Critical: k3 grows · run",
        "K3 of backend is 26 times its baseline",
        "Series: k3_kl · backend",
        "Value: 0.031 nat (baseline 0.0012, ×25.8)",
        "Step: 140 (since 118)",
        "Doubles in: 12.5 steps",
        "What to do: switch MIS on",
        "Preceding change: weight sync 14",
        "They drift apart.",
        "http://x/step",
        "Runbook: http://x/run",
    ]


def test_one_line_is_one_line() -> None:
    assert "\n" not in messages.one_line(replace(NOTE, summary="two\nlines"))
