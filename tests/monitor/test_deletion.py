"""Deleting a run for good: no table or file keeps anything of it, whatever is killed; what arrives later stays out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deletion_program
import pyarrow as pa
import pytest
from node_notes import note_node
from processes import connected, end, eventually, record, service, start_service
from recorded_home import take_in
from segments import records, trained
from store_contents import rows, value

from logprobe.app import cli
from logprobe.app.commands import delete
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import ConfigurationError, RunDeletedError
from logprobe.collectors.spool.segments import SpoolWriter, run_dir
from logprobe.collectors.versions import Mark, MarkFile
from logprobe.monitor.deletion import part
from logprobe.monitor.deletion.part import DELETE, RELEASE, Sweeper, newest_sign
from logprobe.monitor.deletion.tombstones import FOLDER, Tombstone, Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.importers.importing import Importer
from logprobe.monitor.ingest import ingest, quarantine_actions
from logprobe.monitor.ingest.ingest import SETTLE_SECONDS, Ingester
from logprobe.monitor.loggers import wandb_id
from logprobe.monitor.proof import storing
from logprobe.monitor.recompute.writing import hand_over
from logprobe.monitor.shipped.nodes import InFolder, Nodes
from logprobe.monitor.store.store import Store

RUN = ".müsterlauf/1 "  # its folders have another name
KEPT = f"{RUN}/2"  # of another run, whose name only begins like it
WORD = "müsterlauf"
ADA = {"run": RUN, "author": "ada", "force": True}
TABLES = "SELECT table_name AS name FROM duckdb_tables() WHERE NOT internal AND database_name = current_database()"
COLUMNS = """
SELECT column_name, data_type FROM duckdb_columns()
WHERE table_name = $table AND NOT is_nullable AND column_default IS NULL AND database_name = current_database()
"""
SAMPLES = {
    "VARCHAR": "'x'",
    "VARCHAR[]": "['x']",
    "BIGINT[]": "[1]",
    "BOOLEAN": "true",
    "TIMESTAMP WITH TIME ZONE": "now()",
}
AUDITED = "SELECT author, action, subject, words FROM alert_audit ORDER BY number"


def with_run(store: Store) -> list[str]:
    """Tables with a run, as the schema is now."""
    sql = "SELECT DISTINCT table_name AS name FROM duckdb_columns() WHERE column_name = 'run' AND NOT internal"
    tables = {row["name"] for row in rows(store, TABLES)}
    return sorted(tables & {row["name"] for row in rows(store, sql)})


def fill(store: Store, run: str) -> None:
    """A row in every table with a run, and in those whose rows belong to one of them."""
    with store.transaction() as cursor:
        for table in with_run(store):
            if table == "step_summaries":  # a tick has written one
                continue
            needed = store.query(COLUMNS, {"table": table}).to_pylist()
            values = {row["column_name"]: SAMPLES.get(row["data_type"], "1") for row in needed}
            for key in ("key", "path", "segment_id", "episode", "id"):
                if key in values:
                    values[key] = f"'{run}/x/{table}'"
            given = ", ".join(f"{text} AS {name}" for name, text in {**values, "run": f"'{run}'"}.items())
            cursor.execute(f'INSERT INTO "{table}" BY NAME SELECT {given}')
        key = f"{run}/x/notifications"
        cursor.execute(
            "INSERT INTO deliveries BY NAME SELECT $key AS key, 'slack' AS channel, now() AS next_at", {"key": key}
        )
        cursor.execute(
            "INSERT INTO alert_acknowledgements BY NAME SELECT $episode AS episode, 'x' AS author, 'x' AS reason, now() AS time",
            {"episode": f"{run}/rule/7"},
        )


def files_of(home: Path, run: str) -> None:
    """Files that a home may hold of a run."""
    spoil(SpoolWriter(home, run, "broken").write("training", records("training", trained("x"))).path)
    (run_dir(home, run) / "w" / "not a segment").parent.mkdir(parents=True, exist_ok=True)
    (run_dir(home, run) / "w" / "not a segment").write_text(run)
    MarkFile(home, run).append(Mark("7", 1.0))
    DirectiveFile(home, run).write(Directives(run).issue(5, None, "test"), None)
    DirectiveFile(home, run).stop("somebody")
    for folder in (f"readings/{run_dir(home, run).name}/engine-0", f"pushed/wandb/wandb/offline-run-1-{wandb_id(run)}"):
        (home / folder).mkdir(parents=True)
        (home / folder / "file").write_text(run)
    recomputed = pa.table({"run": [run], "step": [1]})
    hand_over(Home(home), f"{len(run):032x}", recomputed)
    (home / "proof").mkdir(exist_ok=True)
    (home / "proof" / "arm.json").write_text(run)


def spoil(path: Path) -> None:
    """Cuts a segment short, long ago: it goes to quarantine."""
    path.write_bytes(path.read_bytes()[:100])
    old = path.stat().st_mtime - SETTLE_SECONDS - 1
    os.utime(path, (old, old))


def traces(home: Path) -> list[str]:
    """Files and folders that tell of the run by name or content, apart from its tombstone and the store itself."""
    names = (run_dir(home, RUN).name, wandb_id(RUN))
    others = (run_dir(home, KEPT).name, wandb_id(KEPT))
    found = []
    for path in home.rglob("*"):
        if path.parent == home / FOLDER or path.name.startswith("logprobe.duckdb"):
            continue
        text = str(path.relative_to(home))
        for other in others:
            text = text.replace(other, "")
        content = path.read_bytes().replace(KEPT.encode(), b"") if path.is_file() else b""
        if any(name in text for name in names) or RUN.encode() in content:
            found.append(text)
    return found


def told(store: Store) -> dict[str, int]:
    """Table → rows that name the run anywhere, apart from the audit."""
    tables = [row["name"] for row in rows(store, TABLES) if row["name"] != "alert_audit"]
    kept, sql = (
        KEPT.replace("'", "''"),
        "SELECT count(*) FROM \"{}\" AS t WHERE contains(replace(CAST(t AS VARCHAR), '{}', ''), '{}')",
    )
    found = {table: value(store, sql.format(table, kept, WORD)) for table in tables}
    return {table: count for table, count in found.items() if count}


def counts(store: Store, run: str) -> dict[str, int]:
    return {
        table: store.query(f'SELECT count(*) FROM "{table}" WHERE run = $run', {"run": run})[0][0].as_py()
        for table in with_run(store)
    }


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that holds everything of two runs that can be held."""
    home = tmp_path_factory.mktemp("full") / "home"
    for run in (RUN, KEPT):
        record(home, run)
        files_of(home, run)
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        for run in (RUN, KEPT):
            fill(store, run)
            assert min(counts(store, run).values()) >= 1, "every table has a row"
        store.checkpoint()
    return home


