"""The dead-man's conditions, as a table of heartbeats."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from logprobe.alerts.rules import run_status
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.present_conditions import DeadMan, Pulse, RunStatus
from logprobe.alerts.rules.rule import Rule
from logprobe.monitor.liveness import State, Writer, judge

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def observe(when: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    return when.observe(RunStatus(pulse), now)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def writer(
    seen: float,
    *,
    closed: bool = False,
    failed: str | None = None,
    name: str = "w",
    begun: float = 1e5,
    trains: bool = False,
) -> Writer:
    return Writer(name, ago(seen), closed, failed, "trainer", ago(begun), trains)


def pulse(
    step: float | None = 1,
    *,
    every: float | None = 10.0,
    writers=(),
    relies: int = 0,
    rollouts: bool = True,
    training: float | None = 3600,
) -> Pulse:
    last = None if step is None else ago(step)
    since = None if training is None else ago(training)
    return Pulse(None if step is None else 7, last, last, every, relies, rollouts, writers, since)


CASES = [
    # event, pulse, expected
    ("no_new_step", pulse(599), "good"),
    ("no_new_step", pulse(601), "bad"),
    ("no_new_step", pulse(601, every=None), "bad"),
    ("no_new_step", pulse(1199, every=200.0), "good"),  # slow steps are not late
    ("no_new_step", pulse(1201, every=200.0), "bad"),
    ("no_new_step", pulse(None), "missing"),
    ("no_new_step", pulse(9e4, writers=[writer(9e4, closed=True)]), "good"),  # ended as planned
    ("no_new_step", pulse(9e4, writers=[writer(9e4, closed=True, failed="died")]), "good"),  # another rule says so
    ("no_new_step", pulse(601, writers=[writer(1)]), "bad"),  # hangs, though its heart beats
    ("ended_silently", pulse(601, writers=[writer(601)]), "bad"),
    ("ended_silently", pulse(601, writers=[writer(1)]), "good"),
    ("ended_silently", pulse(601, writers=[writer(601, closed=True)]), "good"),
    ("ended_silently", pulse(None), "missing"),
    ("host_failed", pulse(60, writers=[writer(60, closed=True, failed="ended with ValueError")]), "bad"),
    ("host_failed", pulse(None, writers=[writer(60, closed=True, failed="ended with ValueError")]), "bad"),
    ("host_failed", pulse(5, writers=[writer(60, closed=True, failed="x"), writer(5)]), "good"),  # resumed
    ("host_failed", pulse(50, writers=[writer(60, failed="x"), writer(5, name="other rank")]), "bad"),
    ("host_failed", pulse(60, writers=[writer(60, closed=True)]), "good"),
    ("collector_stopped", pulse(1, writers=[writer(1), writer(601, name="v")]), "bad"),
    ("collector_stopped", pulse(1, writers=[writer(1), writer(599, name="v")]), "good"),
    ("collector_stopped", pulse(601, writers=[writer(601), writer(601, name="v")]), "good"),  # the run stopped
    ("collector_stopped", pulse(1, writers=[writer(1), writer(601, name="v", closed=True)]), "good"),
    ("collector_stopped", pulse(1, writers=[writer(1, begun=500), writer(601, name="v")]), "good"),  # replaced
    # The trainer said goodbye: the engine lives on, or was killed.
    ("no_new_step", pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(1, name="v")]), "good"),
    ("ended_silently", pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(9e4, name="v")]), "good"),
    ("no_new_step", pulse(601, writers=[writer(601, trains=True), writer(1, closed=True, name="v")]), "bad"),
    (
        "collector_stopped",
        pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(1, name="v"), writer(8e4, name="w2")]),
        "good",
    ),
    ("plugin_missing", pulse(1, relies=3, rollouts=False), "bad"),
    ("plugin_missing", pulse(1, relies=2, rollouts=False), "good"),  # the engine's records may be on their way
    ("plugin_missing", pulse(1, relies=99, rollouts=False, training=119), "good"),  # so may those of short steps
    ("plugin_missing", pulse(1, relies=99, rollouts=True), "good"),
    ("plugin_missing", pulse(1, relies=0, rollouts=False), "good"),  # the trainer passes r itself
]


@pytest.mark.parametrize(("event", "signs", "verdict"), CASES)
def test_dead_man(event, signs: Pulse, verdict: str) -> None:
    seen = observe(DeadMan(kind="dead_man", event=event), signs, NOW)
    assert seen.verdict == verdict
    assert seen.words


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        ("no_new_step", "missing"),
        ("ended_silently", "missing"),
        ("collector_stopped", "missing"),
        ("plugin_missing", "missing"),
        ("host_failed", "bad"),
    ],
)
def test_what_waits_in_the_spool_may_be_what_is_missing(event: str, verdict: str) -> None:
    """As long as it is new: a file that cannot be read for hours says nothing of its run."""
    silent = pulse(3000, writers=[writer(3000, failed="died"), writer(3000, name="v")])
    waits = replace(silent, spooled_at=ago(30))
    when = DeadMan(kind="dead_man", event=event)
    assert observe(when, waits, NOW).verdict == verdict
    assert observe(when, replace(silent, spooled_at=ago(700)), NOW) == observe(when, silent, NOW)


def test_words_say_whether_it_hangs_or_was_killed() -> None:
    when = DeadMan(kind="dead_man", event="no_new_step")
    hangs = observe(when, pulse(7200, writers=[writer(1)]), NOW).words
    killed = observe(when, pulse(7200, writers=[writer(7200)]), NOW).words
    assert hangs == "no new step since step 7, for 2 h, a step usually takes 10 s; its collectors still send heartbeats"
    assert killed.endswith("no collector sends heartbeats either")


def test_floor_and_factor_are_the_rule_s() -> None:
    when = DeadMan(kind="dead_man", event="no_new_step", times=2, floor="5s")
    assert observe(when, pulse(19), NOW).verdict == "good"
    assert observe(when, pulse(21), NOW).verdict == "bad"


@pytest.mark.parametrize(
    ("writers", "state"),
    [
        ([writer(9, closed=True, failed="died of ValueError")], State.FAILED),
        ([writer(9, closed=True, failed="died"), writer(8, closed=True)], State.FAILED),
        ([writer(900, closed=True, failed="died"), writer(8, closed=True)], State.ENDED),  # resumed, and then ended
        ([writer(9, closed=True, failed="died"), writer(1)], State.LIVE),
    ],
)
def test_a_run_whose_process_died_of_an_error_has_not_just_ended(writers, state: State) -> None:
    verdict = judge(now=NOW, last_record=ago(9), median_step_seconds=2.0, writers=writers)
    assert verdict.state is state


# --- The other conditions on the present ---

FINDING = {
    "cause": "raw_logprobs",
    "layer": "semantic",
    "confidence": 0.9,
    "explanation": "temperature is not applied",
    "fix": "processed_logprobs",
    "since_step": 3,
}


def seen(when: dict, **known) -> Observation:
    rule = Rule.model_validate({"name": "r", "when": when})
    return run_status.observe([rule], RunStatus(pulse(), **known), NOW)["r"]


@pytest.mark.parametrize(
    ("when", "findings", "verdict"),
    [
        ({"layers": ["semantic"]}, [FINDING], "bad"),
        ({"causes": ["raw_logprobs"]}, [FINDING], "bad"),
        ({"layers": ["objective"]}, [FINDING], "good"),
        ({"causes": ["other"]}, [FINDING], "good"),
        ({"layers": ["semantic"], "confidence": 0.95}, [FINDING], "good"),
        ({"layers": ["semantic"]}, [], "good"),
        ({"layers": ["semantic"]}, [FINDING | {"urgency": "act", "accepted": None}], "bad"),
        ({"layers": ["semantic"]}, [FINDING | {"urgency": "watch"}], "bad"),
        ({"layers": ["semantic"]}, [FINDING | {"urgency": "informational"}], "good"),
        ({"layers": ["semantic"]}, [FINDING | {"accepted": {"because": "an ablation"}}], "good"),
        ({"layers": ["semantic"]}, None, "missing"),
    ],
)
def test_what_the_diagnosis_found(when: dict, findings, verdict: str) -> None:
    found = seen({"kind": "diagnosis", **when}, findings=findings)
    assert found.verdict == verdict
    if verdict == "bad":
        assert (found.cause, found.layer, found.fix, found.since_step) == (
            "raw_logprobs",
            "semantic",
            "processed_logprobs",
            3,
        )


@pytest.mark.parametrize(
    ("control", "verdict"),
    [
        (None, "missing"),
        ({"phase": "issued", "ack_missed": False, "from_step": 5}, "good"),
        ({"phase": "issued", "ack_missed": True, "from_step": 5}, "bad"),
        ({"phase": "applied", "ack_missed": False, "from_step": 5}, "good"),
    ],
)
def test_a_correction_that_the_trainer_does_not_confirm(control, verdict: str) -> None:
    assert seen({"kind": "unacknowledged"}, control=control).verdict == verdict


def test_a_clock_that_runs_ahead_gives_no_negative_silence() -> None:
    ahead = replace(pulse(), last_step_at=ago(-60))
    assert observe(DeadMan(kind="dead_man", event="no_new_step"), ahead, NOW).value == 0.0
