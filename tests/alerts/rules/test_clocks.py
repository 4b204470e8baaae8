"""Liveness of what real records say when the clocks of the machines disagree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded_home import take_in
from segments import records, trained

from logprobe.app.runs import runs_of
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.liveness import Liveness, State
from logprobe.monitor.store.store import Store

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def arrive(store: Store, home: Path, *, ahead: timedelta, events: tuple[str, ...] = ("heartbeat",), data: bool = True):
    """Records of a machine whose clock differs from ours by `ahead` arrive now; → what time it was before."""
    began = datetime.now(UTC)
    theirs = began + ahead
    writer = SpoolWriter(home, "run", "trainer-1")
    if data:
        writer.write("training", records("training", *(trained(f"s{n}", n, time=theirs) for n in range(3))))
    health = [{"time": theirs, "event": event, "component": "trainer", "severity": "info"} for event in events]
    writer.write("health", records("health", *health))
    take_in(store)
    return began


def judged(store: Store, began: datetime, *, later: timedelta) -> Liveness:
    """As of so long after `began`, when the records were about to arrive."""
    (run,) = runs_of(store.read("app_runs"), began + later)
    return run.liveness


@pytest.mark.parametrize("ahead", [timedelta(0), 2 * HOUR, timedelta(days=400)])
def test_a_run_that_was_killed_is_missed_however_its_clock_went(store: Store, home: Path, ahead: timedelta) -> None:
    began = arrive(store, home, ahead=ahead)
    assert judged(store, began, later=timedelta(0)).state is State.LIVE
    assert judged(store, began, later=2 * MINUTE).state is State.IDLE
    assert judged(store, began, later=11 * MINUTE).state is State.STALE


def test_a_clock_that_is_behind_does_not_declare_a_run_dead(store: Store, home: Path) -> None:
    began = arrive(store, home, ahead=-HOUR)
    # Late by its own clock, but it sent a heartbeat
    assert judged(store, began, later=timedelta(0)).state is State.IDLE


def test_a_run_that_ended_is_told_from_one_that_was_killed(store: Store, home: Path) -> None:
    began = arrive(store, home, ahead=2 * HOUR, events=("heartbeat", "closed"))
    assert judged(store, began, later=11 * MINUTE).state is State.ENDED


def test_heartbeats_are_no_data(store: Store, home: Path) -> None:
    began = arrive(store, home, ahead=2 * HOUR, data=False)
    assert judged(store, began, later=timedelta(0)).state is State.NO_DATA
