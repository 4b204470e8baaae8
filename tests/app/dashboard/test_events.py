"""What happened to a run, from the records of a real store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from recorded_home import take_in
from synthetic_run import SyntheticRun

from logprobe.app.dashboard.data.events import events_of, rates_of
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


def test_learning_rates_and_restarts_are_events(home: Path) -> None:
    rates = [0.0, 1e-4, 2e-4, 2e-4, 2e-4, 1.99e-4, 1.98e-4, 1e-5, 1e-5]
    with Recorder(home, "restarts") as recorder:
        run = SyntheticRun(recorder, full=False)
        for step, rate in enumerate(rates):
            recorder.step(step, {"actor/lr": rate, "loss": float(step)})
        run.record(5)
    with Recorder(home, "restarts") as recorder:
        run = SyntheticRun(recorder, full=False)
        run.next_step = 5
        run.record(4)
    with Store.open(Home(home)) as store:
        take_in(store)
        events = events_of(store.read("app_events", run="restarts"))
        events += rates_of(store.read("app_learning_rates", run="restarts"))
    assert sorted((event.step, event.kind, event.words) for event in events) == [
        (1, "learning_rate", "actor/lr 0 → 2.00e-4, until step 2"),  # warm-up is one event
        (5, "learning_rate", "actor/lr 2.00e-4 → 1.98e-4, until step 6"),
        (5, "restart", "trainer started again"),
        (7, "learning_rate", "actor/lr 1.98e-4 → 1.00e-5"),  # a leap is one of its own
    ]


def test_of_many_updates_the_newest_and_some_of_all_are_events(home: Path) -> None:
    """As many as a chart can tell apart, however long the run; which of the old ones does not change with every update."""
    with Store.open(Home(home)) as store:
        seen = [updates(store, run, many) for run, many in (("few", 2000), ("many", 50_000), ("one more", 50_001))]
    few, many, more = seen
    assert few == list(range(2000))
    assert set(range(48_000, 50_000)) <= set(many)
    assert len(many) < 4000
    old = [step for step in many if step < 48_000]
    assert max(np.diff([0, *old, 48_000])) <= 26
    assert set(old) <= set(more)


def updates(store: Store, run: str, many: int) -> list[int]:
    """Steps of the updates that are events of a run with so many, one per step."""
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT INTO weight_records (run, time, version, step) "
            "SELECT $run, TIMESTAMPTZ '2026-01-01' + range * INTERVAL 1 SECOND, range, range FROM range($many)",
            {"run": run, "many": many},
        )
    return [event.step for event in events_of(store.read("app_events", run=run)) if event.step is not None]
