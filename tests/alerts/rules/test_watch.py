"""The alerts job on a real store: in order, exactly once, across restarts, failures and changed rules."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from alert_homes import K3, at, put, series
from diagnoses import diagnosis

from logprobe.alerts.rules import backtest
from logprobe.alerts.rules.actions import ACKNOWLEDGE, SILENCE, UNSILENCE, of
from logprobe.alerts.rules.steps import STEPS_PER_BATCH
from logprobe.alerts.rules.thresholds import Threshold, for_run
from logprobe.alerts.rules.watch import Watch
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.store.store import Store

WAVE = [0.1] * 2 + [2.0] * 3 + [0.7, 0.1, 0.1] + [3.0] * 2 + [None] + [0.1] * 2 + [2.0] * 2


def high(**change: object) -> tuple[Threshold, ...]:
    return (Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 1, "steps": 2, **change}),)


def look(store: Store, now, thresholds=None, **more):
    """One look, by a service that was just started."""
    found = high() if thresholds is None else thresholds
    return Watch(store, lambda: found, threading.Event(), clock=lambda: now, **more).run_once()


def standing(store: Store, run: str = "a") -> dict:
    """Return the state of the threshold's alert."""
    (row,) = (row for row in store.read("alert_list", run=run).to_pylist() if row["rule"] == "high")
    return row


def messages(store: Store) -> list[tuple]:
    """About thresholds: the clock of these tests jumps, so that runs are found to be silent."""
    sql = "SELECT run, step, rule, state FROM notifications WHERE rule <> 'liveness' ORDER BY number"
    return [tuple(row.values()) for row in store.query(sql).to_pylist()]


def expected(store: Store, run: str = "a") -> list[tuple]:
    """Result of a backtest of the same steps."""
    outcome = backtest.backtest(store, run, for_run(high(), run))
    return [(run, m.step, m.alert.rule, m.word) for m in outcome.messages]


def test_one_long_look_and_many_short_ones_come_to_what_a_backtest_says(store: Store) -> None:
    put(store, "a", series(WAVE))
    counts = look(store, at(len(WAVE)))
    assert counts["steps"] == len(WAVE)
    for step, value in enumerate(WAVE):
        put(store, "b", {step: {K3: value}})
        look(store, at(step + 1))
    told = expected(store)
    assert len(told) == 5
    assert [line for line in messages(store) if line[0] == "a"] == told
    assert [("a", *line[1:]) for line in messages(store) if line[0] == "b"] == told


def judged(store: Store, verdict: str, step: int, since: int | None = None) -> None:
    """The diagnosis job's last word about run a."""
    document = json.dumps(diagnosis(verdict, since_step=since))
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, since_step, causes, document, diagnosed_at)"
            " VALUES ('a', ?, 1, ?, 'objective', ?, [], ?, ?)",
            [step, verdict, since, document, at(step)],
        )


@pytest.mark.parametrize(
    ("metric", "since", "phase"),
    [("clip_fraction_high", 2, "firing"), ("ess", 2, "normal"), ("clipped_frac", 14, "normal")],
)
def test_a_masked_share_that_falls_while_k3_grows_resolves_nothing(
    store: Store, metric: str, since: int, phase: str
) -> None:
    """`since`: step from which K3 grows; a share that fell before, and what is no share, resolve as any other."""
    of = high(metric=metric, above=0.2)
    key = of[0].metric
    put(store, "a", series([0.4] * 5, key))
    judged(store, "critical", 4, since=2)
    look(store, at(5), of)
    assert standing(store)["phase"] == "firing"
    put(store, "a", series([0.1] * 10, key, first=5))
    judged(store, "growing", 14, since=since)
    look(store, at(15), of)
    assert standing(store)["phase"] == phase
    if phase == "firing":
        assert "K3 grows, so a smaller share is no sign of health" in standing(store)["words"]
    put(store, "a", series([0.1] * 2, key, first=15))
    judged(store, "healthy", 16)
    look(store, at(17), of)
    assert standing(store)["phase"] == "normal"
    assert [line[3] for line in messages(store) if line[2] == "high"] == ["firing", "resolved"]


@pytest.mark.parametrize("steps", [STEPS_PER_BATCH, STEPS_PER_BATCH + 1])
def test_a_run_of_more_steps_than_a_batch_is_looked_at_to_its_end(store: Store, steps: int) -> None:
    put(store, "a", series([0.1] * steps))
    assert look(store, at(steps))["steps"] == steps
    assert standing(store)["step"] == steps - 1
    assert look(store, at(steps))["steps"] == 0


def test_what_comes_late_does_not_call_back_what_was_told(store: Store) -> None:
    put(store, "a", series([0.1, 2.0, 2.0, 2.0]))
    look(store, at(10))
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM step_metrics WHERE step = 2")
    put(store, "a", {2: {K3: 0.1}})
    look(store, at(20))
    assert messages(store) == [("a", 2, "high", "firing")]