@pytest.fixture
def filled(full: Path, tmp_path: Path) -> Path:
    shutil.copytree(full, tmp_path / "home")
    return tmp_path / "home"


def test_no_table_and_no_file_keeps_anything(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(Home(filled)) as store:
        before, other = counts(store, RUN), counts(store, KEPT)
    assert len(traces(filled)) > 10
    done = json.loads(logprobe(capsys, "store", "delete", RUN, "--yes", "--force", "--json", "--home", filled).out)
    assert {table: count for table, count in done["rows"].items() if table in before} == before
    assert done["rows"]["deliveries"] == done["rows"]["alert_acknowledgements"] == 1
    assert done["files"] >= 8
    assert traces(filled) == []
    with Store.open(Home(filled)) as store:
        assert told(store) == {}
        assert counts(store, KEPT) == other
        (audited,) = rows(store, AUDITED)
        assert (audited["author"], audited["action"], audited["subject"]) == ("ada", "run deleted", RUN)
        assert f"rows: {sum(done['rows'].values()):,}" in audited["words"]
    assert run_dir(filled, KEPT).is_dir()
    assert len(list((filled / "recomputed").iterdir())) == 1
    assert len(MarkFile(filled, KEPT).read_new()) == 1
    (listed,) = json.loads(logprobe(capsys, "store", "delete", "--json", "--home", filled).out)
    assert (listed["run"], listed["author"], listed["released_at"]) == (RUN, "ada", None)


def logprobe(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    """Runs the command line in this process; → what it printed."""
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == code
    return capsys.readouterr()


def test_what_is_asked_before_anything_is_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = record(home, "live", close=False)
    try:
        with Store.open(Home(home)) as store:
            take_in(store)
        assert (
            "did you mean 'live'" in logprobe(capsys, "store", "delete", "alive", "--yes", "--home", home, code=1).err
        )
        assert "is being recorded" in logprobe(capsys, "store", "delete", "live", "--yes", "--home", home, code=1).err
        assert "--yes" in logprobe(capsys, "store", "delete", "live", "--force", "--home", home, code=1).err
        assert "was not deleted" in logprobe(capsys, "store", "delete", "live", "--release", "--home", home, code=1).err
        assert not (home / FOLDER).exists()
        assert "live is deleted" in logprobe(capsys, "store", "delete", "live", "--force", "--yes", "--home", home).out
        recorder.step(9, loss=1.0)
        assert recorder.flush(), "the trainer is none the wiser"
        assert json.loads(logprobe(capsys, "up", "--once", "--json", "--home", home).out)["late"] >= 1
        assert "since were removed" in logprobe(capsys, "runs", "--home", home).err
    finally:
        recorder.close()


def test_a_run_whose_records_only_wait_in_the_spool_is_not_deleted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(Home(home)):
        pass
    recorder = record(home, "live", close=False)
    try:
        refusal = logprobe(capsys, "store", "delete", "live", "--yes", "--home", home, code=1).err
        assert "live is being recorded (collector" in refusal
        assert not (home / FOLDER).exists()
    finally:
        recorder.close()
    assert "live is deleted" in logprobe(capsys, "store", "delete", "live", "--yes", "--home", home).out, "it has ended"


def test_a_service_that_is_behind_deletes_no_run_that_is_being_recorded(home: Path) -> None:
    recorder = record(home, "live", close=False)
    with closing(recorder), service(home) as reader:
        reader.ingest()
        with pytest.raises(ConfigurationError, match="live is being recorded"):
            reader.act(DELETE, {"run": "live", "author": "ada"})
        recorder.close()
        reader.ingest()
        assert reader.act(DELETE, {"run": "live", "author": "ada"})["rows"]


def test_a_service_that_does_not_answer_is_reported_with_what_became_of_the_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(home, "run")
    process = start_service(home)
    monkeypatch.setattr(part, "_ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(delete, "_look", lambda *_, **__: process.send_signal(signal.SIGSTOP))
    try:
        with connected(home) as reader:
            reader.ingest()
        said = logprobe(capsys, "store", "delete", "run", "--yes", "--home", home, code=1).err
        assert "no answer from the service" in said
        assert "run is not deleted yet, and the service may still do it" in said
    finally:
        process.send_signal(signal.SIGCONT)
        end(process)


def test_a_node_that_has_records_to_send_is_a_sign_of_life(home: Path) -> None:
    record(home, "run")
    with Store.open(Home(home)) as store:
        take_in(store)
        now = datetime.now(UTC)
        assert newest_sign(store, store.home, "run", now) is None
        note_node(store.home, "gpu7", {"run": {"segments": 3, "bytes": 9, "oldest_seconds": 40.0}})
        Nodes(store, InFolder(store.home)).once()
        assert str(newest_sign(store, store.home, "run", datetime.now(UTC))).startswith("node gpu7 had records to send")


def act(name: str, store: Store) -> dict[str, Any]:
    """As the service would."""
    return dict(part.part(store, threading.Event()).actions[name].run(ADA))


def segment(home: Path, writer: str, sample: str, **fields: Any) -> None:
    SpoolWriter(home, RUN, writer).write("training", records("training", trained(sample, **fields)))


def samples(store: Store) -> list[str]:
    return sorted(row["sample_id"] for row in rows(store, "SELECT sample_id FROM training_sequences"))


@pytest.fixture
def deleted(home: Path) -> Iterator[Store]:
    """A store from which a run was deleted that one collector had recorded."""
    segment(home, "old", "a")
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        act(DELETE, store)
        yield store


def test_late_segments_stay_out_until_the_name_is_released_and_those_of_old_collectors_then_too(deleted: Store) -> None:
    home, ingester = deleted.home.path, Ingester(deleted)
    segment(home, "old", "b")
    segment(home, "unknown", "c")
    (run_dir(home, RUN) / "old" / "foreign").write_text("x")
    done = ingester.run_once()
    assert (done.late, done.segments, done.quarantined, done.remaining) == (2, 0, 0, 0)
    assert told(deleted) == {}
    audited = rows(deleted, AUDITED)[-1]
    assert (audited["author"], audited["action"], audited["subject"]) == ("ingest", "late segments removed", RUN)
    with pytest.raises(RunDeletedError, match="--release"):
        Importer(deleted.home, RUN, deleted)
    with pytest.raises(RunDeletedError):
        storing._record(deleted, {"run": RUN, "kind": "score", "author": "a", "document": "{}"}, datetime.now(UTC))

    act(RELEASE, deleted)
    segment(home, "old", "d")
    segment(home, "unknown", "e")
    segment(home, "new", "f", time=datetime.now(UTC) + timedelta(seconds=5))
    done = ingester.run_once()
    assert (done.late, done.segments) == (2, 1)
    assert samples(deleted) == ["f"]


def test_of_a_collector_that_nobody_had_heard_of_and_that_is_older_than_the_deletion_a_person_decides(
    deleted: Store,
) -> None:
    home, ingester = deleted.home.path, Ingester(deleted)
    act(RELEASE, deleted)
    later = datetime.now(UTC) + timedelta(seconds=5)
    before = later - timedelta(days=1)
    segment(home, "offline", "a", time=before)
    segment(home, "new", "b", time=later)
    segment(home, "timeless", "c", time=None)
    segment(home, "import-1", "d", time=before)
    segment(home, "clock", "e", time=before)
    done = ingester.run_once()
    assert (done.quarantined, done.segments, done.late, done.remaining) == (2, 3, 0, 0)
    assert samples(deleted) == ["b", "c", "d"]
    quarantined = rows(deleted, "SELECT path, reason FROM quarantine ORDER BY path")
    assert {row["reason"] for row in quarantined} == {"deleted_run"}
    (clock,) = (row["path"] for row in quarantined if "/clock/" in row["path"])
    assert quarantine_actions._retry(deleted, {"file": clock, "author": "a"}, datetime.now(UTC))["status"] == "returned"
    segment(home, "clock", "f", time=before)
    Ingester(deleted).run_once()  # as after a restart
    assert samples(deleted) == ["b", "c", "d", "e", "f"]
    act(DELETE, deleted)
    assert {"offline", "new", "clock"} <= Tombstones(deleted.home).all()[RUN].writers


def test_a_collector_that_is_in_doubt_stays_so_and_one_that_has_recorded_does_not_come_into_it(deleted: Store) -> None:
    act(RELEASE, deleted)
    for writer, sample, seconds in (
        ("offline", "a", -60),
        ("offline", "b", 60),
        ("set back", "c", 60),
        ("set back", "d", -60),
    ):
        segment(deleted.home.path, writer, sample, time=datetime.now(UTC) + timedelta(seconds=seconds))
        Ingester(deleted).run_once()
    assert samples(deleted) == ["c", "d"]


@pytest.mark.parametrize("said", [None, "yesterday", "2026-01-01T00:00:00"])
def test_a_deletion_that_does_not_say_when_leaves_every_earlier_collector_in_doubt(said: Any) -> None:
    tombstone = Tombstone("run", said, "somebody")
    assert tombstone.is_newer_than(datetime.now(UTC))


def test_a_batch_that_was_read_before_the_deletion_is_not_stored_after_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(home, "w", "a")
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        segment(home, "w2", "b")
        whole = ingest.assemble

        def assemble(parts: Any) -> Any:
            act(DELETE, store)
            return whole(parts)

        monkeypatch.setattr(ingest, "assemble", assemble)
        ingester = Ingester(store)
        assert ingester.run_once().segments == 0
        ingester.run_once()
        Sweeper(store, threading.Event()).run_once()
        assert (told(store), traces(home)) == ({}, [])


def test_a_job_that_stores_its_results_after_the_deletion_is_swept_up(deleted: Store) -> None:
    sweeper = Sweeper(deleted, threading.Event())
    assert sweeper.run_once()["rows"] == 0
    fill(deleted, RUN)
    MarkFile(deleted.home.path, RUN).append(Mark("7", 1.0))
    with pytest.raises(ConfigurationError, match="not finished"):
        act(RELEASE, deleted)
    done = sweeper.run_once()
    assert done["rows"] > 30
    assert (done["files"], done["left"]) == (1, [])
    assert (told(deleted), traces(deleted.home.path)) == ({}, [])
    act(RELEASE, deleted)


def test_killed_at_any_step_and_finished_by_the_service_or_repeated(full: Path, tmp_path: Path) -> None:
    program = Path(deletion_program.__file__)
    homes = {step: tmp_path / str(number) for number, step in enumerate(deletion_program.STEPS)}
    for home in homes.values():
        shutil.copytree(full, home)
    running = [subprocess.Popen([sys.executable, program, home, RUN, step]) for step, home in homes.items()]
    assert {process.wait(120) for process in running} == {-signal.SIGKILL}
    untouched = homes.pop("before the tombstone")
    with Store.open(Home(untouched)) as store:
        assert min(counts(store, RUN).values()) >= 1
    for number, home in enumerate(homes.values()):
        with Store.open(Home(home)) as store:
            Ingester(store).run_once()
            if number % 2:
                Sweeper(store, threading.Event()).run_once()
            else:
                act(DELETE, store)
            assert told(store) == {}
            actions = [row["action"] for row in rows(store, AUDITED)]
            assert actions
            assert set(actions) <= {"run deleted", "deletion continued", "late segments removed"}
        assert traces(home) == []


def test_through_a_service(home: Path) -> None:
    record(home, "run")
    with service(home) as reader:
        eventually(lambda: reader.query("SELECT 1 FROM step_metrics").num_rows, "the run is there")
        done = part.delete(Home(home), {"run": "run", "author": "ada"})
        assert done["rows"]["segments"] >= 1
        record(home, "run")
        eventually(lambda: not list((home / "spool").rglob("*.arrow")), "what comes late is removed")
        assert reader.query("SELECT 1 FROM runs").num_rows == 0
        eventually(lambda: "deletions" in reader.status()["jobs"], "the service looks after it")
        assert "run" in Tombstones(Home(home)).all()
