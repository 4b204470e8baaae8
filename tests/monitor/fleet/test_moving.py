"""Moving a run between homes: all of it is at one of the two, whatever is killed, and what arrives follows."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import logprobe, record, service
from store_work import METRICS, bring_in

from logprobe.app import cli
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import ConfigurationError, LogprobeError, RunDeletedError, StoreError
from logprobe.collectors.versions import Mark, MarkFile
from logprobe.monitor.deletion import part as deletion
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.fleet import handover, package
from logprobe.monitor.fleet.forwarding import Forwarder
from logprobe.monitor.fleet.moved import Moved, MovedRuns
from logprobe.monitor.fleet.others import VARIABLE
from logprobe.monitor.fleet.table import Fleet, Row, Standing
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.recovery.backup import backup
from logprobe.monitor.recovery.checking import check
from logprobe.monitor.recovery.rebuilding import restore
from logprobe.monitor.store.store import Store

RUN, OTHER = "runs/ü 1", "runs/ü 1/2"
PROGRAMS = Path(__file__).resolve().parent.parent.parent / "support"
POINTS = 8  # at which `test_a_move_that_was_killed…` kills; all of them with LOGPROBE_ALL_POINTS


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Two homes: `a` has two runs, `b` none."""
    homes = {name: tmp_path / name for name in ("a", "b")}
    record(homes["a"], RUN)
    record(homes["a"], OTHER, steps=range(2))
    for home in homes.values():
        with Store.open(Home(home).create()) as store:
            bring_in(store)
    MarkFile(homes["a"], RUN).append(Mark("7", 1.0))
    DirectiveFile(homes["a"], RUN).write(Directives(RUN).issue(5, None, "test"), None)
    return fleet_of(tmp_path, homes)


def fleet_of(folder: Path, homes: dict[str, Path]) -> Fleet:
    (folder / "fleet.yaml").write_text(
        json.dumps({"services": {name: {"home": str(home)} for name, home in homes.items()}})
    )
    return Fleet(folder)


def contents(home: Path, run: str = RUN) -> dict[str, Any]:
    """All rows of a run, by checksums, and its raw files."""
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        rows = {table: package.digest(cursor, table, run) for table in package.tables_of(store)}
    raw = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in raw_files(home, run)}
    return {table: found for table, found in rows.items() if found[0]} | raw


def raw_files(home: Path, run: str) -> list[Path]:
    with Store.open(Home(home)) as store:
        paths = store.query("SELECT path FROM raw_files WHERE run = $run", {"run": run})["path"].to_pylist()
    return [home / path for path in paths]


def metrics(home: Path, run: str = RUN) -> list[Any]:
    with Store.open(Home(home)) as store:
        rows = store.query(METRICS.replace("ORDER", f"WHERE run = '{run}' ORDER"))
        return [
            (row["step"], row["metric"], None if row["value"] is None else row["value"].hex())
            for row in rows.to_pylist()
        ]


