"""Incidents in a real store: opened and closed with the alerts, their messages in one thread."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import duckdb
import pytest
from alert_homes import K3, at, put, series
from fake_slack import FakeSlack
from sending import Bench, bot

from logprobe.alerts.incidents import ledger
from logprobe.alerts.incidents.lifecycle import HEALTHY_STEPS
from logprobe.alerts.notification import Notification
from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.job import Evaluator
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.slack_webhook import SlackWebhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import StoreError
from logprobe.monitor.deletion.part import erase
from logprobe.monitor.store.store import Store

PAGE = "http://127.0.0.1:8501"
RULES = (
    "defaults: false\nrules:\n"
    "  - {name: high, metric: k3_kl, when: {kind: threshold, above: 1}}\n"
    "  - {name: large, severity: critical, metric: k3_kl, when: {kind: threshold, above: 5}}\n"
    "  - {name: huge, severity: critical, metric: k3_kl, when: {kind: threshold, above: 50}}\n"
)
HEALTHY = {
    "run": "a",
    "verdict": "healthy",
    "since_step": None,
    "doubling_steps": None,
    "findings": [],
    "correction": {"advice": "not_needed"},
}


def book():
    return rule_file.parse(RULES, "alerts.yaml")


def look(store: Store, step: int, seconds: float = 3.0) -> None:
    """One look by a service that was just started, so long after a step."""
    now = at(step) + timedelta(seconds=seconds)
    Evaluator(store, book, threading.Event(), page=PAGE, clock=lambda: now).run_once()


def diagnosed(store: Store, step: int, verdict: str = "healthy", cause: str | None = None) -> None:
    document = json.dumps({**HEALTHY, "verdict": verdict})
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, causes, document, diagnosed_at, cause)"
            " VALUES ('a', ?, currval('revision'), ?, 'none', [], ?, ?, ?)",
            [step, verdict, document, at(step) + timedelta(seconds=1), cause],
        )


def incidents(store: Store) -> list[dict]:
    return store.query("SELECT * FROM incidents ORDER BY number").to_pylist()


def told(store: Store) -> list[tuple]:
    rows = store.query(
        "SELECT rule, state, incident FROM notifications WHERE state <> 'updated' ORDER BY number"
    ).to_pylist()
    return [tuple(row.values()) for row in rows]


def walk(store: Store, values, first: int = 0) -> None:
    for step, value in enumerate(values, first):
        put(store, "a", {step: {K3: value}})
        look(store, step)


def test_the_first_critical_severity_opens_one_and_what_begins_then_belongs_to_it(store: Store) -> None:
    walk(store, [0.1, 2.0, 9.0, 90.0, 9.0, 0.1])
    assert [(row["id"], row["opened_step"], row["since_step"], row["closed_at"]) for row in incidents(store)] == [
        ("a#1", 2, 2, None)
    ]
    assert told(store)[0] == ("high", "firing", None)  # it had a message before, and keeps its own thread
    assert sorted(told(store)[1:]) == [
        ("high", "resolved", None),
        ("huge", "firing", "a#1"),
        ("huge", "resolved", "a#1"),
        ("large", "firing", "a#1"),
        ("large", "resolved", "a#1"),
    ]
    notes = [
        Notification.from_json(text)
        for text in store.query("SELECT document FROM notifications")["document"].to_pylist()
    ]
    assert {note.link for note in notes if note.incident} == {f"{PAGE}/?page=incidents&run=a&incident=a%231"}
    (huge,) = (note for note in notes if (note.rule, note.state) == ("huge", "firing"))
    assert huge.grouped == (
        "large (critical, since step 2)",
        "huge (critical, since step 3)",
        "high (warning, since step 1)",
    )


def test_what_was_critical_between_two_looks_opens_one_too(store: Store) -> None:
    put(store, "a", series([0.1, 9.0, 0.1, 0.1]))
    look(store, 3)
    assert [row["id"] for row in incidents(store)] == ["a#1"]
    of_large = [line for line in told(store) if line[0] == "large"]
    assert of_large == [("large", "firing", "a#1"), ("large", "resolved", "a#1")]


def recovered(store: Store, first: int) -> None:
    """A run that is healthy from step `first` on, for long enough."""
    for step in (first, 60, first + HEALTHY_STEPS - 1, first + HEALTHY_STEPS + 1, first + HEALTHY_STEPS + 2):
        put(store, "a", {step: {K3: 0.1}})
        diagnosed(store, step)
        look(store, step)


def test_it_closes_once_the_run_was_healthy_for_long(store: Store) -> None:
    walk(store, [0.1, 9.0, 0.1])
    recovered(store, 3)
    (closed,) = incidents(store)
    assert closed["closed_step"] == 4 + HEALTHY_STEPS
    assert told(store)[-1] == ("incident", "closed", "a#1")
    walk(store, [9.0], first=6 + HEALTHY_STEPS)
    assert [row["id"] for row in incidents(store)] == ["a#1", "a#2"]


def test_it_holds_the_diagnosis_of_the_trouble_and_no_later_healthy_one(store: Store) -> None:
    walk(store, [0.1, 9.0])
    diagnosed(store, 1, "critical", "staleness")
    look(store, 1, 4)
    walk(store, [0.1], first=2)
    diagnosed(store, 2)
    look(store, 2, 5)
    (held,) = incidents(store)
    assert (held["cause"], json.loads(held["document"])["verdict"]) == ("staleness", "critical")


def test_a_new_run_of_a_deleted_name_begins_with_its_first_incident(store: Store) -> None:
    walk(store, [0.1, 9.0])
    erase(store, "a", author="Ada", action="deleted", now=at(2))
    walk(store, [0.1, 9.0], first=5)
    assert [(row["id"], row["opened_step"]) for row in incidents(store)] == [("a#1", 6)]


def test_a_store_that_fails_leaves_neither_an_incident_nor_its_message(store: Store, monkeypatch) -> None:
    walk(store, [0.1])

    def fail(*_: object) -> None:
        raise duckdb.IOException("disk full")

    monkeypatch.setattr(ledger, "keep", fail)
    with pytest.raises(StoreError, match="disk full"):
        walk(store, [9.0], first=1)
    assert (incidents(store), told(store)) == ([], [])
    monkeypatch.undo()
    look(store, 1)
    assert (len(incidents(store)), told(store)) == (1, [("large", "firing", "a#1"), ("high", "firing", "a#1")])


@pytest.fixture
def slack():
    with FakeSlack(interval=0.0) as fake:
        yield fake


def test_slack_has_one_thread_that_is_brought_up_to_date(store: Store, slack: FakeSlack) -> None:
    bench = Bench(store, bot(slack))
    walk(store, [0.1, 9.0, 90.0, 9.0])
    bench.run()
    bench.finish()
    recovered(store, 4)
    bench.run()
    bench.finish()
    posted = [message for message in slack.messages if "blocks" in message]
    heads = [message for message in posted if "thread_ts" not in message]
    assert len(heads) == 1
    header = heads[0]["blocks"][0]["text"]["text"]
    assert "Incident a#1: closed" in header
    assert "🟢" in header
    assert {message["thread_ts"] for message in posted if "thread_ts" in message} == {heads[0]["ts"]}
    said = [message["text"].partition(" ")[2].partition(" · ")[0] for message in posted[1:]]
    assert {"Critical: huge", "Warning: high", "Resolved: huge", "Closed: incident"} <= set(said), said
    assert slack.violations == []


def test_a_webhook_has_the_first_message_what_is_critical_and_the_last(store: Store, slack: FakeSlack) -> None:
    hook = SlackWebhook("hook", url=Secret(slack.hook_url), calls=Calls(60.0, threading.Event()))
    hook.pace = 0.0
    bench = Bench(store, hook)
    walk(store, [0.1, 2.0, 9.0, 90.0, 9.0])
    bench.run()
    bench.finish()
    recovered(store, 5)
    bench.run()
    bench.finish()
    said = [message["text"].partition(" ")[2].partition(" · ")[0] for message in slack.messages]
    assert [words for words in said if not words.startswith("Updated: high")] == [
        "Warning: high",  # before the incident
        "Critical: large",
        "Critical: huge",
        "Resolved: high",  # its thread is its own
        "Closed: incident",
    ]
    assert bench.states()["hook"][1:] == (0, 0)
