"""Slack by bot token, through the real SDK, against a Slack that enforces its rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alert_notes import NOTE
from fake_slack import CHANNEL, FAILURES, FakeSlack
from sending import Bench, bot

from logprobe.alerts.notification import Notification
from logprobe.monitor.store.store import Store


def later(state: str, severity: str = "critical", episode: str = "e1") -> Notification:
    return replace(NOTE, key=f"{episode}/{state}", episode=episode, state=state, severity=severity, level=severity)


def episode(*states: str) -> list[Notification]:
    return [later(state) for state in states]


def test_an_episode_is_one_message_that_is_edited_and_its_thread(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    for note in episode("firing", "acknowledged", "changed", "resolved"):
        bench.enqueue(replace(note, run_severity="ok"))
        bench.run()
    first, *replies = slack.messages
    assert [reply["thread_ts"] for reply in replies] == [first["ts"]] * 3
    assert [bool(reply["reply_broadcast"]) for reply in replies] == [False, False, False]
    assert "Resolved" in first["blocks"][0]["text"]["text"]
    assert first["attachments"][0]["color"] == "#2eb67d"
    assert slack.calls.count("chat.update") == 3
    assert not slack.violations


def of_incident(state: str, severity: str = "critical", episode: str = "e1") -> Notification:
    return replace(later(state, severity, episode), incident="run#1", run_severity="critical")


def test_another_critical_alert_of_an_incident_is_told_to_the_channel(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    for severity in ("critical", "critical", "warning", "info"):
        bench.enqueue(of_incident("firing", severity, episode=f"e{len(slack.messages)}"))
        bench.run()
    first, *replies = slack.messages
    assert [reply["thread_ts"] for reply in replies] == [first["ts"]] * 3
    assert [bool(reply["reply_broadcast"]) for reply in replies] == [True, False, False]


def test_an_incident_that_was_closed_stays_closed(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    end = of_incident("closed", episode="run#1")
    after = [of_incident(state) for state in ("changed", "acknowledged", "resolved")]
    for note in (of_incident("firing"), of_incident("firing", episode="e2"), end, *after):
        bench.enqueue(note)
        bench.run()
    assert "Incident run#1: closed" in slack.messages[0]["blocks"][0]["text"]["text"]
    assert [len(slack.by_key(note.key)) for note in after] == [1] * 3
    assert {message["thread_ts"] for message in slack.messages[1:]} == {slack.messages[0]["ts"]}


def test_the_end_of_an_incident_is_shown_though_it_comes_late(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    bench.enqueue(of_incident("firing"))
    bench.run()
    slack.fail("chat.postMessage", "500_after")
    bench.enqueue(of_incident("closed", episode="run#1"), of_incident("changed"))
    bench.run()
    bench.finish()
    assert [message["text"].split()[1] for message in slack.messages[1:]] == ["Closed:", "Changed:"]
    assert "Incident run#1: closed" in slack.messages[0]["blocks"][0]["text"]["text"]


@pytest.mark.parametrize("failure", ["reset_after", "reset_before"])
def test_an_incidents_first_message_may_fail_and_each_comes_once(store: Store, slack: FakeSlack, failure: str) -> None:
    bench = Bench(store, bot(slack))
    notes = [of_incident("firing"), of_incident("firing", episode="e2")]
    slack.fail("chat.postMessage", failure)
    bench.enqueue(*notes)
    bench.run()
    bench.finish()
    notes.append(of_incident("closed", episode="run#1"))
    bench.enqueue(notes[-1])
    bench.run()
    assert [len(slack.by_key(note.key)) for note in notes] == [1] * 3
    second, end = slack.by_key("e2/firing")[0], slack.by_key("run#1/closed")[0]
    assert end["thread_ts"] == second["ts"]
    assert "Incident run#1: closed" in second["blocks"][0]["text"]["text"]
    assert not slack.violations


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("method", ["chat.postMessage", "chat.update"])
def test_one_message_per_transition_whatever_goes_wrong(
    store: Store, slack: FakeSlack, method: str, failure: str
) -> None:
    bench = Bench(store, bot(slack))
    notes = episode("firing", "resolved")
    bench.enqueue(*notes)
    slack.fail(method, failure)
    bench.run()
    bench.finish()
    assert [len(slack.by_key(note.key)) for note in notes] == [1, 1]
    assert "Resolved" in str(slack.messages[0]["blocks"])
    assert bench.states() == {"team": (2, 0, 0)}


def test_the_message_is_found_among_many(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "reset_after")
    bench.enqueue(NOTE)
    bench.run()
    for number in range(40):  # others go on talking; a page has 15
        slack.post(CHANNEL, {"text": f"chat {number}"})
    bench.finish()
    assert len(slack.by_key(NOTE.key)) == 1
    assert bench.states() == {"team": (1, 0, 0)}


def test_without_the_scope_to_look_a_message_comes_rather_twice_than_never(store: Store, slack: FakeSlack) -> None:
    slack.scopes = ("chat:write",)
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "reset_after", "reset_before")
    bench.enqueue(NOTE)
    bench.run()
    bench.finish()
    assert len(slack.by_key(NOTE.key)) == 2
    assert bench.states() == {"team": (1, 0, 0)}


def test_what_follows_a_deleted_first_message_has_one_new_thread(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    bench.enqueue(of_incident("firing"))
    bench.run()
    slack.messages.clear()
    for note in (
        of_incident("firing", episode="e2"),
        *(of_incident(state) for state in ("changed", "acknowledged", "resolved")),
    ):
        bench.enqueue(note)
        bench.run()
    first, *replies = slack.messages
    assert "thread_ts" not in first
    assert [reply["thread_ts"] for reply in replies] == [first["ts"]] * 3


def test_one_message_per_second(store: Store) -> None:
    with FakeSlack() as slack:
        slow = bot(slack)
        slow.pace = type(slow).pace
        bench = Bench(store, slow)
        bench.enqueue(*(later("firing", episode=f"e{n}") for n in range(3)))
        bench.run()
        assert (len(slack.messages), slack.limited) == (3, 0)


@pytest.mark.parametrize("seconds", [1, 120])
def test_too_fast_a_sender_waits_as_long_as_it_is_told(store: Store, slack: FakeSlack, seconds: int) -> None:
    bench = Bench(store, bot(slack))
    slack.retry_after = seconds
    slack.fail("chat.postMessage", "ratelimited")
    bench.enqueue(later("firing"))
    started = bench.now
    bench.run()
    assert bench.states() == {"team": (0, 1, 0)}
    (due,) = store.query("SELECT next_at FROM deliveries")["next_at"].to_pylist()
    assert seconds <= (due - started).total_seconds() <= seconds + 1
    assert slack.calls.count("chat.postMessage") == 1
    bench.run(hours=0.1)
    assert bench.states() == {"team": (1, 0, 0)}
