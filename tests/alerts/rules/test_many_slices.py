"""A rule judges so many slices; that there are others is said, and they are never taken for quiet ones."""

from __future__ import annotations

from typing import Any

import alert_scenario

from logprobe.alerts.rules.judging.evaluation import MOST_SLICES
from logprobe.alerts.rules.judging.states import Phase

RULE = {"name": "replica-off", "metric": "k3_kl", "slice": "replica", "when": {"kind": "threshold", "above": 0.5}}


def alerts_after(slices: int, steps: int = 3) -> dict[str | None, Any]:
    series = {f"backend.k3_kl{{replica=r{number:03}}}": " ".join(["1.0"] * steps) for number in range(slices)}
    *_, (alerts, _, _) = alert_scenario.play({"rules": {"rules": [RULE]}, "series": series})
    return {alert.slice: alert for alert in alerts}


def test_the_last_slice_within_the_limit_is_judged() -> None:
    alerts = alerts_after(MOST_SLICES)
    assert len(alerts) == MOST_SLICES
    assert {alert.state.phase for alert in alerts.values()} == {Phase.FIRING}


def test_the_first_one_past_it_is_said_to_be_unknown() -> None:
    alerts = alerts_after(MOST_SLICES + 1)
    others = alerts.pop("replica (others)")
    assert {alert.state.phase for alert in alerts.values()} == {Phase.FIRING}
    assert len(alerts) == MOST_SLICES
    assert others.state.phase is Phase.NO_DATA
    assert others.observation is not None
    assert others.observation.words == f"a rule judges {MOST_SLICES} slices; the others are not judged"
