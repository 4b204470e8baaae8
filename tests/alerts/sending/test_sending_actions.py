"""Delivery as a part of the service: see channels, try one out, change the settings, end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from alert_notes import NOTE
from fake_slack import CHANNEL, TOKEN, FakeSlack
from processes import connected, end, eventually, start_service
from sending import Bench, bot

from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.actions import CHANNELS, TEST, delivery_part, ping
from logprobe.alerts.sending.channels.settings import Route
from logprobe.app.cli import main
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

LINE = "  {name}: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: '{url}'}}\n"


def line(slack: FakeSlack, name: str) -> str:
    return LINE.format(name=name, channel=CHANNEL, url=slack.api_url)


@pytest.fixture
def configured(home: Path, slack: FakeSlack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a channel."""
    home.mkdir()
    (home / "logprobe.yaml").write_text("channels:\n" + line(slack, "team"))
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    return home


@pytest.fixture
def given_up(configured: Path, slack: FakeSlack) -> Iterator[tuple[Store, Part]]:
    """The part of a service whose channel has given two messages up."""
    with Store.open(Home(configured)) as store:
        bench = Bench(store, bot(slack))
        slack.fail("chat.postMessage", "invalid_blocks", "invalid_blocks")
        bench.enqueue(*(replace(NOTE, key=key, episode=key) for key in ("a/firing", "b/firing")))
        bench.run()
        stopping = threading.Event()
        part = delivery_part(store, stopping)
        work(part)
        yield store, part
        stopping.set()
        part.close()


def work(part: Part) -> Any:
    return part.jobs[0].run_now()


def act(part: Part, name: str, **document: str) -> Any:
    return part.actions[name].run(document)


def test_users_see_channels_and_what_they_gave_up_for_a_week(given_up: tuple[Store, Part], slack: FakeSlack) -> None:
    store, part = given_up
    (team,) = act(part, CHANNELS)["channels"]
    assert (team["name"], team["kind"], team["dead"], team["sent"]) == ("team", "slack", 2, 0)
    assert team["severities"] == ["critical", "warning"]
    tested = act(part, TEST, channel="team", author="ann")
    assert tested == {"delivered": True, "lines": ["delivered: look for the test message there"]}
    assert len(slack.messages) == 1
    for days, shown in ((6.9, 2), (7.1, 0)):
        later = datetime.now(UTC) + timedelta(days=days)
        assert queries.outbox_dead_letters(store, now=later.isoformat()).num_rows == shown
    done = [(row["author"], row["action"]) for row in store.read("user_actions_of", run=None).to_pylist()]
    assert done == [("ann", "channel tested")]
    assert TOKEN not in json.dumps(act(part, CHANNELS), default=str)


def rewrite(file: Path, text: str) -> None:
    """In one go, and noticeably younger than what stood there."""
    other = file.with_suffix(".new")
    other.write_text(text)
    later = file.stat().st_mtime + 1
    os.utime(other, (later, later))
    other.replace(file)


def test_settings_that_change_are_taken_over_and_wrong_ones_are_not(
    given_up: tuple[Store, Part], slack: FakeSlack
) -> None:
    store, part = given_up
    file = store.home.path / "logprobe.yaml"
    rewrite(file, file.read_text() + "  more: {kind: slack, channel: general}\n")
    problem = work(part)["problem"]
    assert "logprobe.yaml:3: channels.more" in problem
    state = act(part, CHANNELS)
    assert (state["problem"], [row["name"] for row in state["channels"]]) == (problem, ["team"])
    with store.transaction() as cursor:
        outbox.enqueue(store, cursor, replace(NOTE, key="c/firing", episode="c"))
    eventually(lambda: work(part) and len(slack.by_key("c/firing")) == 1, "the old one goes on working")
    rewrite(file, "channels:\n" + line(slack, "other"))
    assert "problem" not in work(part)
    state = act(part, CHANNELS)
    assert [(row["name"], row["kind"]) for row in state["channels"]] == [("other", "slack"), ("team", None)]
    assert act(part, TEST, channel="other", author="ann")["delivered"]


def test_wrong_settings_fail_at_the_start(configured: Path) -> None:
    (configured / "logprobe.yaml").write_text("channels:\n  a: {kind: slack, channel: general}\n")
    with Store.open(Home(configured)) as store, pytest.raises(ConfigurationError, match=r"yaml:2: channels\.a"):
        delivery_part(store, threading.Event())


def test_a_service_ends_at_once_though_a_channel_hangs_and_prints_no_secret(configured: Path, slack: FakeSlack) -> None:
    with Store.open(Home(configured)) as store, store.transaction() as cursor:
        outbox.enqueue(store, cursor, NOTE)
    slack.fail("chat.postMessage", "hang")
    process = start_service(configured)
    eventually(lambda: "chat.postMessage" in slack.calls, "the call hangs")
    with connected(configured):
        errors = end(process)  # by force after two minutes
    assert process.returncode == 0
    assert TOKEN not in errors


HISTORY = "channels:history"


@pytest.mark.parametrize(
    ("scopes", "member", "token", "delivered", "words"),
    [
        (("chat:write", HISTORY), True, TOKEN, True, ["delivered: look"]),
        (("chat:write",), True, TOKEN, True, ["the scope channels:history", "delivered: look"]),
        ((HISTORY,), True, TOKEN, False, ["missing_scope", "chat:write", "install the app again"]),
        (("chat:write",), False, TOKEN, False, ["not_in_channel", "/invite"]),
        (("chat:write",), True, "xoxb-wrong", False, ["invalid_auth", "create a new bot token"]),
    ],
)
def test_a_test_message_says_what_does_not_work(
    scopes: tuple[str, ...], member: bool, token: str, delivered: bool, words: list[str]
) -> None:
    with FakeSlack(scopes=scopes, member=member) as slack:
        tested = ping([Route(bot(slack, token=token), frozenset())], "team", NOTE.at)
    assert tested["delivered"] is delivered
    assert all(word in " ".join(tested["lines"]) for word in words)
    assert bool(slack.messages) is delivered


def test_the_command_pings_a_channel(configured: Path, slack: FakeSlack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "ping", "team", "--home", str(configured)]) == 0
    assert capsys.readouterr().out == "team: delivered: look for the test message there\n"
    assert "This is a test" in slack.texts()
    assert main(["alerts", "ping", "tem", "--home", str(configured)]) == 1
    assert "did you mean 'team'?" in capsys.readouterr().err
    (configured / "logprobe.yaml").write_text("")
    assert main(["alerts", "ping", "team", "--home", str(configured)]) == 1
    assert "no channels are configured" in capsys.readouterr().err


def test_what_is_sent_late_takes_no_newer_message_s_place(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "internal_error")
    first, second = (replace(NOTE, key=f"{name}/firing", episode=name, incident="run#1") for name in ("e", "f"))
    bench.enqueue(first, replace(second, run_severity="warning"))
    bench.run()
    bench.finish()
    (shown,) = slack.by_key("f/firing")
    assert "warning" in shown["blocks"][0]["text"]["text"]  # and not edited back to what is over
    assert [message["thread_ts"] for message in slack.by_key("e/firing")] == [shown["ts"]]