def go_back(store: Store, *steps: int, value: float, when: int) -> None:
    """Steps are trained again, as the step job leaves them."""
    for step in steps:
        with store.transaction() as cursor:
            cursor.execute(
                "INSERT INTO all_sequences (run, step, sample_id, segment_id, row, n_total, n_expected, rollout_source, raw_kept, "
                "repeated_by, began) VALUES ('a', ?, '', '', 0, 0, 0, 'missing', false, 'later', ?)",
                [step, at(when)],
            )
            cursor.execute("DELETE FROM step_metrics WHERE step = ?", [step])
        put(store, "a", {step: {K3: value}})
        with store.transaction() as cursor:
            times = {"step": step, "at": at(when + step)}
            cursor.execute("UPDATE step_summaries SET time = $at, computed_at = $at WHERE step = $step", times)
        look(store, at(when + step + 1))


def test_after_a_return_to_a_checkpoint_thresholds_look_at_the_steps_that_are_trained_again(store: Store) -> None:
    first = [0.1] * 3 + [2.0, 2.0, 0.1, 0.1] * 2 + [0.1] * 2
    put(store, "a", series(first))
    look(store, at(20))
    told = [("a", 4, "high", "firing"), ("a", 6, "high", "resolved"), ("a", 8, "high", "firing")]
    assert messages(store) == [*told, ("a", 10, "high", "resolved")]
    for step in (3, 4, 5):
        go_back(store, step, value=2.0, when=100)
        assert standing(store)["step"] == step
    assert messages(store)[4:] == [("a", 4, "high", "firing")], "although its episode has the name of an earlier one"


def test_an_acknowledgement_is_of_the_attempt_in_which_it_was_given(store: Store) -> None:
    def fires() -> tuple[str, str | None]:
        row = standing(store)
        return row["phase"], row["acknowledged_by"]

    put(store, "a", series([0.1] * 3 + [2.0] * 4))
    look(store, at(20))
    of(store, clock=lambda: at(20))[ACKNOWLEDGE].run({"episode": "a", "author": "ann", "reason": "mine"})
    assert fires() == ("firing", "ann")
    put(store, "a", series([0.1] * 4, first=7))
    look(store, at(30))
    assert fires()[0] == "normal"
    go_back(store, 3, 4, 5, value=2.0, when=100)
    assert fires() == ("firing", None), (
        "what fires from step 3 on is another thing than what fired from there on before"
    )
    of(store, clock=lambda: at(106))[ACKNOWLEDGE].run({"episode": "a", "author": "bob", "reason": "mine"})
    assert fires() == ("firing", "bob")
    look(store, at(106), high(steps=1))
    assert fires() == ("firing", "bob"), "a threshold that looks at the same steps again finds the same episode"
    episodes = store.query("SELECT DISTINCT episode FROM notifications WHERE rule = 'high' ORDER BY episode")[
        "episode"
    ].to_pylist()
    assert episodes == ["a/high/3", "a/high/3/again-1"]


def test_old_runs_are_looked_at_and_nobody_is_told(store: Store) -> None:
    put(store, "a", series(WAVE))
    look(store, at(len(WAVE)) + timedelta(days=30))
    assert messages(store) == []
    assert standing(store)["muted"] == "history: it happened too long ago for a message"


def test_a_threshold_that_changes_looks_at_the_last_steps_again_and_tells_the_difference_once(store: Store) -> None:
    put(store, "a", series([0.1] * 5 + [2.0] * 5))
    look(store, at(10))
    assert messages(store) == [("a", 6, "high", "firing")]
    look(store, at(10), high(steps=3))
    assert len(messages(store)) == 1  # it still fires: no news
    look(store, at(10), high(above=5))
    look(store, at(10), high(above=5))
    assert messages(store)[1:] == [("a", 9, "high", "resolved")]
    look(store, at(10))
    assert messages(store)[2:] == [("a", 9, "high", "firing")]
    keys = store.query("SELECT DISTINCT key FROM notifications")["key"].to_pylist()
    assert len(keys) == 3


def test_a_threshold_that_is_removed_is_over(store: Store) -> None:
    put(store, "a", series([2.0] * 5))
    look(store, at(10))
    look(store, at(10), ())
    look(store, at(10), ())
    assert messages(store) == [("a", 1, "high", "firing"), ("a", 4, "high", "resolved")]
    assert "high" not in store.read("alert_list", run=None)["rule"].to_pylist()
    said = store.query("SELECT document ->> '$.summary' AS said FROM notifications ORDER BY number DESC LIMIT 1")
    assert said["said"].to_pylist() == ["Resolved. The threshold high was removed; what it was about may still hold."]


def deleted(store: Store) -> None:
    """Remove the states of alerts, which are lost with the index."""
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM alert_states")


@pytest.mark.parametrize("lasts", [True, False])
def test_a_store_that_was_made_anew_sends_nothing_twice_and_misses_no_end(store: Store, lasts: bool) -> None:
    put(store, "a", series([0.1] * 3 + [2.0] * 4))
    look(store, at(8))
    of(store, clock=lambda: at(8))[ACKNOWLEDGE].run({"episode": "a", "author": "ann", "reason": "mine"})
    look(store, at(8))
    before = messages(store)
    assert [line[3] for line in before] == ["firing", "acknowledged"]
    deleted(store)
    look(store, at(9))
    assert messages(store) == before
    row = standing(store)
    assert (row["phase"], row["episode"], row["acknowledged_by"]) == ("firing", "a/high/3", "ann")
    put(store, "a", series([2.0 if lasts else 0.1] * 3, first=7))
    deleted(store)
    look(store, at(11))
    assert messages(store)[2:] == ([] if lasts else [("a", 8, "high", "resolved")])


