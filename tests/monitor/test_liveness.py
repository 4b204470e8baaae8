"""The judgement whether a run is live, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from logprobe.monitor.liveness import State, Writer, judge

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def writer(seen: float | None, *, closed: bool = False, trains: bool = False) -> Writer:
    return Writer("w", None if seen is None else ago(seen), closed, trains=trains)


CLOSED_TRAINER = writer(900, closed=True, trains=True)
CASES = [
    # name, age of the last record, median step, writers, expected
    ("nothing at all", None, None, [], State.NO_DATA),
    ("announced only", None, None, [writer(1)], State.NO_DATA),
    ("announced and closed without data", None, None, [writer(1, closed=True)], State.NO_DATA),
    ("fresh", 1, 2.0, [writer(1)], State.LIVE),
    ("fresh, pace unknown", 29, None, [], State.LIVE),
    ("slow steps are not late", 900, 600.0, [writer(900)], State.LIVE),
    ("late", 31, 2.0, [writer(31)], State.IDLE),
    ("late for slow steps", 1801, 600.0, [writer(1801)], State.IDLE),
    ("long silent, heart beats", 7200, 2.0, [writer(5)], State.IDLE),
    ("long silent, one of two hearts beats", 7200, 2.0, [writer(7200), writer(5)], State.IDLE),
    ("long silent", 601, 2.0, [writer(601)], State.STALE),
    ("long silent, no writers known", 601, None, [], State.STALE),
    ("slow run, silent for an hour", 3600, 600.0, [writer(3600)], State.IDLE),
    ("slow run, lost", 12001, 600.0, [writer(12001)], State.STALE),
    ("all closed", 1, 2.0, [writer(1, closed=True)], State.ENDED),
    ("closed long ago", 1e6, 2.0, [writer(1e6, closed=True)], State.ENDED),
    ("killed long ago, replaced, replacement closed", 5, 2.0, [writer(606), writer(1, closed=True)], State.ENDED),
    ("killed just before the other closed", 5, 2.0, [writer(604), writer(1, closed=True)], State.LIVE),
    ("one of two closed", 1, 2.0, [writer(1, closed=True), writer(1)], State.LIVE),
    ("the trainer closed, its engine lives on", 900, 2.0, [CLOSED_TRAINER, writer(1)], State.ENDED),
    ("the trainer closed, its engine was killed", 900, 2.0, [CLOSED_TRAINER, writer(900)], State.ENDED),
    (
        "the engine closed, the trainer did not",
        900,
        2.0,
        [writer(900, trains=True), writer(900, closed=True)],
        State.STALE,
    ),
    ("a closed writer sends no heartbeat", 700, 2.0, [writer(1, closed=True), writer(700)], State.STALE),
    ("clock of the writer runs ahead", -60, 2.0, [], State.LIVE),
]


@pytest.mark.parametrize(("name", "age", "median", "writers", "expected"), CASES, ids=[case[0] for case in CASES])
def test_judgement(name, age, median, writers, expected) -> None:
    last = None if age is None else ago(age)
    verdict = judge(now=NOW, last_record=last, median_step_seconds=median, writers=writers)
    assert verdict.state is expected
    assert verdict.reason


@pytest.mark.parametrize(
    ("newest", "closed", "expected"),
    [(2, False, State.LIVE), (2, True, State.LIVE), (700, False, State.STALE), (700, True, State.ENDED)],
)
def test_records_in_the_spool_are_signs_of_life_while_they_are_new(newest, closed, expected) -> None:
    found = judge(now=NOW, last_record=ago(900), writers=[writer(900, closed=closed)], spooled_at=ago(newest))
    assert found.state is expected
    assert ("wait in the spool, the newest written 2.0 s ago" in found.reason) == (expected is State.LIVE)


def test_reasons_name_the_facts() -> None:
    stale = judge(now=NOW, last_record=ago(7200), median_step_seconds=90.0, writers=[writer(7200)])
    assert stale.reason == (
        "no record for 2 h (a step usually takes 90 s), and no collector closed: the process may have been killed or may hang"
    )
    ended = judge(now=NOW, last_record=ago(180), writers=[writer(180, closed=True)] * 2)
    assert ended.reason == "all 2 collectors closed; last record 3 min ago"
    ahead = judge(now=NOW, last_record=ago(-60))
    assert ahead.reason == "last record just now"


def test_grows_worse_with_time_only() -> None:
    """While nothing new arrives a run never looks better later."""
    order = [State.LIVE, State.IDLE, State.STALE]
    states = [
        judge(now=NOW + timedelta(seconds=s), last_record=NOW, median_step_seconds=40.0, writers=[writer(0)]).state
        for s in range(0, 4000, 7)
    ]
    ranks = [order.index(state) for state in states]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}
