"""Newest steps of live runs in memory: the values of the statements, bit by bit, and the store where memory may lack something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from segments import RUN, at, sampled, spool, trained
from store_work import Fed

from logprobe.monitor import queries
from logprobe.monitor.judging.frames import Frames, Look
from logprobe.monitor.judging.gather import gather_sums, series_of, slices_of, strata_of_run, strata_of_slices
from logprobe.monitor.judging.records import Series
from logprobe.monitor.live import newest as newest_module
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.newest import NewSteps
from logprobe.monitor.store.store import Store

OTHER = "other run"


class Live(Fed):
    """A store, and what its ingest has in memory."""

    def newest(self, run: str = RUN) -> int:
        rows = self.store.query("SELECT max(revision) AS newest FROM step_summaries WHERE run = $run", {"run": run})
        return int(rows["newest"][0].as_py())

    def since(self, revision: int, *, run: str = RUN, tick: int = 0) -> NewSteps | None:
        return self.ingester.newest.since(run, revision, tick, upto=self.newest(run))


@pytest.fixture
def live(store: Store) -> Iterator[Live]:
    yield Live(store)
    store.archive.bring_all()


def assert_same(live: Live, run: str = RUN, revision: int = 0) -> list[int]:
    """Compare all values of all columns with those of the statements; → the steps."""
    found = live.since(revision, run=run)
    assert found is not None
    steps: list[int] = found.steps["step"].tolist()
    told = series_of(live.store, run)
    expected = told.within(np.array(steps))
    for name, column in expected.columns.items():
        assert found.steps[name].dtype == column.dtype, name
        np.testing.assert_array_equal(found.steps[name], column, err_msg=name)
    assert found.steps.keys() == expected.columns.keys()
    ours = strata_of_slices(found.slices)
    theirs = strata_of_run(live.store, run, steps)
    for name in ("step", "lag", "sequences", "tokens", "sum_k3", "sum_abs_d", "c_nn", "c_aa", "c_an"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert ours.groups.keys() == theirs.groups.keys()
    for name, column in theirs.groups.items():
        assert column.values == ours.groups[name].values
        assert column.codes.tolist() == ours.groups[name].codes.tolist()
    return steps


def test_values_are_those_of_the_statements(live: Live) -> None:
    current = {"current_logprobs": [-0.4, -1.4, -2.4, -3.4], "reference_logprobs": [-0.3, -1.3, -2.3, -3.3]}
    weights = [{"version": str(step), "step": step, "source": "trainer", "time": at(step)} for step in range(3)]
    odd = {"trainer_logprobs": [float("nan"), 1e-3, -9999.0, 0.0]}
    spool(
        live.store.home.path,
        training=[
            trained("a", 1, weight_version="2", **current),
            trained("b", 1, 6, weight_version="2"),
            trained("c", 2, **odd),
            trained("d", 2, received=False),
            trained("e", 3, received=False),
        ],
        weights=weights,
    )
    live.feed(OTHER, training=[trained("a", 0), trained("b", 7)])
    assert assert_same(live, OTHER) == [0, 7]
    assert assert_same(live, revision=2) == [1, 2, 3]
    live.feed(writer="e", rollout=[sampled("a", version="1", replica="x"), sampled("d", version="0", replica="y")])
    assert assert_same(live, revision=2) == [1, 2, 3]
    first = live.newest()
    live.feed(writer="e", rollout=[sampled("e", version="0", cached_prefix_tokens=3, prompt_length=4)])
    assert assert_same(live, revision=first) == [3]
    assert slices_of(live.store, RUN, [3]).num_rows
    live.feed(step=[{"time": at(9), "step": 9, "rank": 0, "scalars": [("loss", 1.0)]}])  # a step without sequences
    assert assert_same(live, revision=first) == [3]


@pytest.mark.parametrize("limit", ["STEPS", "_CHUNKS"])
def test_the_store_is_asked_where_memory_may_lack_a_step(
    live: Live, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(newest_module, limit, 3)
    live.feed(training=[trained("a", 0)])
    first = live.newest()
    for step in (1, 2, 3):
        live.feed(training=[trained(f"s{step}", step)])
    assert live.since(first - 1) is None  # one step more than is kept
    assert assert_same(live, revision=first) == [1, 2, 3]
    assert Ingester(live.store).newest.since(RUN, live.newest(), 0, upto=live.newest()) is None  # after a start
    with live.store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET revision = nextval('revision') WHERE step = 2")
    assert live.since(first) is None  # the store has a newer step than memory
    monkeypatch.setattr(newest_module, "_RUNS", 1)
    live.feed(training=[trained("z", 99)])
    assert live.since(live.newest() - 1) is not None
    live.feed(OTHER, training=[trained("a", 0)])
    assert live.since(live.newest() - 1) is None  # only so many runs are kept


def test_of_a_run_that_has_returned_to_a_checkpoint_the_store_is_asked(live: Live) -> None:
    def says(second: float, event: str, step: int | None = None) -> dict[str, Any]:
        row = {"time": at(second), "component": "recorder", "event": event, "severity": "info", "message": ""}
        return row | {"count": 1, "step": step, "details": '{"rank": 0}'}

    live.feed(health=[says(0, "started"), says(0.5, "training_begins", 0)], training=[trained("a", 1), trained("b", 2)])
    assert live.since(live.newest() - 1) is not None
    again = [says(100, "started"), says(100.5, "training_begins", 1)]
    live.feed(writer="w2", health=again, training=[trained("c", 1, time=at(101))])
    assert live.since(live.newest() - 1) is None
    live.feed(writer="w2", training=[trained("d", 2, time=at(102))])
    assert live.since(live.newest() - 1) is None


def test_a_failed_tick_leaves_nothing(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.feed(training=[trained("a", 0)])
    with monkeypatch.context() as patch:
        patch.setattr("logprobe.monitor.live.batch._ledger", lambda *_: 1 / 0)
        live.feed(training=[trained("b", 1)])
    assert live.since(0) is None


def test_configurations_weights_and_fingerprints_that_came_are_told(live: Live) -> None:
    live.feed(training=[trained("a", 0)])
    config = {"time": at(1), "fingerprint": "f", "kind": "engine_config", "document": "{}"}
    mark = {"version": "1", "step": 1, "source": "trainer", "time": at(1)}
    for kinds, expected in (
        ({"training": [trained("b", 1)]}, (False, False, False)),
        ({"config": [config]}, (True, False, False)),
        ({"weights": [mark]}, (False, True, False)),
        ({"weights": [mark | {"version": "2", "fingerprint": "00ff"}]}, (False, True, True)),
        ({"weights": [mark | {"version": "3", "step": None}]}, (False, True, False)),
    ):
        tick = live.ingester.newest.tick
        live.feed(
            OTHER, training=[trained("x", 0)], **{kind: rows for kind, rows in kinds.items() if kind != "training"}
        )
        live.feed(**kinds)
        found = live.since(0, tick=tick)
        assert found is not None
        assert (found.configs, found.weights, found.readings) == expected, kinds


def test_a_live_run_is_judged_without_a_statement(live: Live) -> None:
    asked: list[str] = []

    class Asked:
        def read(self, name: str, *incoming: Any, **params: Any) -> Any:
            asked.append(name)
            return live.store.read(name, *incoming, **params)

    frames = Frames(live.ingester.newest)
    live.feed(training=[trained("a", 0)])
    for step in range(1, 8):
        weights = {"weights": [{"version": "1", "step": 1, "source": "trainer", "time": at(1)}]} if step == 5 else {}
        live.feed(training=[trained(f"s{step}", step)], **weights)
        look = Look(RUN, live.newest())
        asked.clear()
        ((frame, _),) = frames.diagnose(Asked(), [look])
        needed = list(asked)
        expected = gather_sums(live.store, RUN)
        assert frame.weights == expected.weights
        for name, column in expected.series.columns.items():
            np.testing.assert_array_equal(frame.series[name], column, err_msg=name)
        if step > 1 and "diagnosis_tokens" not in needed:
            assert needed == (["diagnosis_weights"] if step == 5 else []), step
    assert isinstance(frame.series, Series)
    assert queries.diagnosis_weights(live.store, runs=[RUN], after=[None]).num_rows == 1