def test_people_take_care_and_silence(store: Store) -> None:
    put(store, "a", series([2.0] * 5))
    now = at(10)
    actions = of(store, clock=lambda: now)
    look(store, now)
    with pytest.raises(ConfigurationError, match="no firing alert 'b'"):
        actions[ACKNOWLEDGE].run({"episode": "b", "author": "ann"})
    for author in ("ann", "bob"):  # the first one stays
        done = actions[ACKNOWLEDGE].run({"episode": "a", "author": author, "reason": "mine"})
        assert done["acknowledged"] == ["a/high/0"]
        look(store, now)
    assert standing(store)["acknowledged_by"] == "ann"
    assert messages(store) == [("a", 1, "high", "firing"), ("a", 4, "high", "acknowledged")]
    noted = store.read("user_actions_of", run=None).to_pylist()
    assert [(row["author"], row["action"]) for row in noted] == [("ann", "acknowledged")]
    document = json.loads(store.query("SELECT document FROM notifications ORDER BY number DESC")["document"][0].as_py())
    assert document["summary"] == "ann acknowledged it: mine"

    silence = {"id": "s", "run": "b*", "for": "1h", "author": "bob", "reason": "ablation"}
    for _ in range(2):
        actions[SILENCE].run(silence)
    put(store, "b", series([2.0] * 5))
    look(store, now)
    assert standing(store, "b")["muted"] == "silenced by bob: ablation"
    assert len(messages(store)) == 2
    actions[UNSILENCE].run({"id": "s", "author": "bob"})
    look(store, now + timedelta(seconds=1))
    assert messages(store)[2:] == [("b", 4, "high", "firing")]
    actions[SILENCE].run(silence)  # its request arrives once more, late
    assert store.read("alert_silences", now=now.isoformat()).num_rows == 0
    noted = store.read("user_actions_of", run="b*").to_pylist()
    assert [(row["action"], row["subject"], row["words"]) for row in noted] == [
        ("silence ended", "b*/*", "by bob"),
        ("silenced", "b*/*", f"ablation, until {now + timedelta(hours=1):%Y-%m-%d %H:%M} UTC"),
    ]


def test_an_acknowledgement_of_a_run_is_of_no_run_whose_name_begins_alike(store: Store) -> None:
    for run in ("a", "a/b", "a/high"):
        put(store, run, series([2.0] * 5))
    look(store, at(10))
    actions = of(store, clock=lambda: at(10))

    def meant(episode: str) -> list[str]:
        return sorted(actions[ACKNOWLEDGE].run({"episode": episode, "author": "ann"})["acknowledged"])

    assert meant("a") == meant("a/high/0") == ["a/high/0"]
    assert meant("a/b") == meant("a/b/high") == ["a/b/high/0"]
    assert meant("a/high") == ["a/high/0", "a/high/high/0"], "a run, and a rule of another: both were named"
    with pytest.raises(ConfigurationError, match="no firing alert 'a/high/'"):
        meant("a/high/")
    for run, episodes in (("a", ["a/high/0"]), ("a/b", ["a/b/high/0"]), ("a/high", ["a/high/high/0"])):
        assert store.read("user_actions_of", run=run)["subject"].to_pylist() == episodes


def test_a_silence_that_makes_no_sense_is_refused(store: Store) -> None:
    silence = {"id": "s", "run": "b*", "for": "1h", "author": "bob", "reason": "ablation"}
    for change, words in (
        ({"run": ""}, "needs a pattern"),
        ({"for": "-5m"}, "not a duration"),
        ({"reason": " "}, "'reason' is missing"),
        ({"id": None}, "'id' is missing"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            of(store)[SILENCE].run(silence | change)


def test_a_notification_carries_what_people_need(store: Store) -> None:
    put(store, "a", series([0.1] * 5 + [2.0] * 3))
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT INTO all_weights (run, time, version, step) VALUES ('a', ?, '41', 4), ('a', ?, '99', 90)",
            [at(4), at(90)],
        )
    look(store, at(10), page="http://127.0.0.1:8501")
    (text,) = store.query("SELECT document FROM notifications")["document"].to_pylist()
    document = json.loads(text)
    assert document["summary"] == "K3 is 2; the limit is at most 1."
    assert (document["metric"], document["unit"], document["level"]) == ("backend.k3_kl", "nats", "warning")
    assert (document["step"], document["since_step"], document["value"]) == (6, 5, 2.0)
    assert document["changes"] == ["weights 41, 2026-03-01 12:00:40 UTC"]
    assert document["link"] == "http://127.0.0.1:8501/?run=a&step=6&steps=0:26"
    assert document["more"] == "logprobe show a --metrics"
