"""Slack by incoming webhook, through the real SDK."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from alert_notes import NOTE
from fake_slack import FakeSlack
from sending import Bench, PatientCalls

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.slack_webhook import SlackWebhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.monitor.store.store import Store


def webhook(url: str, calls: Calls | None = None) -> SlackWebhook:
    made = SlackWebhook("hook", url=Secret(url), calls=calls or Calls(90.0, threading.Event()))
    made.pace = 0.0
    return made


def test_one_message_per_transition(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, webhook(slack.hook_url))
    bench.enqueue(NOTE, replace(NOTE, key="second", state="resolved", run_severity="ok"))
    bench.run()
    assert ["Critical" in str(m["blocks"]) for m in slack.messages] == [True, False]
    assert slack.messages[1]["attachments"][0]["color"] == "#2eb67d"
    assert not slack.violations


@pytest.mark.parametrize("failure", ["timeout_after", "500_after", "reset_after"])
def test_a_lost_answer_means_a_second_message_that_says_so(store: Store, slack: FakeSlack, failure: str) -> None:
    bench = Bench(store, webhook(slack.hook_url, PatientCalls(slack)))
    slack.fail("webhook", failure)
    bench.enqueue(NOTE)
    bench.run()
    bench.finish()
    assert ["may be a duplicate" in str(message) for message in slack.messages] == [False, True]


def test_a_refusal_is_no_repetition(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, webhook(slack.hook_url))
    slack.retry_after = 30
    slack.fail("webhook", "ratelimited")
    bench.enqueue(NOTE)
    bench.run()
    bench.finish()
    (message,) = slack.messages
    assert "may be a duplicate" not in str(message)


def test_a_removed_webhook_says_what_to_do(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, webhook(slack.hook_url + "x"))
    bench.enqueue(NOTE)
    bench.run()
    assert "invalid_token" in bench.error()
    assert "make a new one" in bench.error()


def test_nobody_there(store: Store) -> None:
    bench = Bench(store, webhook("http://127.0.0.1:9/services/T/B/x"))
    bench.enqueue(NOTE)
    bench.run()
    assert "unreachable" in bench.error()
    assert outbox.due(store, "hook", bench.now.replace(year=bench.now.year + 1)).outgoing.uncertain_since is None


def said(state: str, severity: str = "critical", episode: str = "e1") -> Notification:
    return replace(
        NOTE, key=f"{episode}/{state}", episode=episode, state=state, severity=severity, incident="run#1", rule=episode
    )


def test_of_an_open_incident_it_tells_what_nobody_may_miss(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, webhook(slack.hook_url))
    for note in (
        said("firing", "warning"),  # the first one is told, whatever it is
        said("firing", episode="e2"),
        said("firing", "warning", episode="e3"),
        said("updated", episode="e2"),
        said("acknowledged", episode="e2"),
        said("still_firing", episode="e2"),
        said("resolved", episode="e2"),
        said("of_a_kind_that_is_new", "info", episode="e3"),
        said("closed", episode="run#1"),
        said("still_firing", episode="e4"),
    ):
        bench.enqueue(note)
        bench.run()
    told = [message["text"].partition(" ")[2].partition(" · ")[0] for message in slack.messages]
    assert told == [
        "Warning: e1",
        "Critical: e2",
        "Still firing: e2",
        "Of a kind that is new: e3",
        "Closed: run#1",
        "Still firing: e4",
    ]
    assert bench.states()["hook"] == (10, 0, 0)
