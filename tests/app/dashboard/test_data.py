"""What the dashboard holds of a run: frames that grow, values that are kept, what happened; from a real store."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from recorded_home import take_in
from synthetic_run import SyntheticRun

from logprobe.app.dashboard import data
from logprobe.app.dashboard.data import Grown, Kept, column, events, measured
from logprobe.collectors.errors import ServiceUnavailableError
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
        found = events(store, "restarts")
    assert sorted((event.at, event.kind, event.words) for event in found) == [
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
            "INSERT INTO all_weights (run, time, version, step) "
            "SELECT $run, TIMESTAMPTZ '2026-01-01' + range * INTERVAL 1 SECOND, range, range FROM range($many)",
            {"run": run, "many": many},
        )
    return [int(event.at) for event in events(store, run)]


# --- Frames ---


class Source:
    """Steps and points of a run, as a service answers for them; it can be away."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, float | None, dict[str, float | None]]] = {}
        self.reads: list[str] = []
        self.away = False

    def read(self, name: str, /, **params: Any) -> pa.Table:
        if self.away:
            raise ServiceUnavailableError("away")
        self.reads.append(name)
        changed = {step: row for step, row in self.rows.items() if row[0] > params["since"]}
        if name == "app_steps":
            kinds = pa.schema(
                [
                    ("step", pa.int64()),
                    ("tokens", pa.int64()),
                    ("sequences", pa.int64()),
                    ("time", pa.timestamp("us", "UTC")),
                    ("revision", pa.int64()),
                ]
            )
            return pa.Table.from_pylist([{"step": step, "tokens": tokens, "sequences": 1, "time": None, "revision": at} for step, (at, tokens, _) in changed.items()], kinds)  # fmt: skip
        points = [{"step": step, "metric": key, "value": value} for step, (*_, values) in changed.items() for key, value in values.items()]  # fmt: skip
        return pa.Table.from_pylist(points, pa.schema([("step", pa.int64()), ("metric", pa.string()), ("value", pa.float64())]))  # fmt: skip


def test_a_frame_grows_by_what_changed_and_unknown_is_null() -> None:
    source = Source()
    source.rows = {1: (1, 10, {"a": 1.0}), 0: (2, None, {"a": float("nan"), "b": float("inf")})}
    grown = Grown("r", ("a", "b"), lambda: source)  # type: ignore[arg-type, return-value]
    source.away = True
    with pytest.raises(ServiceUnavailableError):  # what was never read is not empty
        grown.at(2)
    source.away = False
    first = grown.at(2)
    assert first["step"].to_list() == [0, 1]
    assert first["a"].to_list() == [None, 1.0]
    assert not measured(first, "b")  # not finite: of it nothing is known
    assert np.isnan(column(first, "tokens")[0])
    assert np.isnan(column(first, "no such")).all()
    assert grown.at(2) is first
    assert len(source.reads) == 2  # nothing new: nothing was read
    source.rows |= {1: (3, 10, {}), 5: (4, 7, {"b": 2.0})}
    second = grown.at(4)
    assert second["step"].to_list() == [0, 1, 5]
    assert second["a"].to_list() == [None, None, None]  # a step computed again loses what it lost
    assert second["b"].to_list() == [None, None, 2.0]
    source.rows[6] = (5, 7, {"a": 3.0})
    source.rows[7] = (6, 7, {"a": 3.0})
    third = grown.at(5)
    assert third["step"].to_list() == [0, 1, 5, 6, 7]  # newer than what was asked for
    source.away = True
    assert grown.at(5) is third  # the last that was read stays
    assert grown.at(9) is third
    source.away = False
    source.rows = {7: (1, 1, {"a": 3.0})}
    assert grown.at(1)["step"].to_list() == [7]  # the store was recreated


def test_where_the_service_is_away_an_incomplete_step_is_not_said_to_be_completed(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    source = Source()
    source.away = True
    monkeypatch.setattr(data, "reader", lambda: source)
    run = SimpleNamespace(name="r", revision=1)
    frame = pl.DataFrame({"step": [0, 1], "backend.coverage": [1.0, 0.5]})
    assert not data.awaits(run, frame)  # type: ignore[arg-type]


# --- Values ---


class Clock:
    """Seconds that only grow."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_value_is_read_once_per_version_and_stays_while_the_service_is_away() -> None:
    kept = Kept()

    def away() -> str:
        raise ServiceUnavailableError("away")

    assert kept.get("place", 1, lambda: "first") == "first"
    assert kept.get("place", 1, away) == "first"  # not even asked
    assert kept.get("place", 2, away) == "first"
    assert kept.get("place", 2, lambda: "second") == "second"
    with pytest.raises(ServiceUnavailableError):  # never another place's value
        kept.get("other", 2, away)


def test_what_costs_much_rests_for_a_time_that_grows_with_its_cost() -> None:
    clock = Clock()
    kept, made = Kept(clock=clock), []

    def compute() -> int:
        clock.seconds += 1.0
        made.append(len(made))
        return made[-1]

    assert [kept.get("k", version, compute, pace=20) for version in (1, 1, 2)] == [0, 0, 0]
    clock.seconds += 19.9
    assert kept.versioned("k", 2, compute, pace=20) == (1, 0)  # twenty times its second have not passed
    clock.seconds += 0.2
    assert kept.get("k", 2, compute, pace=20) == 1
    assert kept.get("another", 2, compute, pace=20) == 2  # what is asked for first is computed at once


def test_an_old_value_does_not_wait_for_the_new_one() -> None:
    clock = Clock()
    kept = Kept(clock=clock)
    kept.get("k", 1, lambda: "old", pace=1)
    clock.seconds = 1e6
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> str:
        begun.set()
        assert go_on.wait(60)
        return "new"

    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(kept.get("k", 2, slowly, pace=1)))
    other.start()
    assert begun.wait(60)
    assert kept.get("k", 2, slowly, pace=1) == "old"
    go_on.set()
    other.join(60)
    assert found == ["new"]


def test_a_failed_read_keeps_what_there_was_and_what_was_asked_for_longest_ago_is_forgotten_first() -> None:
    kept = Kept(2)
    kept.get("a", 1, lambda: "a")
    with pytest.raises(ValueError, match="no"):
        kept.get("a", 2, lambda: int("no"))
    assert kept.get("a", 1, lambda: "again") == "a"
    for place in ("b", "a", "c"):
        kept.get(place, 1, lambda place=place: place)
    assert kept.get("a", 1, lambda: "again") == "a"
    assert kept.get("b", 1, lambda: "again") == "again"


def test_a_glance_at_a_run_is_of_all_its_steps_and_ends_with_the_newest(home: Path) -> None:
    with Recorder(home, "long") as recorder:
        SyntheticRun(recorder).record(130)
    with Recorder(home, "short") as recorder:
        SyntheticRun(recorder).record(1)
    with Store.open(Home(home)) as store:
        take_in(store)
        glances = {row["run"]: row for row in store.read("app_runs_glance", runs=["long", "short"]).to_pylist()}
        points = store.read("app_points", run="long", since=0, metrics=["backend.k3_kl"]).to_pylist()
    k3 = [row["value"] for row in sorted(points, key=lambda row: row["step"])]
    assert len(glances["long"]["k3"]) == 60
    assert glances["long"]["k3"][-1] == k3[-1]
    assert set(glances["long"]["k3"][:10]) <= set(k3[:30])
    assert len(glances["short"]["k3"]) == 1
