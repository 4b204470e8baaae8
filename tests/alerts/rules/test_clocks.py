"""Liveness of what real records say when the clocks of the machines disagree."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alert_homes import K3, at, put
from recorded_home import take_in
from segments import spool, trained

from logprobe.alerts.controller.job import Controller
from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.app import doctor
from logprobe.app.runs import Run, runs_of
from logprobe.app.text.gaps import SILENT_SECONDS
from logprobe.monitor import queries
from logprobe.monitor.judgement import read
from logprobe.monitor.liveness import Liveness, State
from logprobe.monitor.service.turns import as_of
from logprobe.monitor.store.store import Store

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
STEPS = 30
WRONG = [-400 * DAY, -8 * HOUR, 2 * DAY]
HIGH = (Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 1, "steps": 2}),)


def arrive(store: Store, home: Path, *, ahead: timedelta, events: tuple[str, ...] = ("heartbeat",), data: bool = True):
    """Records of a machine whose clock differs from ours by `ahead` arrive now; → what time it was before."""
    began = datetime.now(UTC)
    theirs = began + ahead
    if data:
        spool(home, training=[trained(f"s{n}", n, time=theirs) for n in range(3)])
    health = [
        {"time": theirs, "event": event, "component": "trainer", "severity": "info", "details": "{}"}
        for event in events
    ]
    spool(home, health=health)
    take_in(store)
    return began


def judged(store: Store, began: datetime, *, later: timedelta) -> Liveness:
    """As of so long after `began`, when the records were about to arrive."""
    (run,) = runs_of(store.read("app_runs"), began + later)
    return run.liveness


OPEN, CLOSED = ("heartbeat",), ("heartbeat", "closed")


@pytest.mark.parametrize(
    ("ahead", "events", "data", "states"),
    [
        (timedelta(0), OPEN, True, [State.LIVE, State.IDLE, State.STALE]),
        (2 * HOUR, OPEN, True, [State.LIVE, State.IDLE, State.STALE]),
        (400 * DAY, OPEN, True, [State.LIVE, State.IDLE, State.STALE]),
        (-HOUR, OPEN, True, [State.IDLE, State.STALE, State.STALE]),  # late by its own clock, but it sent a heartbeat
        (2 * HOUR, CLOSED, True, [State.ENDED] * 3),
        (2 * HOUR, OPEN, False, [State.NO_DATA] * 3),  # heartbeats are no data
    ],
)
def test_a_run_is_judged_by_when_its_records_came(
    store: Store, home: Path, ahead: timedelta, events: tuple[str, ...], data: bool, states: list[State]
) -> None:
    began = arrive(store, home, ahead=ahead, events=events, data=data)
    found = [judged(store, began, later=later).state for later in (timedelta(0), 2 * MINUTE, 11 * MINUTE)]
    assert found == states


@pytest.mark.parametrize("ahead", [-DAY, 2 * HOUR])
def test_a_collector_has_ended_once_nothing_came_for_long_whatever_its_clock_says(
    store: Store, home: Path, ahead: timedelta
) -> None:
    began = arrive(store, home, ahead=ahead, events=("started", "heartbeat"))

    def ended(later: timedelta) -> int:
        return queries.cli_ends(store, run="run", now=began + later, silent=SILENT_SECONDS).num_rows

    assert [ended(timedelta(0)), ended(MINUTE)] == [0, 1]


def computed(store: Store, *, ahead: timedelta, pace: float = 1.0, values: dict[int, float] | None = None) -> datetime:
    """Steps of ten seconds each by a clock that is `ahead` of ours, computed as they came in, `pace` times as fast as
    they were made; → when the last one was."""
    put(store, "run", {step: {K3: (values or {}).get(step, 0.1)} for step in range(STEPS)})
    last = at(STEPS - 1)
    with store.transaction() as cursor:
        cursor.execute(
            "UPDATE step_summaries SET time = time + $ahead, computed_at = $last::TIMESTAMPTZ - (($last::TIMESTAMPTZ - time) / $pace)",
            {"ahead": ahead, "last": last, "pace": pace},
        )
    return last


def run_at(store: Store, now: datetime) -> Run:
    (run,) = runs_of(queries.app_runs(store), now)
    return run


def is_live(store: Store, now: datetime) -> bool:
    (row,) = as_of(queries.runs_now(store), now)
    return row["live"]


@pytest.mark.parametrize("ahead", [timedelta(0), *WRONG])
def test_records_that_come_at_their_pace_are_of_a_live_run_whatever_they_are_dated(
    store: Store, ahead: timedelta
) -> None:
    """Page, judge, doctor, controller and alerts."""
    now = computed(store, ahead=ahead, values=dict.fromkeys(range(5, 10), 2.0)) + timedelta(seconds=1)
    over = now + timedelta(minutes=11)
    run = run_at(store, now)
    assert run.liveness.state is State.LIVE
    assert ("dated" in run.liveness.reason) is (ahead != timedelta(0))
    assert is_live(store, now)
    assert read(store, ["run"], now)["run"].waiting == pytest.approx(10 * (STEPS - 1) + 1, abs=1), (
        "waited since they came in"
    )
    assert [finding.text for finding in doctor._clocks(store) if "dated" in finding.text] == (
        [f"run: {run.liveness.reason.partition('; ')[2]}"] if ahead else []
    )
    assert run_at(store, over).liveness.state is State.STALE
    assert not is_live(store, over)

    def looked_at(when: datetime) -> object:
        return Controller(store, lambda _: Policy(), clock=lambda: when).run_once().get("runs")

    assert [looked_at(now), looked_at(now + DAY + HOUR)] == [1, 0], "in the end no trainer is left to be told"
    Watch(store, lambda: HIGH, threading.Event(), clock=lambda: now + timedelta(seconds=4)).run_once()
    rows = store.query("SELECT step, state FROM notifications ORDER BY number").to_pylist()
    assert [(row["step"], row["state"]) for row in rows] == [(6, "firing"), (11, "resolved")]


@pytest.mark.parametrize("pace", [20.0])
def test_an_import_and_a_backlog_are_of_no_live_run(store: Store, pace: float) -> None:
    now = computed(store, ahead=-2 * DAY, pace=pace) + timedelta(seconds=1)
    run = run_at(store, now)
    assert run.liveness.state is State.IDLE, "it came just now, but is two days old"
    assert "dated" not in run.liveness.reason
    assert not is_live(store, now)
