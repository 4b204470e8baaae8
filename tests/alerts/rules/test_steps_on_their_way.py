"""Trainer and engine flush when they like: no threshold judges a step by half of its records, and none is missed for ever."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from segments import RUN, sampled, trained
from store_work import Fed

from logprobe.alerts.rules.steps import next_steps
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.monitor.store.store import Store

COVERAGE = "backend.coverage"
QUIET = timedelta(seconds=2)


class Run:
    """A run whose two sides are brought in by hand."""

    def __init__(self, home: Path, store: Store) -> None:
        self.store, self.fed = store, Fed(store)

    def train(self, *steps: int) -> None:
        self.fed.feed(training=[trained(f"{step}/{k}", step, received=False) for step in steps for k in range(2)])

    def sample(self, *ids: str) -> None:
        self.fed.feed(rollout=[sampled(name) for name in ids])

    @property
    def computed(self) -> datetime:
        rows = self.store.query("SELECT max(computed_at) AS at FROM step_summaries").to_pylist()
        return rows[0]["at"]

    def looked_at(self, after: timedelta, since: int | None = None) -> dict[int, float | None]:
        """Coverage of the steps that thresholds may look at so long after the last was computed."""
        quiet_since = self.computed + after - QUIET
        steps = next_steps(self.store, {RUN: since}, {COVERAGE}, quiet_since=quiet_since)[RUN]
        return {step.step: step.values.get(COVERAGE) for step in steps}


@pytest.fixture
def run(home: Path, store: Store) -> Run:
    return Run(home, store)


def test_a_step_is_looked_at_once_the_engine_s_records_are_here(run: Run) -> None:
    run.sample("0/0", "0/1")
    run.train(0, 1, 2)
    assert run.looked_at(timedelta(seconds=3)) == {0: 1.0}
    run.sample("1/0", "1/1", "2/0")
    assert run.looked_at(timedelta(seconds=3)) == {0: 1.0, 1: 1.0}
    run.sample("2/1")
    assert run.looked_at(timedelta(seconds=3), since=1) == {2: 1.0}


def test_what_three_later_steps_have_overtaken_is_missing_for_good(run: Run) -> None:
    run.train(0, 1, 2, 3)
    assert set(run.looked_at(timedelta(seconds=3))) == {0, 1, 2, 3}, "where no engine sends records none are awaited"
    run.sample("0/0", "1/0", "1/1", "2/0", "2/1")
    assert run.looked_at(timedelta(seconds=3)) == {}
    run.sample("3/0", "3/1")
    assert run.looked_at(timedelta(seconds=3)) == {0: 0.5, 1: 1.0, 2: 1.0, 3: 1.0}


def test_nobody_waits_for_ever(run: Run) -> None:
    run.sample("0/0", "0/1")
    run.train(0, 1)
    assert run.looked_at(timedelta(seconds=121)) == {0: 1.0}
    assert run.looked_at(timedelta(seconds=123)) == {0: 1.0, 1: 0.0}


def test_an_engine_that_is_always_later_than_the_trainer_raises_no_alert(run: Run) -> None:
    run.sample("0/0", "0/1")
    low = (Threshold.model_validate({"name": "low", "metric": COVERAGE, "below": 0.99, "steps": 1}),)
    for step in range(5):
        run.train(step)
        now = run.computed + timedelta(seconds=5)
        Watch(run.store, lambda: low, threading.Event(), clock=lambda now=now: now).run_once()
        if step:
            run.sample(f"{step}/0", f"{step}/1")
    now = run.computed + timedelta(seconds=5)
    Watch(run.store, lambda: low, threading.Event(), clock=lambda: now).run_once()
    assert run.store.query("SELECT step FROM alert_states WHERE rule = 'low'")["step"].to_pylist() == [4]
    assert run.store.query("SELECT document ->> '$.summary' AS s FROM notifications").to_pylist() == []


def test_the_absence_of_an_engine_is_told_once_and_ends_with_its_records(run: Run) -> None:
    run.train(*range(12))

    def told(minutes: float) -> list[tuple[str, str, str]]:
        now = run.computed + timedelta(minutes=minutes)
        Watch(run.store, tuple, threading.Event(), clock=lambda: now).run_once()
        rows = run.store.query("SELECT rule, state, severity FROM notifications ORDER BY number").to_pylist()
        return [tuple(row.values()) for row in rows]

    assert told(1) == []
    assert told(3) == told(4) == [("liveness", "firing", "warning")]
    run.sample("11/0")
    assert told(5)[1:] == [("liveness", "resolved", "warning")]
