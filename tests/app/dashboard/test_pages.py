"""What the Alerts and Actions pages offer follows from the state, and from whether anything can be done at all."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from logprobe.app.dashboard.page_table import PAGES
from logprobe.app.dashboard.pages.actions import actions_blocks, outcome_blocks, spans_of
from logprobe.app.dashboard.pages.alerts import Alerts, alerts_blocks, channels_blocks, snooze

STANDING: dict[str, Any] = {
    "rule": "gap-growing", "severity": "warning", "phase": "firing", "started_step": 12, "step": 90, "value": None,
    "words": None, "episode": "r/gap-growing/1", "acknowledged_by": None, "acknowledged_until": None, "muted": None,
}  # fmt: skip
TEAM: dict[str, Any] = {
    "name": "team", "kind": "slack", "severities": ["critical"], "waits_until": None, "why": None, "limited": 0, "sent": 0, "waiting": 0,
    "dead": 1, "last_sent_at": None, "last_error": None,
}  # fmt: skip
CHANNELS: dict[str, Any] = {"problem": None, "channels": [TEAM]}
LOST: dict[str, Any] = {
    "key": "k", "channel": "team", "run": "r", "rule": "gap-growing", "state": "still_firing", "attempts": 3, "last_error": None,
    "time": datetime(2026, 3, 1, tzinfo=UTC),
}  # fmt: skip
CONTROL: dict[str, Any] = {
    "run": "r", "mode": "suggest", "phase": "idle", "waiting": None, "stopped": False, "from_step": None, "config": {"is_upper": 5.0}, "actions": [],
    "problem": None, "effect": None,
}  # fmt: skip
HELPED = {"judgement": "helped", "words": "helped: the reward rises", "step": 65}


def table(blocks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    (found,) = [block["rows"] for block in blocks if block["type"] == "table" and block["name"] == name]
    return list(found)


def switches(document: dict[str, Any], blocked: str = "") -> dict[str, dict[str, Any]]:
    (found,) = [
        block["actions"] for block in actions_blocks(document, None, blocked=blocked) if block["type"] == "actions"
    ]
    return {action["label"]: action for action in found}


def offered(current: dict[str, Any]) -> list[str]:
    blocks = alerts_blocks(Alerts([current], [], []), run="r", blocked="")
    (row,) = table(blocks, "pending" if current["phase"] == "pending" else "firing")
    return [action["id"] for action in row["actions"] if "id" in action]


def test_only_what_fires_and_is_nobodys_can_be_acknowledged() -> None:
    assert offered(STANDING) == ["ack", "snooze", "silence"]
    assert offered(STANDING | {"acknowledged_by": "Ada"}) == ["silence"]
    snoozed = {"acknowledged_by": "Ada", "acknowledged_until": datetime(2026, 3, 1, 14, 30, tzinfo=UTC)}
    assert offered(STANDING | snoozed) == ["ack", "snooze", "silence"]
    (row,) = table(alerts_blocks(Alerts([STANDING | snoozed], [], []), run="r", blocked=""), "firing")
    assert row["cells"][-1] == "Ada, until 2026-03-01 14:30 UTC"
    assert offered(STANDING | {"phase": "pending", "episode": None}) == ["silence"]


def test_without_a_channel_nothing_counts_as_notified() -> None:
    notes = [
        alerts_blocks(Alerts([STANDING | {"muted": "inhibited"}], [], [], channels), run="r", blocked="")[0]["note"]
        for channels in (True, False)
    ]
    assert notes == ["1, 1 of them without notification", "1; no channel is configured, so no notifications are sent"]


def test_the_newest_messages_come_first() -> None:
    history = [
        {"rule": "r", "severity": "warning", "step": step, "state": state, "value": 1.0, "words": ""}
        for step, state in ((1, "firing"), (9, "still_firing"))
    ]
    shown = table(alerts_blocks(Alerts([], history, []), run="r", blocked=""), "recent")
    assert [row["cells"][2] for row in shown] == ["still firing", "firing"]


def test_unknown_values_are_no_zeros() -> None:
    (row,) = table(alerts_blocks(Alerts([STANDING], [], []), run="r", blocked=""), "firing")
    name, severity, since, *rest = row["cells"]
    assert (name, severity, since["title"], rest) == ("gap-growing", "warning", "step 12", ["–", "–", "nobody"])
    assert since["href"] == "./?run=r&steps=0:110"
    (row,) = table(
        alerts_blocks(Alerts([STANDING | {"started_step": None, "step": None}], [], []), run="r", blocked=""), "firing"
    )
    assert row["cells"][2] == "–"


def test_every_button_is_blocked_while_nothing_can_be_done() -> None:
    silence = {
        "id": "1",
        "run": "*",
        "rule": "gap-*",
        "author": "Ada",
        "reason": "known",
        "expires_at": datetime.now(UTC),
    }
    blocks = alerts_blocks(Alerts([STANDING], [], [silence]), run="r", blocked="away")
    blocks += channels_blocks(CHANNELS, [LOST], blocked="away")
    names = ("firing", "silences", "channels", "undelivered")
    actions = [action for name in names for row in table(blocks, name) for action in row["actions"]]
    assert {action["disabled"] for action in actions if "id" in action} == {"away"}
    assert {action["id"] for action in actions if "id" in action} == {
        "ack", "snooze", "silence", "unsilence", "test", "again", "drop",
    }  # fmt: skip
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
    foreseen = {
        "step": 5,
        "preview": preview,
        "refusal": {"reason": "upstream", "words": "fix raw_logprobs first"},
        "instead": {"is_level": "token"},
    }
    shown = str(actions_blocks(CONTROL, foreseen, blocked=""))
    assert "['tokens masked', '8.3%']" in shown
    assert "['share of |advantage| masked', '–']" in shown
    assert "fix raw_logprobs first" in shown
    assert "Switched on instead: is_level=token, is_upper=2.0" in shown


def state_of(**channel: Any) -> tuple[str, str]:
    (row,) = table(channels_blocks({"problem": None, "channels": [TEAM | channel]}, [], blocked=""), "channels")
    return row["cells"][3], row["tone"]


def test_a_channel_says_how_it_is() -> None:
    assert state_of() == ("not used yet", "")
    assert state_of(sent=3) == ("works", "")
    assert state_of(sent=3, limited=2) == ("works; asked for fewer messages 2×", "")
    resting = {"waits_until": "2026-03-01T12:00:30+00:00", "why": "busy: Slack answered ratelimited", "limited": 1}
    assert state_of(**resting) == (
        "paused until 12:00:30 UTC: busy: Slack answered ratelimited; asked for fewer messages 1×", "warning",
    )  # fmt: skip
    assert state_of(last_error="setup: not_in_channel") == ("tries again: setup: not_in_channel", "warning")
    assert state_of(kind=None, waiting=2) == ("messages are waiting for it to recover", "")


def test_tomorrow_is_the_next_morning_where_the_reader_is() -> None:
    evening = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
    assert snooze("tomorrow", evening) == f"{11 * 3600}s"
    assert snooze("4h", evening) == "4h"


AT: dict[str, Any] = {"time": datetime(2026, 3, 1, 12, 0, tzinfo=UTC), "severity": "info", "details": {}}
DECIDED: list[dict[str, Any]] = [
    AT | {"name": "switched_on", "step": 10, "words": "on", "details": {"from_step": 15, "by": "<b>Ada</b>"}},
    AT | {"name": "acknowledged", "step": 15, "words": "applies"},
    AT | {"name": "rolled_back", "step": 40, "words": "too much"},
    AT | {"name": "switched_on", "step": 60, "words": "on again"},
]


def figure(**said: Any) -> dict[str, Any]:
    side = {"value": 0.5, "low": 0.4, "high": 0.6, "steps": 50}
    known = {
        "name": "reward",
        "words": "reward",
        "unit": "",
        "before": side,
        "after": side,
        "change": None,
        "sure": False,
        "factor": False,
    }
    return known | said


def test_the_audit_says_who_and_when() -> None:
    blocks = outcome_blocks(CONTROL | {"actions": DECIDED, "figures": [], "effect_steps": 50})
    rows = [row["cells"] for row in table(blocks, "audit")]
    assert [(cells[0], cells[1], cells[3]) for cells in reversed(rows)] == [
        ("switched on", "2026-03-01 12:00 UTC", "<b>Ada</b>"),
        ("acknowledged", "2026-03-01 12:00 UTC", "the trainer"),
        ("rolled back", "2026-03-01 12:00 UTC", "the controller"),
        ("switched on", "2026-03-01 12:00 UTC", "the controller"),
    ]
    assert rows[-1][2]["href"] == "./?run=r&steps=0:30"


def test_an_effect_says_how_sure_it_is_and_what_is_unknown() -> None:
    change = {"value": -0.1, "low": -0.2, "high": 0.05, "steps": 50}
    grown = {"value": 3.0, "low": 2.0, "high": 4.5, "steps": 50}
    shown = [
        figure(change=change),
        figure(change=grown, sure=True, factor=True),
        figure(name="masked", before=None),
        figure(after=None),
    ]
    rows = table(
        outcome_blocks(CONTROL | {"from_step": 15, "effect": HELPED, "figures": shown, "effect_steps": 50}), "effect"
    )
    assert [row["cells"][1:] for row in rows] == [
        ["0.5 (0.4 to 0.6)", "0.5 (0.4 to 0.6)", "−0.1 (−0.2 to +0.05): no significant change"],
        ["0.5 (0.4 to 0.6)", "0.5 (0.4 to 0.6)", "×3 (×2 to ×4.5)"],
        ["no correction", "0.5 (0.4 to 0.6)", "–"],
        ["0.5 (0.4 to 0.6)", "–", "– (one side is not measured)"],
    ]


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (HELPED, "Helped: the reward rises, as of step 65"),
        ({"judgement": "too_early", "words": "too early: 7 of 50 steps", "step": None}, "Too early: 7 of 50 steps"),
        (None, "No correction was switched on."),
    ],
)
def test_the_effect_is_one_word_first(effect: dict[str, Any] | None, words: str) -> None:
    control = CONTROL | {"from_step": 15, "effect": effect, "actions": DECIDED, "figures": [], "effect_steps": 50}
    assert words in [block.get("text") for block in outcome_blocks(control)]


def test_a_correction_is_on_from_the_step_announced_until_it_is_taken_back() -> None:
    assert spans_of(DECIDED, 65, 100) == [
        {"phase": "announced", "first": 10, "last": 15},
        {"phase": "on", "first": 15, "last": 40},
        {"phase": "announced", "first": 60, "last": 65},
        {"phase": "on", "first": 65, "last": 100},
    ]
    over = {**DECIDED[3], "step": 20, "details": {"from_step": 25}}
    assert spans_of([DECIDED[0], over], 25, 100) == [  # one takes over from another
        {"phase": "announced", "first": 10, "last": 15},
        {"phase": "on", "first": 15, "last": 25},
        {"phase": "announced", "first": 20, "last": 25},
        {"phase": "on", "first": 25, "last": 100},
    ]
    assert spans_of([], None, 100) == []


def test_a_page_introduces_itself_in_three_sentences_at_most():
    paths = {page.path for page in PAGES}
    for page in PAGES:
        question, _, reading = page.about.partition("? ")
        assert "." not in question, page.title
        assert reading.count(". ") == 0, page.title  # the third sentence says where to go next
        assert reading.endswith(".")
        assert set(page.next) <= paths - {page.path}
        assert page.parts


def test_a_page_has_a_key_of_its_own_and_docs_dashboard_md_names_key_and_page() -> None:
    assert len({page.key for page in PAGES}) == len(PAGES)
    words = " ".join((Path(__file__).parents[3] / "docs" / "dashboard.md").read_text(encoding="utf-8").split())
    assert [page.title for page in PAGES if f"`g {page.key}` {page.title}" not in words] == [], "keyboard shortcuts"
    assert [page.title for page in PAGES if f"## {page.title} " not in words] == [], "section"
