"""Slack messages: whatever a notification holds, Slack takes it, and reads nothing in it as a mention or a link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from alert_notes import NOTE
from fake_slack import MOST_BLOCKS, _problems
from hypothesis import given
from hypothesis import strategies as st

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels import slack_message
from logprobe.alerts.sending.channels.slack_message import FALLBACK, colour, escape, fit

TEXT = st.text(alphabet=st.sampled_from("ab <>&*_`|\n!@#é🔴"), max_size=6000)
NUMBER = st.none() | st.floats()
NOTES = st.builds(
    Notification,
    key=TEXT,
    run=TEXT,
    rule=TEXT,
    episode=TEXT,
    state=st.sampled_from(["firing", "resolved", "acknowledged", "changed", "mis_armed"]),
    severity=st.sampled_from(["info", "warning", "critical", "odd"]),
    at=st.just(datetime(2026, 5, 1, tzinfo=UTC)),
    summary=TEXT,
    step=st.none() | st.integers(0, 10**9),
    metric=st.none() | TEXT,
    value=NUMBER,
    unit=st.sampled_from([None, "nats", "fraction"]),
    since_step=st.none() | st.integers(0, 10**9),
    more=st.none() | TEXT,
    layer=st.none() | TEXT,
    cause=st.none() | TEXT,
    fix=st.none() | TEXT,
    changes=st.lists(TEXT, max_size=30).map(tuple),
    link=st.none() | TEXT.map(lambda text: f"http://127.0.0.1/{text}"),
)


@given(NOTES)
def test_slack_takes_every_notification(note: Notification) -> None:
    for content in (slack_message.message(note), slack_message.reply(note)):
        blocks = list(content["blocks"])
        for attachment in content.get("attachments", []):
            blocks += attachment["blocks"]
        assert _problems(blocks) == []
        assert len(blocks) <= MOST_BLOCKS
        assert 0 < len(content["text"]) <= FALLBACK


@given(TEXT, st.integers(2, 200))
def test_a_cut_is_short_enough_and_no_escape_is_torn(text: str, limit: int) -> None:
    cut = fit(text, limit)
    assert len(cut) <= limit
    whole = escape(text)
    assert cut == whole or (cut.endswith("…") and whole.startswith(cut[:-1]))
    rest = cut.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
    assert not set(rest) & {"<", ">", "&"}


def test_what_is_known_is_told_and_what_is_not_is_left_out() -> None:
    facts = {"layer": "objective", "cause": "policy_drift", "fix": "switch MIS on", "more": "logprobe show run"}
    content = str(slack_message.message(replace(NOTE, **facts, grouped=("high (warning)",), incident="run#1")))
    for words in (NOTE.summary, "0.031 nat", "140 (since 118)", *facts.values(), "weight sync 14", "high (warning)"):
        assert words in content
    assert "140 (since 118)" in str(slack_message.reply(NOTE))
    unknown = str(slack_message.message(replace(NOTE, value=None, since_step=None, step=None, metric=None)))
    assert not [word for word in ("fields", "None") if word in unknown]


def test_mentions_and_links_of_others_are_text() -> None:
    note = replace(
        NOTE, run="<!channel> <@U1> <http://evil|click>", summary="a < b & c > d", link="javascript:alert(1)"
    )
    content = str(slack_message.message(note))
    assert "<!" not in content
    assert "<@" not in content
    assert "<http" not in content
    assert "javascript" not in content
    assert "a &lt; b &amp; c &gt; d" in content


def test_a_link_is_of_the_web_and_quoted() -> None:
    note = replace(NOTE, link="http://h/?run=a|b>")
    assert "<http://h/?run=a%7Cb%3E|Open step 140>" in str(slack_message.message(note))
    for other in ("javascript:alert(1)", None, f"http://h/{'é' * 400}"):
        assert "|Open step" not in str(slack_message.message(replace(NOTE, link=other)))


def test_names_that_look_like_addresses_or_channels_stay_names() -> None:
    note = replace(NOTE, run="evil.example.com #general")
    marked = [part for part in _parts(slack_message.message(note)) if part.get("type") == "mrkdwn"]
    assert marked
    assert all(part["verbatim"] is True for part in marked)


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """Every object in a message."""
    if isinstance(content, dict):
        yield content
    for part in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _parts(part)


@pytest.mark.parametrize(
    ("state", "severity", "run", "expected"),
    [
        ("firing", "critical", "critical", "#d7263d"),
        ("firing", "warning", "ok", "#f2a93b"),
        ("acknowledged", "critical", "critical", "#d7263d"),
        ("resolved", "critical", "ok", "#2eb67d"),
        ("resolved", "critical", None, "#8d939a"),
    ],
)
def test_green_is_for_resolved_alerts_of_healthy_runs_only(
    state: str, severity: str, run: str | None, expected: str
) -> None:
    assert colour(replace(NOTE, state=state, severity=severity, level=severity, run_severity=run)) == expected