def test_a_run_moves_with_all_its_rows_and_files_and_back(fleet: Fleet, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    before, beside, numbers = contents(a), contents(a, OTHER), metrics(a)
    done = fleet.move(RUN, "b", "ada")
    assert done == {"run": RUN, "from": "a", "to": "b", "rows": done["rows"], "files": done["files"]}
    assert done["rows"] > 100
    assert done["files"] >= 3
    assert (contents(b), contents(a), contents(a, OTHER)) == (before, {}, beside)
    assert metrics(b) == numbers
    assert DirectiveFile(b, RUN).content() == DirectiveFile(a, RUN).content() is not None
    assert fleet.rows()[RUN].service == "b"
    assert fleet.rows()[RUN].move is None
    assert not list((a / "leaving").iterdir())
    for home in (a, b):
        assert check(Home(home))["problems"] == []
    assert fleet.move(RUN, "b", "ada")["rows"] is None  # it is there
    assert fleet.move(RUN, "a", "ada")["to"] == "a"
    assert (contents(a), contents(b)) == (before, {})
    assert MovedRuns(Home(a)).find(RUN) is None
    assert MovedRuns(Home(b)).find(RUN).to == "a"


def test_what_arrives_at_the_old_home_follows_and_counts_once(fleet: Fleet, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    record(a, RUN, steps=range(3, 5))  # waits in the spool, not ingested
    fleet.move(RUN, "b", "ada")
    record(a, RUN, steps=range(5, 7))  # its collectors know nothing of the move
    assert MarkFile(a, RUN).append(Mark("8", 2.0)) is None
    DirectiveFile(b, RUN).stop("somebody")
    with Store.open(Home(a)) as store:
        assert Ingester(store).run_once().segments == 0
        report = Forwarder(store).run_once()
    assert report["forwarded"] > 0
    assert report["problem"] is None
    assert DirectiveFile(a, RUN).stop_path.exists(), "the kill switch reaches the nodes of the old home"
    assert {mark.version for mark in MarkFile(b, RUN).read_new()} == {"7", "8"}
    with Store.open(Home(b)) as store:
        bring_in(store)
    reference = tmp_path / "one"
    for steps in (range(3), range(3, 5), range(5, 7)):
        record(reference, RUN, steps=steps)
    with Store.open(Home(reference).create()) as store:
        bring_in(store)
    assert metrics(b) == metrics(reference)
    assert len({step for step, *_ in metrics(b)}) == 7
    DirectiveFile(b, RUN).release()
    with Store.open(Home(a)) as store:
        Forwarder(store).run_once()
    assert not DirectiveFile(a, RUN).stop_path.exists()


def test_a_restored_backup_leaves_a_run_that_came_back_since_where_it_is(fleet: Fleet, tmp_path: Path) -> None:
    a, numbers = tmp_path / "a", metrics(tmp_path / "a")
    fleet.move(RUN, "b", "ada")
    backup(Home(a), tmp_path / "kept", raw=False)
    fleet.move(RUN, "a", "ada")
    done = restore(Home(a), tmp_path / "kept", {VARIABLE: str(tmp_path)})
    assert MovedRuns(Home(a)).all() == {}, "b would send what arrives to a, and a to b"
    assert done.elsewhere == {}
    assert metrics(a) == numbers, "from its raw tokens, which came back with it"
    record(a, RUN, steps=range(3, 4))
    with Store.open(Home(a)) as store:
        bring_in(store)
    assert {step for step, *_ in metrics(a)} == {0, 1, 2, 3}


@pytest.mark.parametrize("lost", [False, True])
def test_a_restored_backup_brings_back_no_run_that_has_left_since(fleet: Fleet, tmp_path: Path, lost: bool) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    backup(Home(a), tmp_path / "kept", raw=True)
    fleet.move(RUN, "b", "ada")
    there = contents(b)
    if lost:
        shutil.rmtree(a)
    done = restore(Home(a), tmp_path / "kept", {VARIABLE: str(tmp_path)})
    if lost:  # nothing in the home says that it has left, and the fleet's table alone removes nothing
        assert done.elsewhere == {RUN: "b"}
        assert contents(a) != {}
        with pytest.raises(ConfigurationError, match="has records at a and at b: which of them"):
            fleet.holder(RUN, fleet.standings())
    else:
        with Store.open(Home(a)) as store:
            assert Forwarder(store).run_once()["problem"] is None
        assert contents(a) == {}
        assert MovedRuns(Home(a)).find(RUN).to == "b"
    assert contents(b) == there


def test_an_older_store_that_was_put_back_by_hand_is_named_and_the_remedy_works(fleet: Fleet, tmp_path: Path) -> None:
    a = tmp_path / "a"
    backup(Home(a), tmp_path / "kept", raw=False)
    fleet.move(RUN, "b", "ada")
    shutil.copyfile(tmp_path / "kept" / "logprobe.duckdb", a / "logprobe.duckdb")
    with Store.open(Home(a)) as store:
        assert "logprobe backup, and logprobe restore of that" in Forwarder(store).run_once()["problem"]
    backup(Home(a), tmp_path / "again", raw=False)
    restore(Home(a), tmp_path / "again", {})
    assert contents(a) == {} != contents(a, OTHER)
    with Store.open(Home(a)) as store:
        assert Forwarder(store).run_once()["problem"] is None


@pytest.mark.long
def test_raw_tokens_in_an_object_store_come_along_as_files(fleet: Fleet, tmp_path: Path) -> None:
    a, b, bucket = tmp_path / "a", tmp_path / "b", tmp_path / "bucket"
    (file,) = raw_files(a, RUN)
    content, url = file.read_bytes(), f"{bucket.as_uri()}/{file.parent.parent.name}/training/{file.name}"
    (bucket / file.parent.parent.name / "training").mkdir(parents=True)
    file.rename(bucket / file.parent.parent.name / "training" / file.name)
    (a / "logprobe.yaml").write_text(json.dumps({"storage": {"raw": bucket.as_uri()}}))
    with Store.open(Home(a)) as store, store.transaction() as cursor:
        cursor.execute("UPDATE raw_files SET location = $url WHERE run = $run", {"url": url, "run": RUN})
    fleet.move(RUN, "b", "ada")
    (arrived,) = raw_files(b, RUN)
    assert arrived.read_bytes() == content
    with Store.open(Home(b)) as store:
        assert store.query("SELECT location FROM raw_files")["location"].to_pylist() == [None]
    with Store.open(Home(a)) as store:  # its own object is of no use any more
        assert store.query("SELECT url FROM doomed_objects")["url"].to_pylist() == [url]
    assert check(Home(b))["problems"] == []


@pytest.mark.long
def test_nothing_of_a_moved_run_is_stored_or_deleted_at_its_old_home(fleet: Fleet, tmp_path: Path) -> None:
    fleet.move(RUN, "b", "ada")
    with Store.open(Home(tmp_path / "a")) as store:
        with pytest.raises(RunDeletedError, match="belongs to service 'b'"):
            Tombstones(store.home).refuse(RUN)
        with store.transaction() as cursor:  # of a job that had begun before
            cursor.execute("INSERT INTO dirty_steps (run, step) VALUES ($run, 1)", {"run": RUN})
        assert Forwarder(store).run_once()["problem"] is None
    with pytest.raises(ConfigurationError, match="belongs to service 'b'"):
        deletion.perform(Home(tmp_path / "a"), deletion.DELETE, {"run": RUN, "author": "ada"})
    assert contents(tmp_path / "a") == {} != contents(tmp_path / "b")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_move_that_was_killed_anywhere_is_repeated_or_undone(fleet: Fleet, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    before, saved = contents(a), tmp_path / "saved"
    for name in ("a", "b"):
        shutil.copytree(tmp_path / name, saved / name, symlinks=True)
    number = int(moved(tmp_path, "0").stdout)
    assert contents(b) == before
    everywhere = os.environ.get("LOGPROBE_ALL_POINTS")
    points = range(1, number + 1) if everywhere else sorted(random.Random(7).sample(range(1, number + 1), POINTS))
    ends = {"repeated": 0, "undone": 0}
    for point in points:
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(saved / name, tmp_path / name, symlinks=True)
        (tmp_path / "runs.json").unlink(missing_ok=True)
        assert moved(tmp_path, str(point)).returncode == -9
        record(a, RUN, steps=range(3, 4))  # arrives while the move is interrupted
        undone = point % 2 == 0 and undo(fleet)
        if not undone:
            fleet.move(RUN, "b", "ada")
        ends["undone" if undone else "repeated"] += 1
        there, gone = (a, b) if undone else (b, a)
        assert (contents(there), contents(gone)) == (before, {}), f"killed before change {point} of {number}"
        assert [check(Home(home))["problems"] for home in (a, b)] == [[], []], point
        with Store.open(Home(there)) as store:
            bring_in(store)
            steps = store.query("SELECT step, count(*) AS n FROM training_sequences GROUP BY step ORDER BY step")
        assert steps.to_pylist()[3] == {"step": 3, "n": 4}, point
    print(f"{number} points, killed at {len(list(points))}: {ends}")
    assert all(ends.values())


def moved(fleet: Path, point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAMS / "moving_program.py", fleet, RUN, "b", point]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


def undo(fleet: Fleet) -> bool:
    try:
        return fleet.undo(RUN, "ada") == "a"
    except ConfigurationError:  # it has arrived, or was never begun
        return False


@pytest.mark.long
def test_a_file_that_changed_on_the_way_is_not_taken_for_the_run(fleet: Fleet, tmp_path: Path) -> None:
    before, source, target = contents(tmp_path / "a"), fleet.home("a"), fleet.home("b")
    row = fleet._begin(RUN, "b")
    asked = {"run": RUN, "move": row.move, "to": "b", "home": str(target.path), "author": "ada"}
    packed = handover.perform(source, handover.PACK, asked)
    (raw, *_) = sorted(Path(packed["package"]).rglob("*.parquet"))
    content = raw.read_bytes()
    raw.unlink()
    raw.write_bytes(content[:-9] + b"!" + content[-8:])
    with pytest.raises(StoreError, match="is not what its manifest says"):
        fleet.move(RUN, "b", "ada")
    (table, *_) = sorted(Path(packed["package"]).rglob("step_metrics.arrows"))
    raw.write_bytes(content)
    rows = table.read_bytes()
    table.write_bytes(rows[: len(rows) // 2] + b"????" + rows[len(rows) // 2 + 4 :])
    with pytest.raises((LogprobeError, OSError)):
        fleet.move(RUN, "b", "ada")
    assert contents(tmp_path / "b") == {}
    table.write_bytes(rows)
    with pytest.raises(StoreError, match="another package"):
        handover.perform(source, handover.SETTLE, {**asked, "sha256": "0" * 64})
    assert fleet.undo(RUN, "ada") == "a"
    assert contents(tmp_path / "a") == before
    with pytest.raises(ConfigurationError, match="was undone"):
        handover.perform(target, handover.UNPACK, {**asked, **packed})


@pytest.mark.long
def test_a_home_that_has_records_of_the_run_refuses_it(fleet: Fleet, tmp_path: Path) -> None:
    record(tmp_path / "b", RUN, steps=range(1))
    with Store.open(fleet.home("b")) as store:
        bring_in(store)
    with pytest.raises(ConfigurationError, match="has records at a and at b"):
        fleet.move(RUN, "b", "ada")
    with fleet.changing() as rows:
        rows[RUN] = Row("a", "now")
    with pytest.raises(StoreError, match="has records of 'runs/ü 1' already"):
        fleet.move(RUN, "b", "ada")
    assert fleet.undo(RUN, "ada") == "a"
    assert len(contents(tmp_path / "a")) > 5


def standing(**live: int) -> dict[str, Standing]:
    """Services that run, with so many live runs; `a` has those of the fixture."""
    recorded = {"a": {RUN, OTHER}}
    return {name: Standing(None, recorded.get(name, set()), live=number) for name, number in live.items()}


def test_a_run_stays_where_it_was_assigned(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.assign("new", standing(a=3, b=1)) == "b"
    assert fleet.assign("new", standing(a=0, b=9)) == "b"
    assert fleet.assign(RUN, standing(a=9, b=0)) == "a", "it is recorded there"
    spread = [fleet.assign(f"run-{number}", standing(a=0, b=0)) for number in range(20)]
    assert spread.count("a") in {10, 11}, "assigned runs count before they record"
    with pytest.raises(ConfigurationError, match="no service"):
        fleet.assign("one more", {})
    (tmp_path / "runs.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not a table of runs"):
        fleet.assign("new", standing(a=0))


def test_a_run_that_a_service_out_of_sight_may_have_gets_no_second_home(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "a", "waits", steps=range(1))  # in the spool alone
    with Home(tmp_path / "b").lock():  # so that it is in use, and answers nobody
        assert cli.main(["fleet", "assign", RUN, "--fleet", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["service"] == "a", "its records are seen, whoever else is away"
    (tmp_path / "a").rename(tmp_path / "unmounted")
    for run in (OTHER, "waits", "new"):
        with service(tmp_path / "b"):
            assert cli.main(["fleet", "assign", run, "--fleet", str(tmp_path)]) == 1
        words = capsys.readouterr().err
        assert f"which service has run {run!r} is unknown" in words
        assert "no store that can be seen" in words
    assert fleet.rows().keys() == {RUN}
    (tmp_path / "unmounted").rename(tmp_path / "a")
    found = fleet.standings()
    assert {run: fleet.holder(run, found) for run in (OTHER, "waits", "new")} == {OTHER: "a", "waits": "a", "new": None}


def test_a_run_on_its_way_that_the_table_has_lost_is_not_assigned(fleet: Fleet, tmp_path: Path) -> None:
    row = fleet._begin(RUN, "b")
    asked = {"run": RUN, "move": row.move, "to": "b", "home": str(tmp_path / "b"), "author": "ada"}
    handover.perform(fleet.home("a"), handover.PACK, asked)
    (tmp_path / "runs.json").unlink()
    with pytest.raises(ConfigurationError, match="was handed over by a, and no service has records"):
        fleet.assign(RUN, fleet.standings())


def running(fleet: Fleet) -> dict[str, Standing]:
    """As the services are, as if all of them ran."""
    return {name: replace(each, problem=None) for name, each in fleet.standings().items()}


@pytest.mark.long
def test_a_lost_service_is_taken_over_from_its_home(fleet: Fleet, tmp_path: Path) -> None:
    before = contents(tmp_path / "a"), contents(tmp_path / "a", OTHER)
    fleet.assign("soon", standing(a=0))
    record(tmp_path / "a", "acknowledged", steps=range(1))  # in the spool alone
    with Home(tmp_path / "a").lock(), pytest.raises(ConfigurationError, match="runs"):
        list(fleet.takeover("a", running(fleet), "ada"))
    done = [each["run"] for each in fleet.takeover("a", running(fleet), "ada")]
    assert sorted(done) == sorted([RUN, OTHER, "acknowledged", "soon"])
    assert (contents(tmp_path / "b"), contents(tmp_path / "b", OTHER)) == before
    with Store.open(fleet.home("b")) as store:
        bring_in(store)
    assert len(metrics(tmp_path / "b", "acknowledged")) > 10
    assert {row.service for row in fleet.rows().values()} == {"b"}
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(StoreError, match="no store that can be seen"):
        list(fleet.takeover("a", running(fleet), "ada"))


def test_a_service_that_is_away_is_a_row_that_says_so(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fleet", "list", "--fleet", str(tmp_path)]) == 0
    assert "no service runs here" in capsys.readouterr().out
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    assert cli.main(["fleet", "list", "--fleet", str(tmp_path), "--json"]) == 1
    a, b = json.loads(capsys.readouterr().out)["services"]
    assert (a["runs"], a["state"], b["runs"], b["state"]) == (2, "stopped", None, "away")
    assert "no store that can be seen" in b["problem"]
    assert "pass --fleet DIR" in logprobe("fleet", code=1).stderr


def test_a_note_that_cannot_be_read_keeps_its_run_out(home: Path) -> None:
    moved_runs = MovedRuns(Home(home).create())
    moved_runs.write(Moved("run", "m", "b", None, "now"))
    (note,) = moved_runs._files.folder.iterdir()
    note.write_text("{")
    assert moved_runs.find("run").home is None
    with pytest.raises(RunDeletedError):
        moved_runs.refuse("run")
