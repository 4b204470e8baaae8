"""Critical periods in a real store: opened and closed with the alerts, their messages in one thread."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from alert_homes import K3, at, put, series
from fake_slack import FakeSlack
from sending import Bench, bot

from logprobe.alerts.notification import Notification
from logprobe.alerts.rules.periods import HEALTHY_STEPS, Standing, advance
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.monitor.store.store import Store

PAGE = "http://127.0.0.1:8501"
THRESHOLDS = tuple(
    Threshold.model_validate({"name": name, "metric": "k3_kl", "above": above, "steps": 1, "severity": severity})
    for name, above, severity in (("high", 1, "warning"), ("large", 5, "critical"), ("huge", 50, "critical"))
)
HEALTHY = {
    "run": "a",
    "verdict": "healthy",
    "since_step": None,
    "doubling_steps": None,
    "findings": [],
    "correction": {"advice": "not_needed"},
}

O = Standing(1)  # noqa: E741 - open
NEARLY = Standing(1, healthy=HEALTHY_STEPS - 1, seen=9)


@pytest.mark.parametrize(
    ("before", "severity", "step", "after", "change"),
    [
        (None, "ok", 5, None, None),
        (None, "warning", 5, None, None),
        (None, "critical", 5, O, "opened"),
        (Standing(1, open=False), "critical", 5, Standing(2), "opened"),
        (Standing(1, open=False), "ok", 5, Standing(1, open=False), None),
        (O, "critical", 5, O, None),
        (O, "ok", 5, Standing(1, seen=5), None),  # it was not healthy at the look before
        (Standing(1, healthy=3, seen=5), "ok", 9, Standing(1, healthy=7, seen=9), None),
        (Standing(1, healthy=3, seen=5), "unknown", 9, Standing(1, healthy=3), None),
        (Standing(1, healthy=3, seen=5), "warning", 9, O, None),
        (Standing(1, healthy=3, seen=9), "ok", 5, Standing(1, healthy=3, seen=5), None),  # it went back
        (NEARLY, "ok", 10, Standing(1, open=False, healthy=HEALTHY_STEPS, seen=10), "closed"),
    ],
)
def test_lifecycle(before, severity, step, after, change) -> None:
    assert advance(before, severity, step) == (after, change)


def look(store: Store, step: int, seconds: float = 3.0) -> None:
    """One look by a service that was just started, so long after a step."""
    now = at(step) + timedelta(seconds=seconds)
    Watch(store, lambda: THRESHOLDS, threading.Event(), page=PAGE, clock=lambda: now).run_once()


def diagnosed(store: Store, step: int, verdict: str = "healthy", cause: str | None = None) -> None:
    document = json.dumps({**HEALTHY, "verdict": verdict})
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, causes, document, diagnosed_at, cause)"
            " VALUES ('a', ?, currval('revision'), ?, 'none', [], ?, ?, ?)",
            [step, verdict, document, at(step) + timedelta(seconds=1), cause],
        )


def kept(store: Store) -> list[dict]:
    return store.query("SELECT * FROM incidents ORDER BY number").to_pylist()


def told(store: Store) -> list[tuple]:
    rows = store.query("SELECT rule, state, incident FROM notifications ORDER BY number").to_pylist()
    return [tuple(row.values()) for row in rows]


def walk(store: Store, values, first: int = 0) -> None:
    for step, value in enumerate(values, first):
        put(store, "a", {step: {K3: value}})
        look(store, step)


def test_the_first_critical_alert_opens_one_and_what_begins_then_belongs_to_it(store: Store) -> None:
    walk(store, [0.1, 2.0, 9.0, 90.0, 9.0, 0.1])
    assert [(row["id"], row["opened_step"], row["since_step"], row["closed_at"]) for row in kept(store)] == [
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
    texts = store.query("SELECT document FROM notifications")["document"].to_pylist()
    notes = [Notification.from_json(text) for text in texts]
    assert {note.link for note in notes if note.incident} == {
        f"{PAGE}/?page=alerts&list=incidents&run=a&incident=a%231"
    }
    (huge,) = (note for note in notes if (note.rule, note.state) == ("huge", "firing"))
    assert huge.grouped == (
        "large (critical, since step 2)",
        "huge (critical, since step 3)",
        "high (warning, since step 1)",
    )


def test_what_was_critical_between_two_looks_opens_one_too(store: Store) -> None:
    put(store, "a", series([0.1, 9.0, 0.1, 0.1]))
    look(store, 3)
    assert [row["id"] for row in kept(store)] == ["a#1"]
    of_large = [line for line in told(store) if line[0] == "large"]
    assert of_large == [("large", "firing", "a#1"), ("large", "resolved", "a#1")]


def test_a_verdict_opens_one_once_it_stands(store: Store) -> None:
    walk(store, [0.1, 0.1])
    diagnosed(store, 1)
    look(store, 1)
    for step in (2, 3, 4):
        assert kept(store) == []
        put(store, "a", {step: {K3: 0.1}})
        diagnosed(store, step, "critical", "staleness")
        look(store, step)
    assert [row["cause"] for row in kept(store)] == ["staleness"]
    assert told(store) == [("judgement", "firing", "a#1")]


def judged(store: Store, steps: range, verdict: str = "healthy") -> None:
    """Steps with a verdict each."""
    for step in steps:
        put(store, "a", {step: {K3: 0.1}})
        diagnosed(store, step, verdict, None if verdict == "healthy" else "staleness")
        look(store, step)


def test_what_was_told_of_an_episode_before_it_became_critical_is_of_the_period_too(store: Store) -> None:
    judged(store, range(2))
    judged(store, range(2, 6), "growing")
    assert told(store) == [("judgement", "firing", None)]
    judged(store, range(6, 10), "critical")
    assert told(store) == [("judgement", "firing", "a#1")] * 2


def recovered(store: Store, first: int) -> None:
    """A run that is healthy from step `first` on, for long enough."""
    for step in (first, 60, first + HEALTHY_STEPS - 1, first + HEALTHY_STEPS + 1, first + HEALTHY_STEPS + 2):
        put(store, "a", {step: {K3: 0.1}})
        diagnosed(store, step)
        look(store, step)


def test_it_closes_once_the_run_was_healthy_for_long(store: Store) -> None:
    walk(store, [0.1, 9.0, 0.1])
    recovered(store, 3)
    (closed,) = kept(store)
    assert closed["closed_step"] == 4 + HEALTHY_STEPS
    assert told(store)[-1] == ("incident", "closed", "a#1")
    walk(store, [9.0], first=6 + HEALTHY_STEPS)
    assert [row["id"] for row in kept(store)] == ["a#1", "a#2"]


def test_it_holds_the_diagnosis_of_the_trouble_and_no_later_healthy_one(store: Store) -> None:
    walk(store, [0.1, 9.0])
    diagnosed(store, 1, "critical", "staleness")
    look(store, 1, 4)
    walk(store, [0.1], first=2)
    diagnosed(store, 2)
    look(store, 2, 5)
    (held,) = kept(store)
    assert (held["cause"], json.loads(held["document"])["verdict"]) == ("staleness", "critical")


def test_slack_has_one_thread_that_is_brought_up_to_date(store: Store) -> None:
    with FakeSlack(interval=0.0) as slack:
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
        said = [message["text"].partition(" ")[2].partition(" · ")[0] for message in posted]
        assert {"Critical: huge", "Warning: high", "Resolved: huge", "Closed: incident"} <= set(said), said
        assert slack.violations == []
