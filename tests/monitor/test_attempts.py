"""A run that is trained again under its name: the newest attempt counts; what is taken for an older one is in tests/unit/test_live.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from recorded_home import take_in
from segments import RUN, at, records, trained
from store_work import METRICS, bring_in, freeze

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.judged import judged_runs
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

SAMPLES = 4


@dataclass
class Trainer:
    """One process; its clock starts at `started` and goes on by a second with each record."""

    home: Path
    name: str
    started: float
    spool: SpoolWriter = field(init=False)

    def __post_init__(self) -> None:
        self.spool = SpoolWriter(self.home, RUN, self.name)
        self.clock = self.started
        self.says("started", None)

    def says(self, event: str, step: int | None) -> None:
        self.clock += 1
        row = {
            "time": at(self.clock),
            "component": "recorder",
            "event": event,
            "severity": "info",
            "message": "",
            "count": 1,
        }
        self.spool.write("health", records("health", row | {"step": step, "details": '{"rank": 0}'}))

    def begins(self, step: int) -> Trainer:
        self.says("training_begins", step)
        return self

    def trains(self, *steps: int, samples: int = SAMPLES) -> Trainer:
        for step in steps:
            self.clock += 1
            names = [f"{self.name}-{step}-{sample}" for sample in range(samples)]
            rows = [trained(name, step, time=at(self.clock)) for name in names]
            self.spool.write("training", records("training", *rows))
            scalars = {"loss": self.started}
            self.spool.write(
                "step", records("step", {"time": at(self.clock), "step": step, "rank": 0, "scalars": scalars})
            )
        return self


OLDER = """
SELECT DISTINCT writer FROM all_sequences JOIN segments USING (segment_id) WHERE repeated_by IS NOT NULL ORDER BY 1
"""


class Runs:
    """A store, and what counts in it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def trainer(self, name: str, started: float) -> Trainer:
        return Trainer(self.store.home.path, name, started)

    def sequences(self) -> dict[int, int]:
        """Of each step, as its metrics count them; sums of statistics must agree."""
        take_in(self.store)
        take_in(self.store)  # a step that became dirty while steps were computed
        counted = {
            row["step"]: row["sequences"]
            for row in self.rows("SELECT step, sequences FROM step_summaries ORDER BY step")
        }
        measured = self.rows(
            "SELECT step, count(*) AS n FROM statistics WHERE pair = 'backend' GROUP BY step ORDER BY step"
        )
        assert {row["step"]: row["n"] for row in measured} == counted
        return counted

    def older(self) -> list[str]:
        return [row["writer"] for row in self.rows(OLDER)]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.store.query(sql).to_pylist()


@pytest.fixture
def runs(store: Store) -> Iterator[Runs]:
    return Runs(store)


def test_a_resume_five_steps_back(runs: Runs) -> None:
    runs.trainer("a", 0).begins(1).trains(*range(1, 11))
    assert set(runs.sequences().values()) == {SAMPLES}
    runs.trainer("b", 100).begins(6).trains(*range(6, 9))
    assert runs.sequences() == dict.fromkeys(
        range(1, 11), SAMPLES
    )  # 9 and 10 are the first attempt's, until the second has been there
    assert runs.older() == ["a"]
    (loss,) = runs.rows("SELECT value FROM scalars WHERE step = 7 AND name = 'loss'")
    assert loss["value"] == 100
    older = runs.rows(
        "SELECT step, older, count(DISTINCT sample_id) AS samples FROM tokens WHERE step IN (5, 7) GROUP BY ALL ORDER BY ALL"
    )
    assert older == [
        {"step": 5, "older": False, "samples": SAMPLES},
        {"step": 7, "older": False, "samples": SAMPLES},
        {"step": 7, "older": True, "samples": SAMPLES},
    ]


def test_steps_that_are_still_to_be_trained_again_do_not_say_how_the_run_stands(runs: Runs) -> None:
    store = runs.store
    diagnosis = Turns(DiagnosisStage(store))
    runs.trainer("a", 0).begins(1).trains(*range(1, 11))
    runs.sequences()
    diagnosis.run_once()
    again = runs.trainer("b", 100).begins(6).trains(6, 7)
    runs.sequences()
    (judged,) = judged_runs(store).values()
    assert (judged.newest_step, judged.judged_step, judged.in_time) == (7, None, True)
    (due,) = queries.diagnosis_due(store).to_pylist()
    assert due["step"] == 7
    diagnosis.run_once()
    (judged,) = judged_runs(store).values()
    assert (judged.newest_step, judged.judged_step) == (7, 7)
    evidence = gather(store, RUN)
    assert evidence.series.step.tolist() == evidence.series.step.tolist() == list(range(1, 8))
    assert queries.metrics_newest(store, runs=[RUN], keys=["backend.k3_kl"]).num_rows == 1
    again.trains(*range(8, 13))
    runs.sequences()
    assert runs.rows("FROM abandoned_steps") == []
    assert judged_runs(store)[RUN].newest_step == 12


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_frozen_step_that_is_trained_again_counts_as_it_was_trained_last(runs: Runs, rebuilt: bool) -> None:
    store = runs.store
    runs.trainer("a", 0).begins(1).trains(*range(1, 11), samples=8)
    bring_in(store)
    assert freeze(store, protected=2).steps == 8
    again = runs.trainer("b", 100).begins(3).trains(3, 4)
    bring_in(store)
    counted = {row["step"]: row["sequences"] for row in runs.rows("SELECT step, sequences FROM step_summaries")}
    assert counted == {**dict.fromkeys(range(1, 11), 8), 3: SAMPLES, 4: SAMPLES}
    assert [row["step"] for row in runs.rows("SELECT step FROM frozen_steps ORDER BY step")] == [1, 2, 5, 6, 7, 8]
    (loss,) = runs.rows("SELECT value, ranks FROM scalars WHERE step = 3 AND name = 'loss'")
    assert loss == {"value": 100, "ranks": 1}
    again.trains(*range(5, 11))
    bring_in(store)
    expected = {1: 8, 2: 8, **dict.fromkeys(range(3, 11), SAMPLES)}
    if rebuilt:
        store.archive.merge()
        store.close()
        store.home.database.unlink()
        store = Store.open(store.home)
        runs = Runs(store)
        bring_in(store)
    counted = {row["step"]: row["sequences"] for row in runs.rows("SELECT step, sequences FROM step_summaries")}
    assert counted == expected
    before = store.query(METRICS)
    assert freeze(store, protected=2).steps == 6
    assert store.query(METRICS).equals(before)
    store.close()


def test_late_records_of_a_frozen_step_are_not_of_another_attempt(runs: Runs) -> None:
    """The same session, and a beginning from before: nothing was trained again."""
    store = runs.store
    first = runs.trainer("a", 0).begins(1).trains(*range(1, 11), samples=8)
    bring_in(store)
    freeze(store, protected=2)
    first.trains(3)
    bring_in(store)
    (row,) = runs.rows("SELECT sequences FROM step_summaries WHERE step = 3")
    assert row["sequences"] == 8
