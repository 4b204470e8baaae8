"""What the Alerts and Actions pages offer follows from the state, and from whether anything can be done at all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from logprobe.app.dashboard.pages.actions import actions_blocks
from logprobe.app.dashboard.pages.alerts import Alerts, alerts_blocks

STANDING: dict[str, Any] = {
    "rule": "gap-growing", "slice": "", "severity": "warning", "phase": "firing", "started_step": 12, "value": None, "words": None,
    "episode": "r/gap-growing/1", "acknowledged_by": None, "muted": None,
}  # fmt: skip
CONTROL: dict[str, Any] = {
    "run": "r", "mode": "suggest", "phase": "idle", "stopped": False, "from_step": None, "config": {"is_upper": 5.0}, "actions": [],
}  # fmt: skip


def table(blocks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    (found,) = [block["rows"] for block in blocks if block["type"] == "table" and block["name"] == name]
    return list(found)


def switches(document: dict[str, Any], blocked: str = "") -> dict[str, dict[str, Any]]:
    (found,) = [
        block["actions"] for block in actions_blocks(document, None, blocked=blocked) if block["type"] == "actions"
    ]
    return {action["label"]: action for action in found}


def offered(standing: dict[str, Any]) -> list[str]:
    blocks = alerts_blocks(Alerts([standing], [], [], []), run="r", blocked="")
    (row,) = table(blocks, "pending" if standing["phase"] == "pending" else "firing")
    return [action["id"] for action in row["actions"]]


def test_only_what_fires_and_is_nobodys_can_be_acknowledged() -> None:
    assert offered(STANDING) == ["ack", "silence"]
    assert offered(STANDING | {"acknowledged_by": "Ada"}) == ["silence"]
    assert offered(STANDING | {"phase": "pending", "episode": None}) == ["silence"]


def test_unknown_values_are_no_zeros() -> None:
    (row,) = table(alerts_blocks(Alerts([STANDING], [], [], []), run="r", blocked=""), "firing")
    assert row["cells"] == ["gap-growing", "warning", "step 12", "–", "–", "nobody"]


def test_every_button_is_blocked_while_nothing_can_be_done() -> None:
    silence = {"id": "1", "matchers": "{}", "author": "Ada", "reason": "known", "expires_at": datetime.now(UTC)}
    blocks = alerts_blocks(Alerts([STANDING], [], [silence], []), run="r", blocked="away")
    rows = [*table(blocks, "firing"), *table(blocks, "silences")]
    assert {action["disabled"] for row in rows for action in row["actions"]} == {"away"}
    assert {action["disabled"] for action in switches(CONTROL, "away").values()} == {"away"}


def test_the_switches_follow_the_state() -> None:
    idle = switches(CONTROL)
    assert list(idle) == ["Preview", "Switch on", "Arm", "Kill switch"]
    assert not any(action["disabled"] for action in idle.values())
    assert list(switches(CONTROL | {"phase": "applied", "mode": "armed"})) == [
        "Preview", "Switch off", "Only suggest", "Kill switch",
    ]  # fmt: skip
    stopped = switches(CONTROL | {"stopped": True})
    assert stopped["Switch on"]["disabled"] == "the kill switch is set"
    assert not stopped["Release the kill switch"]["disabled"]


def test_a_preview_says_what_speaks_against_it() -> None:
    preview = {
        "steps": (1, 5),
        "tokens": 900,
        "masked_tokens": 0.083,
        "masked_sequences": 0.0,
        "masked_advantage": None,
        "weight_ess": 0.9,
    }
    foreseen = {"step": 5, "preview": preview, "refusal": {"reason": "upstream", "words": "fix raw_logprobs first"}}
    shown = str(actions_blocks(CONTROL, foreseen, blocked=""))
    assert "['masked tokens', '8.3%']" in shown
    assert "['masked advantage', '–']" in shown
    assert "fix raw_logprobs first" in shown
