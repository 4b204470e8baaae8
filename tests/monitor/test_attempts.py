"""A run that is trained again under its name: the newest attempt counts; what is taken for an older one is in tests/unit/test_live.py,
and what becomes of frozen steps in tests/machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from recorded_home import take_in
from segments import RUN, at, records, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.judgement import read
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.job import DiagnosisStage
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
        row = {"time": at(self.clock), "component": "recorder", "event": event, "severity": "info", "count": 1}
        self.spool.write("health", records("health", row | {"step": step, "details": '{"rank": 0}'}))

    def begins(self, step: int) -> Trainer:
        self.says("training_begins", step)
        return self

    def trains(self, *steps: int) -> Trainer:
        for step in steps:
            self.clock += 1
            rows = [trained(f"{self.name}-{step}-{n}", step, time=at(self.clock)) for n in range(SAMPLES)]
            self.spool.write("training", records("training", *rows))
            told = {"time": at(self.clock), "step": step, "rank": 0, "scalars": {"loss": self.started}}
            self.spool.write("step", records("step", told))
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
        rows = self.rows("SELECT step, sequences FROM step_summaries ORDER BY step")
        counted = {row["step"]: row["sequences"] for row in rows}
        measured = self.rows("SELECT step, count(*) AS n FROM statistics WHERE pair = 'backend' GROUP BY step")
        assert {row["step"]: row["n"] for row in measured} == counted
        return counted

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.store.query(sql).to_pylist()


@pytest.fixture
def runs(store: Store) -> Runs:
    return Runs(store)


def test_what_is_trained_again_counts_as_it_was_trained_last_and_says_how_the_run_stands(runs: Runs) -> None:
    store, diagnosis = runs.store, Turns(DiagnosisStage(runs.store))
    runs.trainer("a", 0).begins(1).trains(*range(1, 11))
    assert set(runs.sequences().values()) == {SAMPLES}
    diagnosis.run_once()
    again = runs.trainer("b", 100).begins(6).trains(6, 7)
    # 8 to 10 are the first attempt's until the second has been there, and do not say how the run stands.
    assert runs.sequences() == dict.fromkeys(range(1, 11), SAMPLES)
    assert runs.rows(OLDER) == [{"writer": "a"}]
    assert runs.rows("SELECT value FROM scalars WHERE step = 7 AND name = 'loss'") == [{"value": 100}]
    counted = (
        "SELECT step, older, count(DISTINCT sample_id) AS n FROM tokens WHERE step IN (5, 7) GROUP BY ALL ORDER BY ALL"
    )
    found = [(row["step"], row["older"], row["n"]) for row in runs.rows(counted)]
    assert found == [(5, False, SAMPLES), (7, False, SAMPLES), (7, True, SAMPLES)]
    judged = read(store, [RUN], datetime.now(UTC))[RUN]
    assert (judged.newest, judged.behind, judged.overdue) == (7, 7, False), (
        "what was judged of the first attempt is none of it"
    )
    (due,) = DiagnosisStage(store).rows()
    assert due["step"] == 7
    diagnosis.run_once()
    judged = read(store, [RUN], datetime.now(UTC))[RUN]
    assert (judged.newest, judged.step) == (7, 7)
    assert gather(store, RUN).series.step.tolist() == list(range(1, 8))
    assert queries.metrics_newest(store, runs=[RUN], keys=["backend.k3_kl"]).num_rows == 1
    again.trains(*range(8, 13))
    runs.sequences()
    assert runs.rows("FROM abandoned_steps") == []
    assert read(store, [RUN], datetime.now(UTC))[RUN].newest == 12
