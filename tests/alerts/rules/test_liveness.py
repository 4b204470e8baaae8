"""The liveness test as a table of heartbeats."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from logprobe.alerts.rules.alert import CRITICAL, WARNING
from logprobe.alerts.rules.liveness import Pulse, look
from logprobe.monitor.liveness import State, Writer, judge

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


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
    **more,
) -> Pulse:
    last = None if step is None else ago(step)
    since = None if training is None else ago(training)
    return Pulse(None if step is None else 7, last, last, every, relies, rollouts, writers, since, **more)


FAILED = {"closed": True, "failed": "ended with ValueError"}
CASES = [
    # signs, level, what is said
    (pulse(599), 0, ""),
    (pulse(601), CRITICAL, "no new step since step 7"),
    (pulse(601, every=None), CRITICAL, "no new step"),
    (pulse(1199, every=200.0), 0, ""),  # slow steps are not late
    (pulse(1201, every=200.0), CRITICAL, "no new step"),
    (pulse(None), None, "nothing was recorded"),
    (pulse(9e4, writers=[writer(9e4, closed=True)]), 0, "closed"),  # ended as planned
    (pulse(601, writers=[writer(1)]), CRITICAL, "its collectors still send heartbeats"),  # it hangs
    (pulse(7200, writers=[writer(7200)]), CRITICAL, "no collector sends heartbeats either"),  # it was killed
    (
        replace(pulse(None, writers=[writer(1201)]), last_record_at=ago(1201)),
        WARNING,
        "no collector closed",
    ),  # ended silently before its first step
    (pulse(60, writers=[writer(60, **FAILED)]), CRITICAL, "ended with ValueError"),
    (pulse(None, writers=[writer(60, **FAILED)]), CRITICAL, "ended with ValueError"),
    (pulse(9e4, writers=[writer(9e4, **FAILED)]), CRITICAL, "ended with ValueError"),
    (pulse(5, writers=[writer(60, **FAILED), writer(5)]), 0, ""),  # resumed
    (pulse(50, writers=[writer(60, failed="x"), writer(5, name="other")]), CRITICAL, "w: x"),
    (pulse(1, writers=[writer(1), writer(301, name="v")]), WARNING, "v sent no heartbeat for 5 min"),
    (pulse(1, writers=[writer(1), writer(299, name="v")]), 0, ""),
    (pulse(1, writers=[writer(1), writer(601, name="v", closed=True)]), 0, ""),
    (pulse(1, writers=[writer(1, begun=500), writer(601, name="v")]), 0, ""),  # replaced
    # The trainer said goodbye: the engine lives on, or was killed.
    (pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(1, name="v")]), 0, ""),
    (pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(9e4, name="v")]), 0, ""),
    (pulse(601, writers=[writer(601, trains=True), writer(1, closed=True, name="v")]), CRITICAL, "no new step"),
    (
        pulse(9e4, writers=[writer(9e4, closed=True, trains=True), writer(1, name="v"), writer(8e4, name="w2")]),
        0,
        "",
    ),
    (pulse(relies=3, rollouts=False), WARNING, "the mismatch is not measured"),
    (pulse(600, relies=3, rollouts=False, writers=[writer(600, closed=True, trains=True)]), 0, ""),  # it has ended
    (pulse(relies=2, rollouts=False), 0, ""),  # the engine's records may be on their way
    (pulse(relies=99, rollouts=False, training=119), 0, ""),  # so may those of short steps
    (pulse(relies=99, rollouts=True), 0, ""),
    (pulse(relies=0, rollouts=False), 0, ""),  # the trainer passes r itself
    (pulse(601, relies=3, rollouts=False), CRITICAL, "no new step"),  # the worst comes first
    (replace(pulse(), last_step_at=ago(-60)), 0, ""),  # a clock that runs ahead
]


@pytest.mark.parametrize(("signs", "level", "said"), CASES)
def test_liveness(signs: Pulse, level: int | None, said: str) -> None:
    seen = look(signs, NOW)
    assert (seen.level, said in seen.words) == (level, True), seen.words
    assert seen.words


def test_all_that_is_found_is_said() -> None:
    seen = look(pulse(601, relies=3, rollouts=False), NOW)
    assert seen.words.index("no new step") < seen.words.index("not measured")


@pytest.mark.parametrize(
    ("signs", "level"),
    [
        (pulse(3000, writers=[writer(3000)]), None),
        (pulse(1, writers=[writer(1), writer(3000, name="v")]), None),
        (pulse(relies=3, rollouts=False), None),
        (pulse(3000, writers=[writer(3000, failed="died")]), CRITICAL),  # that is known
    ],
)
def test_what_waits_in_the_spool_may_be_what_is_missing(signs: Pulse, level: int | None) -> None:
    """As long as it is new: a file that cannot be read for hours says nothing of its run."""
    assert look(replace(signs, spooled_at=ago(30)), NOW).level == level
    assert look(replace(signs, spooled_at=ago(601)), NOW) == look(signs, NOW)


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
