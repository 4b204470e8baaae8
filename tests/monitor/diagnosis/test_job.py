"""The diagnosis job: what it writes and when, on recorded runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded_home import ingest_recorded
from segments import Clock
from store_contents import same

from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.service.turns import Priority, Turns
from logprobe.monitor.store.store import Store


@pytest.fixture
def beginning(home: Path) -> Path:
    """A home with the first 30 steps of a healthy run."""
    ingest_recorded(home, "v0-reference", before_step=30)
    return home


def recompute(store: Store, run: str = "v0-reference") -> None:
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET revision = nextval('revision') WHERE run = ? AND step = 3", [run])


def test_the_latest_diagnosis_is_kept(beginning: Path) -> None:
    with Store.open(Home(beginning)) as store:
        job = Turns(DiagnosisStage(store), clock=Clock())
        first, again = job.run_once(), job.run_once()
    assert first["runs"] == 1
    assert (again["runs"], again["waiting"]) == (0, 0)  # nothing new

    ingest_recorded(beginning, "v0-reference", from_step=30, before_step=205)
    with Store.open(Home(beginning)) as store:
        job = Turns(DiagnosisStage(store), clock=Clock())
        second = job.run_once()
        recompute(store)
        third = job.run_once()
        (latest,) = store.read("diagnosis_latest", run=None).to_pylist()
        # Of nine digits the last one may differ.
        assert same(json.loads(latest["document"]), diagnose(store, "v0-reference"), rel=1e-7)
    assert (second["runs"], third["runs"]) == (1, 1)
    assert (latest["run"], latest["step"], latest["verdict"], latest["layer"]) == (
        "v0-reference",
        204,
        "healthy",
        "none",
    )


def test_another_engine_configuration_gives_the_run_a_new_normal(beginning: Path) -> None:
    with Store.open(Home(beginning)) as store:
        assert store.read("diagnosis_config_changes", run="v0-reference")["step"].to_pylist() == [0]
        with store.transaction() as cursor:
            cursor.execute(
                "UPDATE rollout_sequences SET engine_config_id = 'other' WHERE (segment_id, row) IN "
                "(SELECT (rollout_segment, rollout_row) FROM training_sequences WHERE step >= 12)"
            )
            cursor.execute(
                "INSERT INTO config_records BY NAME SELECT * REPLACE ('other' AS fingerprint) FROM config_records "
                "WHERE kind = 'engine_config'"
            )
        assert store.read("diagnosis_config_changes", run="v0-reference")["step"].to_pylist() == [
            0
        ]  # nothing that matters
        with store.transaction() as cursor:
            cursor.execute("""UPDATE config_records SET document = '{"summary": {}}' WHERE fingerprint = 'other'""")
        assert store.read("diagnosis_config_changes", run="v0-reference")["step"].to_pylist() == [0, 12]
        assert gather(store, "v0-reference").growth.reasons == ("18 of the 200 measured steps that set the baseline",)


def test_the_priority_of_a_run_is_that_of_what_the_stage_knows_of_it(beginning: Path) -> None:
    with Store.open(Home(beginning)) as store:
        with store.transaction() as cursor:
            cursor.execute("UPDATE step_summaries SET time = NULL")  # as of now, not of the recording

        def due(now: datetime, *, armed: bool) -> Priority:
            stage = DiagnosisStage(store, now=lambda: now, armed=lambda _run: armed)
            (row,) = stage.rows()
            return stage.due(row)

        live, ended = datetime(2026, 1, 1, tzinfo=UTC), store.time.now() + timedelta(days=2)
        assert (due(live, armed=True), due(live, armed=False)) == (Priority.ARMED, Priority.LIVE)
        assert due(ended, armed=True) == Priority.FIRST
        until = store.read("runs_now")["live_until"][0].as_py()
        for judged, expected in ((until, Priority.LAST), (until + timedelta(microseconds=1), Priority.ENDED)):
            Turns(DiagnosisStage(store, now=lambda judged=judged: judged)).run_once()
            assert not DiagnosisStage(store).rows()
            recompute(store)
            assert due(ended, armed=True) == expected
