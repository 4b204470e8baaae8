"""Histories of what was seen, and the messages that follow: the promises of alerts as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from diagnoses import diagnosis, finding

from logprobe.alerts.rules import judged
from logprobe.alerts.rules.alert import (
    CRITICAL,
    LEVELS,
    WARNING,
    Acknowledgement,
    Alert,
    Context,
    Message,
    Seen,
    Silence,
    Told,
    ended,
    episode_of,
    messages,
)
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.monitor.judgement import Judgement

START = datetime(2026, 3, 1, tzinfo=UTC)
HIGH = Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 1, "steps": 2})


def at(step: int) -> datetime:
    return START + timedelta(minutes=step)


def told(sent: list[Message]) -> list[str]:
    return [
        f"{m.step} {m.word}{' ' + LEVELS[m.alert.level] if m.alert.level else ''}"
        f"{' ' + m.alert.told.cause if m.alert.told.cause and m.word in {'firing', 'changed'} else ''}"
        for m in sent
    ]


# --- Thresholds: one value a step, None is not measured ---

L, H, N = 0.1, 2.0, None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([L] * 5, []),
        ([L, H, L, H, L], []),  # not in a row
        ([H, H], ["1 firing warning"]),
        ([H, N, N, H], ["3 firing warning"]),  # what is not measured counts neither way
        ([1.0] * 5, []),  # the limit itself is within it
        ([H, H, H, L, H, L, L, H], ["1 firing warning", "6 resolved"]),
        ([H, H, N, N, N, N], ["1 firing warning"]),  # never resolved by absence
        ([N] * 9, []),  # a metric that is absent for the whole run
        ([H, H, L, N, L], ["1 firing warning", "4 resolved"]),
        ([H, H, L, L, H, H, L, L], ["1 firing warning", "3 resolved", "5 firing warning", "7 resolved"]),
        ([float("inf")] * 2, ["1 firing warning"]),
        ([float("nan")] * 2, []),
        ([H, H, float("nan"), float("nan")], ["1 firing warning"]),
    ],
)
def test_thresholds(values: list[float | None], expected: list[str]) -> None:
    alert, sent = Alert("high", HIGH.fingerprint, HIGH.steps, HIGH.steps), []
    for step, value in enumerate(values):
        alert = alert.look(HIGH.look(value), step=step, at=at(step))
        (alert,), due = messages([alert], Context("run", at(step)), step=step, at=at(step))
        sent += due
    assert told(sent) == expected
    assert len({message.key for message in sent}) == len(sent)


# --- Judgements: (step, level, cause, first step), None is a judgement that says nothing ---

W, C = WARNING, CRITICAL


def history(*looks: tuple) -> list[str]:
    alert, sent = Alert("judgement", needs=judged.NEEDS, keeps=judged.KEEPS), []
    for step, level, *rest in looks:
        cause, since = [*rest, None, None][:2]
        seen = Seen(level, "words", cause=cause, since_step=since)
        alert = alert.look(seen, step=step, at=at(step), steps=judged.steps_of(alert, seen, step))
        (alert,), due = messages([alert], Context("run", at(step)), step=step, at=at(step))
        sent += due
    return told(sent)


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(10, 0), (11, 0)], []),
        ([(10, 0), (11, C, "x", 11), (12, 0)], []),  # withdrawn by the next judgement
        ([(10, 0), (11, C, "x", 11), (12, C, "x", 11), (13, C, "x", 11)], ["13 firing critical x"]),
        ([(10, 0), (20, C, "x", 15)], ["20 firing critical x"]),  # it has stood since its first step
        ([(10, 0), (11, C, "x", 2)], []),  # … and not before a judgement that said otherwise
        ([(99, C, "x", 40)], ["99 firing critical x"]),  # the first look at a run that was imported
        ([(9, W, "x", 0), (10, None), (11, None), (99, None)], ["9 firing warning x"]),  # unknown resolves nothing
        ([(9, W, "x", 0), (10, 0), (13, 0), (15, 0)], ["9 firing warning x", "15 resolved"]),
        ([(9, W, "x", 0), (10, 0), (13, 0), (14, W, "x", 0), (18, 0), (21, 0)], ["9 firing warning x"]),
        ([(9, W, "x", 0), (12, C, "x", 0)], ["9 firing warning x", "12 firing critical x"]),  # it got worse
        (
            [(9, C, "x", 0), (10, W, "x", 0), (15, W, "x", 0)],
            ["9 firing critical x", "15 changed warning x"],
        ),
        ([(9, W, None, 0), (10, W, "x", 0)], ["9 firing warning", "10 changed warning x"]),  # the cause follows growth
        (
            [(9, W, "x", 0), (10, W, "y", 0), (11, W, "x", 0), (12, W, "y", 0), (13, W, "x", 0)],
            ["9 firing warning x"],  # causes in turn are not told each time
        ),
        ([(9, W, "x", 0), *[(10, W, "y", 0)] * 5], ["9 firing warning x"]),  # looks at one step are one
        ([(9, W, "x", 0), (12, W, "y", 0)], ["9 firing warning x"]),  # … and one look is one, however far it came
        # It rises to the level, and falls to the level, that all looks of the streak have passed
        ([(10, 0), (11, C, "x", 11), (12, W, "x", 11), (13, C, "x", 11)], ["13 firing warning x"]),
        ([(9, C, "x", 0), (10, 0), (11, W, "x", 0), (15, 0)], ["9 firing critical x", "15 changed warning x"]),
        # What speaks for worse does not speak for better
        (
            [(9, W, "x", 0), (10, C, "x", 10), (11, C, "x", 10), *((step, 0) for step in range(12, 17))],
            ["9 firing warning x", "16 resolved"],
        ),
        (
            [(9, W, "x", 0), *((step, W, "y", 0) for step in (10, 11, 12))],
            ["9 firing warning x", "12 changed warning y"],
        ),
    ],
)
def test_judgements(looks: list[tuple], expected: list[str]) -> None:
    assert history(*looks) == expected


# --- What else decides whether a message is sent ---

FIRES = Alert("high", level=WARNING, since_step=3, since_at=at(3), seen=Seen(WARNING, "high"), step=4)
OPEN = replace(FIRES, told=Told("run/high/3", WARNING, WARNING, count=1, since_step=3))
NOW = at(10)
MINE = Acknowledgement("run/high/3", "ann", "mine")


def due(alert: Alert, **context: object) -> str | None:
    (after,), sent = messages([alert], Context("run", NOW, **context), step=10, at=NOW)
    assert messages([after], Context("run", NOW, **context), step=10, at=NOW)[1] == [], "asked again, it is news"
    return sent[0].word if sent else None


def silence(**fields: object) -> Silence:
    return Silence(**{"id": "s", "run": "*", "rule": "*", "author": "bob", "reason": "known", "created_at": at(0), "expires_at": at(99), **fields})  # fmt: skip


@pytest.mark.parametrize(
    ("alert", "context", "word"),
    [
        (FIRES, {}, "firing"),
        (OPEN, {}, None),
        (FIRES, {"silences": [silence(run="r*")]}, None),
        (FIRES, {"silences": [silence(run="other")]}, "firing"),
        (FIRES, {"silences": [silence(rule="low")]}, "firing"),
        (FIRES, {"silences": [silence(expires_at=NOW)]}, "firing"),
        (FIRES, {"notify_from": NOW + timedelta(seconds=1)}, None),  # history
        (OPEN, {"acknowledgements": {"run/high/3": MINE}}, "acknowledged"),
        (OPEN, {"acknowledgements": {"run/high/4": MINE}}, None),
        (replace(OPEN, told=replace(OPEN.told, acknowledged=True)), {"acknowledgements": {"run/high/3": MINE}}, None),
        (ended(OPEN), {}, "resolved"),
        (ended(FIRES), {}, None),  # no message was sent
    ],
)
def test_messages(alert: Alert, context: dict, word: str | None) -> None:
    assert due(alert, **context) == word


def test_a_silence_that_ends_sends_what_still_fires() -> None:
    (muted,), sent = messages([FIRES], Context("run", NOW, silences=[silence()]), step=10, at=NOW)
    assert (muted.muted, sent) == ("silenced by bob: known", [])
    assert due(muted) == "firing"


def test_an_episode_that_is_found_again_is_told_again() -> None:
    keys, alert = [], FIRES
    for level in (WARNING, 0, WARNING):
        (alert,), (message,) = messages([replace(alert, level=level)], Context("run", NOW), step=10, at=NOW)
        keys.append((message.episode, message.key))
    assert {episode for episode, _ in keys} == {"run/high/3"}
    assert len(set(keys)) == 3


def test_an_end_is_told_to_those_who_heard_of_the_worst() -> None:
    worst = replace(OPEN, told=replace(OPEN.told, level=CRITICAL, peak=CRITICAL))
    (fell,), _ = messages([worst], Context("run", NOW), step=10, at=NOW)
    (over,), _ = messages([ended(fell)], Context("run", NOW), step=11, at=NOW)
    assert [alert.told.peak for alert in (fell, over)] == [CRITICAL, CRITICAL]


def test_an_episode_of_steps_that_are_trained_again_has_a_name_of_its_own() -> None:
    assert episode_of("run", FIRES) == "run/high/3"
    assert episode_of("run", FIRES, [4]) == "run/high/3"
    assert episode_of("run", FIRES, [3]) == "run/high/3/again-1"
    assert episode_of("run", FIRES, [3, 2]) == "run/high/3/again-2"


# --- What a stored judgement says ---

FINDING = finding(
    "raw_logprobs", layer="semantic", explanation="Temperature is not applied.", fix="processed_logprobs", since_step=3,
    share={"now": 0.8, "growth": None},
)  # fmt: skip


def document(verdict: str, *findings: dict) -> dict:
    return diagnosis(verdict, findings=findings, correction={"advice": "do_not_enable", "why": ""})


@pytest.mark.parametrize(
    ("stands", "found", "level", "words"),
    [
        (Judgement(), (), None, "not judged yet"),
        (Judgement("no_data"), (), None, "no data"),
        (Judgement("calibrating"), (), None, "calibrating"),
        (Judgement("unknown"), (), None, "unknown"),
        (Judgement("healthy"), (), 0, "healthy"),
        (Judgement("healthy", behind=11, waiting=3.0), (), None, "overdue"),
        (Judgement("watch", 3), (FINDING,), W, "needs a look since step 3: raw logprobs (80% of K3)"),
        (Judgement("growing", 3), (), W, "growing since step 3: no test names a cause"),
        (Judgement("critical", 3), (FINDING,), C, "critical since step 3: raw logprobs"),
        (
            Judgement("critical", 3),
            (FINDING | {"accepted": {"because": "known"}, "vetoes": False},),
            C,
            "no test names a cause",
        ),
        (Judgement("critical", behind=11, waiting=3.0), (), C, "critical"),  # what is bad is not taken back
    ],
)
def test_what_a_judgement_says(stands: Judgement, found: tuple, level: int | None, words: str) -> None:
    seen = judged.look(stands, document(stands.verdict or "", *found))
    assert (seen.level, words in seen.words) == (level, True), seen.words
    if "raw" in words:
        assert (seen.cause, seen.layer, seen.fix) == ("raw_logprobs", "semantic", "processed_logprobs")


def test_a_long_explanation_is_cut_where_that_can_be_seen() -> None:
    def words(length: int) -> str:
        found = FINDING | {"explanation": "x" * length}
        return judged.look(Judgement("critical"), document("critical", found)).words

    room = 600 - len(words(0))
    assert words(room).endswith("x")
    assert len(words(room)) == len(words(room + 1)) == 600
    assert words(room + 1).endswith("x…")
