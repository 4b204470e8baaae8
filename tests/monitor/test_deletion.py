"""Deleting a run for good: no table or file keeps anything of it, whatever is killed; what arrives later stays out."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from node_notes import note_node
from processes import record, service
from recorded_home import take_in
from segments import records, spool, trained
from store_contents import rows, value

from logprobe.app import cli
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import RunDeletedError
from logprobe.collectors.spool.segments import SpoolWriter, run_dir
from logprobe.monitor import queries
from logprobe.monitor.exporters.loggers import wandb_id
from logprobe.monitor.home import Home
from logprobe.monitor.importers.importing import Importer
from logprobe.monitor.live import ingest
from logprobe.monitor.live.ingest import SETTLE_SECONDS, Ingester
from logprobe.monitor.proof import storing
from logprobe.monitor.service import deleting
from logprobe.monitor.service.actions import note
from logprobe.monitor.service.deleting import DELETE, Sweeper, newest_sign
from logprobe.monitor.shipped.nodes import InFolder, Nodes
from logprobe.monitor.store.store import Store
from logprobe.monitor.store.tombstone import FOLDER

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
AUDITED = "SELECT author, action, runs AS subject, words FROM user_actions ORDER BY number"


def with_run(store: Store) -> list[str]:
    """Tables with a run, as the schema is now."""
    sql = "SELECT DISTINCT table_name AS name FROM duckdb_columns() WHERE column_name = 'run' AND NOT internal"
    return sorted({row["name"] for row in rows(store, TABLES)} & {row["name"] for row in rows(store, sql)})


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
        silence = {"key": f"of {run}", "runs": run, "what": "*", "until": datetime.now(UTC) + timedelta(hours=1)}
        note(store, cursor, datetime.now(UTC), author="x", action="silenced", words="x", **silence)


def files_of(home: Path, run: str) -> None:
    """Files that a home may hold of a run."""
    spoil(SpoolWriter(home, run, "broken").write("training", records("training", trained("x"))).path)
    (run_dir(home, run) / "w" / "not a segment").parent.mkdir(parents=True, exist_ok=True)
    (run_dir(home, run) / "w" / "not a segment").write_text(run)
    DirectiveFile(home, run).write(Directives(run).issue(5, None, "test"), None)
    DirectiveFile(home, run).stop("somebody")
    for folder in (f"readings/{run_dir(home, run).name}/engine-0", f"pushed/wandb/wandb/offline-run-1-{wandb_id(run)}"):
        (home / folder).mkdir(parents=True)
        (home / folder / "file").write_text(run)
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
    tables = [row["name"] for row in rows(store, TABLES) if row["name"] != "user_actions"]
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


@pytest.fixture
def filled(home: Path) -> Path:
    """A home that holds everything of two runs that can be held."""
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


def test_no_table_and_no_file_keeps_anything(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    with Store.open(Home(filled)) as store:
        before, other = counts(store, RUN), counts(store, KEPT)
    assert len(traces(filled)) > 10
    done = json.loads(logprobe(capsys, "store", "delete", RUN, "--yes", "--force", "--json", "--home", filled).out)
    assert {table: count for table, count in done["rows"].items() if table in before} == before
    assert done["files"] >= 8
    assert traces(filled) == []
    with Store.open(Home(filled)) as store:
        assert told(store) == {}
        assert counts(store, KEPT) == other
        assert [row["run"] for row in queries.alert_silences(store, now=datetime.now(UTC)).to_pylist()] == [KEPT]
        *_, audited = rows(store, AUDITED)
        assert (audited["author"], audited["action"], audited["subject"]) == ("ada", "run deleted", RUN)
        assert f"rows: {sum(done['rows'].values()):,}" in audited["words"]
    assert run_dir(filled, KEPT).is_dir()
    (listed,) = json.loads(logprobe(capsys, "store", "delete", "--json", "--home", filled).out)
    assert (listed["run"], listed["author"]) == (RUN, "ada")


def logprobe(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    """Runs the command line in this process; → what it printed."""
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == code
    return capsys.readouterr()


def test_what_is_asked_before_anything_is_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(Home(home)).close()
    delete_it = ("store", "delete", "live", "--home", home)
    with record(home, "live", close=False) as recorder:
        # Also of a run whose records only wait in the spool.
        assert "live is being recorded (collector" in logprobe(capsys, *delete_it, "--yes", code=1).err
        with Store.open(Home(home)) as store:
            take_in(store)
        assert (
            "did you mean 'live'" in logprobe(capsys, "store", "delete", "alive", "--yes", "--home", home, code=1).err
        )
        assert "is being recorded" in logprobe(capsys, *delete_it, "--yes", code=1).err
        assert "--yes" in logprobe(capsys, *delete_it, "--force", code=1).err
        assert not (home / FOLDER).exists()
        assert "live is deleted" in logprobe(capsys, *delete_it, "--force", "--yes").out
        recorder.step(9, loss=1.0)
        assert recorder.flush(), "the trainer is none the wiser"
        assert "what still comes of it is removed" in logprobe(capsys, "runs", "--home", home).err
        assert json.loads(logprobe(capsys, "up", "--once", "--json", "--home", home).out)["late"] >= 1


def test_a_service_that_does_not_answer_is_reported_with_what_became_of_the_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(home, "run")
    busy = threading.Event()
    monkeypatch.setattr(deleting, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setitem(deleting._ACTIONS, DELETE, ("delete a run", lambda *_: {"run": busy.wait(120)}))
    with service(home) as reader:
        reader.ingest()
        said = logprobe(capsys, "store", "delete", "run", "--yes", "--home", home, code=1).err
        busy.set()
    assert "no answer from the service" in said
    assert "run is not deleted yet, and the service may still do it" in said


def test_a_node_that_has_records_to_send_is_a_sign_of_life(home: Path) -> None:
    record(home, "run")
    with Store.open(Home(home)) as store:
        take_in(store)
        now = datetime.now(UTC)
        assert newest_sign(store, store.home, "run", now) is None
        note_node(store.home, "gpu7", {"run": {"segments": 3, "bytes": 9, "oldest_seconds": 40.0}})
        Nodes(store, InFolder(store.home)).once()
        assert str(newest_sign(store, store.home, "run", datetime.now(UTC))).startswith("node gpu7 had records to send")


def act(store: Store) -> dict[str, Any]:
    """Deletes the run, as the service would."""
    return dict(deleting.part(store, threading.Event()).actions[DELETE].run(ADA))


def segment(home: Path, writer: str, sample: str, **fields: Any) -> None:
    spool(home, RUN, writer, training=[trained(sample, **fields)])


def test_the_name_is_not_used_again_and_what_a_job_stores_after_the_deletion_is_swept_up(home: Path) -> None:
    """What comes late from collectors: tests/unit/test_archive.py and tests/machine."""
    segment(home, "old", "a")
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        act(store)
        with pytest.raises(RunDeletedError, match="use another name"):
            Importer(store.home, RUN, store)
        with pytest.raises(RunDeletedError):
            storing._record(store, {"run": RUN, "kind": "score", "author": "a", "document": "{}"}, datetime.now(UTC))
        segment(home, "old", "b")
        (run_dir(home, RUN) / "old" / "foreign").write_text("x")
        done = Ingester(store).run_once()
        assert (done.late, done.segments, done.quarantined, done.remaining) == (1, 0, 0, 0)
        sweeper = Sweeper(store)
        sweeper.run_once()
        fill(store, RUN)
        DirectiveFile(home, RUN).stop("somebody")
        assert sweeper.run_once()["left"] == []
        assert (told(store), traces(home)) == ({}, [])


def test_a_batch_that_was_read_before_the_deletion_is_not_stored_after_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(home, "w", "a")
    with Store.open(Home(home)) as store:
        ingester = Ingester(store)
        write = ingest.write_batch

        def delete_first(*arguments: Any) -> None:
            act(store)
            write(*arguments)

        monkeypatch.setattr(ingest, "write_batch", delete_first)
        assert ingester.run_once().segments == 0
        monkeypatch.undo()
        ingester.run_once()
        Sweeper(store).run_once()
        assert (told(store), traces(home)) == ({}, [])
