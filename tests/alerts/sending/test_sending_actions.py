"""Actions of users about channels, through the real service: see them, try one out, send again what was given up, change the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alert_notes import NOTE
from fake_slack import CHANNEL, TOKEN, FakeSlack
from processes import connected, end, eventually, start_service
from sending import Bench, bot

from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.actions import AGAIN, CHANNELS, DROP, TEST
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.reader import Reader
from logprobe.monitor.store.store import Store

TEAM = "channels:\n  team: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: '{url}'}}\n"
OTHER = "  other: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: '{url}'}}\n"


def give_up(home: Path, slack: FakeSlack, *keys: str) -> None:
    """Messages of one episode each that the channel refused."""
    with Store.open(Home(home)) as store:
        bench = Bench(store, bot(slack))
        for key in keys:
            slack.fail("chat.postMessage", "invalid_blocks")
            bench.enqueue(replace(NOTE, key=key, episode=key))
        bench.run()
        assert bench.states()["team"] == (0, 0, len(keys))


def rewrite(file: Path, text: str) -> None:
    """In one go, and noticeably younger than what stood there."""
    other = file.with_suffix(".new")
    other.write_text(text)
    later = file.stat().st_mtime + 1
    os.utime(other, (later, later))
    other.replace(file)


@pytest.fixture
def given_up(home: Path, slack: FakeSlack, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Reader, Path]]:
    """A service whose channel has given two messages up."""
    home.mkdir()
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    give_up(home, slack, "a/firing", "b/firing")
    (home / "logprobe.yaml").write_text(TEAM.format(channel=CHANNEL, url=slack.api_url))
    process = start_service(home)
    try:
        with connected(home) as reader:
            eventually(lambda: reader.act(CHANNELS, {})["channels"][0]["kind"], "the channel is at work")
            yield reader, home
    finally:
        errors = end(process)
    assert TOKEN not in errors


def test_people_see_try_and_repeat(given_up: tuple[Reader, Path], slack: FakeSlack) -> None:
    reader, _ = given_up
    (team,) = reader.act(CHANNELS, {})["channels"]
    assert (team["name"], team["kind"], team["dead"], team["sent"]) == ("team", "slack", 2, 0)
    assert team["severities"] == ["critical", "warning"]

    tested = reader.act(TEST, {"channel": "team", "author": "ann"})
    assert tested == {"delivered": True, "lines": ["delivered: look for the test message there"]}
    assert len(slack.messages) == 1
    slack.fail("auth.test", "invalid_auth")
    failed = reader.act(TEST, {"channel": "team", "author": "ann"})
    assert not failed["delivered"]
    assert "invalid_auth" in failed["lines"][0]
    with pytest.raises(ConfigurationError, match="did you mean 'team'"):
        reader.act(TEST, {"channel": "tea", "author": "ann"})

    for _ in range(2):
        reader.act(AGAIN, {"key": "a/firing", "channel": "team", "author": "ann"})
    eventually(lambda: queries.outbox_channels(reader).to_pylist()[0]["sent"] == 1, "it is sent again")
    reader.act(AGAIN, {"key": "a/firing", "channel": "team", "author": "ann"})  # it has arrived
    assert reader.act(DROP, {"key": "a/firing", "channel": "team", "author": "ann"}) == {"status": "sent"}
    assert reader.act(DROP, {"key": "b/firing", "channel": "team", "author": "bob"}) == {"status": "dropped"}
    assert reader.read("outbox_dead_letters").num_rows == 0
    assert len(slack.by_key("a/firing")) == 1
    assert slack.by_key("b/firing") == []
    with pytest.raises(ConfigurationError, match="no message 'c'"):
        reader.act(AGAIN, {"key": "c", "channel": "team", "author": "ann"})

    done = [(row["author"], row["action"]) for row in reader.read("alert_audit", run="", count=10).to_pylist()]
    assert done == [
        ("bob", "dropped"),
        ("ann", "sent again"),
        ("ann", "channel tested"),
        ("ann", "channel tested"),
    ]
    everything = json.dumps([reader.status(), reader.act(CHANNELS, {})], default=str)
    assert TOKEN not in everything


def test_a_channels_file_that_changes_is_taken_over_and_a_wrong_one_is_not(
    given_up: tuple[Reader, Path], slack: FakeSlack
) -> None:
    reader, home = given_up
    file = home / "logprobe.yaml"
    good = file.read_text()
    rewrite(file, good + "  more: {kind: slack, channel: general}\n")
    eventually(lambda: reader.act(CHANNELS, {})["problem"], "the mistake is noticed")
    state = reader.act(CHANNELS, {})
    assert "logprobe.yaml:3: channels.more" in state["problem"]
    assert [row["name"] for row in state["channels"]] == ["team"]
    # The job gives account of itself after its turn, which may still be on its way.
    told = lambda: reader.status()["jobs"]["delivery"]["progress"].get("problem")
    eventually(lambda: told() == state["problem"], "the job says so, too")
    reader.act(AGAIN, {"key": "a/firing", "channel": "team", "author": "ann"})  # the old one goes on working
    eventually(lambda: len(slack.by_key("a/firing")) == 1, "it is sent")

    rewrite(file, "channels:\n" + OTHER.format(channel=CHANNEL, url=slack.api_url))
    eventually(lambda: reader.act(CHANNELS, {})["channels"][0]["name"] == "other", "the file is taken over")
    state = reader.act(CHANNELS, {})
    assert state["problem"] is None
    assert [(row["name"], row["kind"]) for row in state["channels"]] == [("other", "slack"), ("team", None)]
    assert reader.act(TEST, {"channel": "other", "author": "ann"})["delivered"]


def test_what_is_sent_late_takes_no_newer_message_s_place(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "invalid_blocks")
    bench.enqueue(replace(NOTE, key="e/1/firing"))
    bench.run()
    bench.enqueue(replace(NOTE, key="e/2/resolved", state="resolved"))
    bench.run()
    (shown,) = slack.by_key("e/2/resolved")
    with store.transaction() as cursor:
        outbox.send_again(store, cursor, key="e/1/firing", channel="team", now=bench.now)
    bench.run()
    assert bench.states()["team"][0] == 2
    assert len(slack.by_key("e/1/firing")) == 1
    assert "Resolved" in json.dumps(slack.by_key("e/2/resolved"))  # and not edited back to what is over
    assert slack.by_key("e/1/firing")[0]["thread_ts"] == shown["ts"]


def test_what_may_have_arrived_before_it_was_given_up_does_not_come_twice(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "500_after")  # accepted, and the answer lost
    slack.fail("conversations.history", *["internal_error"] * 2000)
    bench.enqueue(NOTE)
    bench.run(hours=25, minutes_between=6)
    assert bench.states()["team"] == (0, 0, 1)
    assert len(slack.by_key(NOTE.key)) == 1
    slack._failures.clear()
    with store.transaction() as cursor:
        outbox.send_again(store, cursor, key=NOTE.key, channel="team", now=bench.now)
    bench.run()
    assert bench.states()["team"] == (1, 0, 0)
    assert len(slack.by_key(NOTE.key)) == 1
