"""The diagnosis job: what it writes and when, on recorded runs."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded_home import ingest_recorded
from segments import Clock
from store_contents import same

from logprobe.collectors.errors import QueryError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store


class Moved(Store):
    """A store whose reads take time on the test's clock, or fail for one run."""

    clock = Clock()
    began = datetime(2026, 1, 1, tzinfo=UTC)  # before any step was computed: no run has fallen silent
    broken: str | None = None

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.clock.seconds)

    def read(self, name, *incoming, **params):
        if name == "diagnosis_steps":
            self.clock.seconds += 2
            if self.broken == params["run"]:
                raise QueryError("no such file")
        return super().read(name, *incoming, **params)


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


def test_armed_runs_come_first_and_an_ended_one_is_diagnosed_once(beginning: Path) -> None:
    for name in ("v1-fixed", "v1-initial"):
        ingest_recorded(beginning, name, before_step=30)
    with Moved.open(Home(beginning)) as store:
        ended = "v1-initial"
        with store.transaction() as cursor:
            cursor.execute("UPDATE step_summaries SET time = NULL")
            cursor.execute("UPDATE step_summaries SET computed_at = '2025-12-31' WHERE run = ?", [ended])
        # The store's clock begins before the steps of the others were computed: these are live.
        job = Turns(
            DiagnosisStage(store, now=store.now, armed="v1-fixed".__eq__), clock=store.clock, processor=store.clock
        )

        def diagnosed() -> list[str]:
            job.run_once()
            rows = store.read("diagnosis_latest", run=None).to_pylist()
            return [row["run"] for row in sorted(rows, key=lambda row: row["diagnosed_at"])]

        assert diagnosed() == ["v1-fixed", "v0-reference", ended]
        for name in ("v0-reference", "v1-fixed"):
            recompute(store, name)
        assert diagnosed() == [ended, "v1-fixed", "v0-reference"]


def test_a_run_that_cannot_be_diagnosed_keeps_no_other_waiting(beginning: Path) -> None:
    ingest_recorded(beginning, "v1-fixed", before_step=30)
    with Moved.open(Home(beginning)) as store:
        store.broken = "v1-fixed"  # the newer one, which comes first
        job = Turns(DiagnosisStage(store, now=store.now), clock=store.clock)
        done = job.run_once()
        assert done["runs"] == 1
        assert done["problem"] == "v1-fixed: diagnosis fails (QueryError: no such file)"
        assert store.read("diagnosis_latest", run=None)["run"].to_pylist() == ["v0-reference"]
        assert job.run_once()["waiting"] == 1
        store.clock.seconds += 61
        store.broken = None
        assert job.run_once()["runs"] == 1
        assert "problem" not in job.run_once()


def test_a_service_that_stops_waits_for_no_diagnosis(beginning: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    with Store.open(Home(beginning)) as store:
        assert Turns(DiagnosisStage(store), stopping).run_once()["runs"] == 0


def test_a_home_without_steps_costs_a_query(store: Store) -> None:
    assert Turns(DiagnosisStage(store)).run_once()["runs"] == 0
