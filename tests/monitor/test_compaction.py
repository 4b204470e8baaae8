"""Free space of the store goes back to the disk, and nothing else changes, whenever it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from processes import eventually, service
from segments import on_small_disk

from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store import compaction
from logprobe.monitor.store.compaction import compact, compact_at_start
from logprobe.monitor.store.store import Store

PROGRAMS = Path(__file__).parent.parent / "support"
ROWS = 1_500_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home most of whose store is free space."""
    home = Home(tmp_path / "home")
    with Store.open(home) as store:
        with store.transaction() as cursor:
            cursor.execute(
                f"INSERT INTO step_metrics SELECT 'r', i, 'backend.k3_kl', random() FROM range({ROWS}) AS t(i)"
            )
            cursor.execute(
                "INSERT INTO step_summaries SELECT 'r', i, 0, 0, NULL, now(), nextval('revision') FROM range(1000) AS t(i)"
            )
        store.checkpoint()
        with store.transaction() as cursor:
            cursor.execute("DELETE FROM step_metrics WHERE step >= 1000")
            cursor.execute("DELETE FROM step_summaries WHERE step >= 10")
        store.checkpoint()
        store.checkpoint()
    return home


def content(home: Home) -> dict[str, Any]:
    """Everything in the store, and the marks that it would give next."""
    with duckdb.connect(str(home.database), read_only=True) as connection:
        return compaction._content(connection, connection.execute("SELECT current_database()").fetchall()[0][0])


def test_free_space_goes_back_and_everything_else_stays(home: Home) -> None:
    before, mode = content(home), home.database.stat().st_mode
    with home.lock():
        done = compaction.compact(home)
    assert home.database.stat().st_mode == mode
    assert content(home) == before
    assert done.tables > 10
    with Store.open(home) as store:
        assert store.query("SELECT count(*) AS n FROM step_metrics")["n"].to_pylist() == [1000]
        assert store.query("SELECT count(*) AS n FROM steps")["n"].to_pylist() == [10]  # the view is there
        with store.transaction() as cursor:
            cursor.execute("INSERT INTO step_summaries VALUES ('r', -1, 0, 0, NULL, now(), nextval('revision'))")
        revisions = store.query("SELECT revision FROM step_summaries ORDER BY step")["revision"].to_pylist()
        assert revisions[0] > 1000 > max(revisions[1:])  # revisions continue
    assert sorted(path.name for path in home.path.iterdir() if "duckdb" in path.name) == ["logprobe.duckdb"]


def test_what_is_only_in_the_log_is_kept(home: Home) -> None:
    killed = (
        "import os, sys; from logprobe.monitor.home import Home; from logprobe.monitor.store.store import Store; "
        "store = Store.open(Home(sys.argv[1])); transaction = store.transaction(); cursor = transaction.__enter__(); "
        "cursor.execute(\"INSERT INTO older_step_records (run, step) VALUES ('x', 7)\"); transaction.__exit__(None, None, None); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, str(home.path)], check=True)
    assert home.database.with_name("logprobe.duckdb.wal").stat().st_size
    compact(home)
    with Store.open(home) as store:
        assert store.query("SELECT run FROM older_step_records WHERE step = 7")["run"].to_pylist() == ["x"]


def test_a_linked_file_stays_linked(home: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk" / "store.duckdb"
    elsewhere.parent.mkdir()
    home.database.rename(elsewhere)
    home.database.symlink_to(elsewhere)
    before = elsewhere.stat().st_size
    assert compact(home).after < before / 2
    assert home.database.is_symlink()
    assert elsewhere.stat().st_size < before / 2


@pytest.mark.parametrize(
    ("when", "step"),
    [
        (when, step)
        for step in ("_check_room", "_copied", "_made_durable", "_take_place")
        for when in ("before", "after")
    ],
)
def test_kill_nine_at_every_step_leaves_the_old_file_or_the_new_one(home: Home, when: str, step: str) -> None:
    before, size = content(home), home.database.stat().st_size
    killed = subprocess.run([sys.executable, PROGRAMS / "compaction_program.py", home.path, when, step], check=False)
    assert killed.returncode == -9
    assert content(home) == before
    assert (home.database.stat().st_size < size / 2) == ((when, step) == ("after", "_take_place"))
    compact_at_start(home)  # the file is small: only what was left is removed
    assert not list(home.path.glob("*compacting*"))
    assert compact(home).after < size / 2
    assert content(home) == before


def test_kill_nine_in_the_middle_of_copying(home: Home) -> None:
    before, copy = content(home), home.database.with_name("logprobe.duckdb.compacting")
    program = [sys.executable, str(PROGRAMS / "compaction_program.py"), str(home.path), "after", "_take_place"]
    with subprocess.Popen(program) as process:
        eventually(copy.exists, "the copy begins")
        process.kill()
    assert content(home) == before


def test_refuses_beside_a_reader(home: Home) -> None:
    before = home.database.read_bytes()
    with Store.open(home, read_only=True), pytest.raises(StoreError, match="not compacted and is as it was"):
        compaction.compact(home)
    assert home.database.read_bytes() == before


def test_refuses_on_a_disk_without_room(tmp_path: Path) -> None:
    said = on_small_disk(tmp_path / "disk", 40, PROGRAMS / "full_disk_compaction_program.py").splitlines()
    assert "GiB free: make room" in said[0]
    assert "was not compacted and is as it was" in said[2]
    assert said[1] == said[3] == "unchanged: True, beside it: []"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE step_metrics SET value = value + 1 WHERE step = 500",
        "DELETE FROM step_metrics WHERE step = 500",
        "SELECT nextval('revision')",
        "DROP VIEW steps",
        "DROP TABLE training_parts",
    ],
)
def test_a_copy_that_differs_is_noticed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    content_of = compaction._content

    def changed(connection: Any, database: str) -> Any:
        """What is read back is not what was written."""
        if database != "compacted":
            return content_of(connection, database)
        other = tmp_path / "other.duckdb"
        other.write_bytes(home.database.with_name("logprobe.duckdb.compacting").read_bytes())
        with duckdb.connect(str(other)) as copy:
            copy.execute(change).fetchall()
            return content_of(copy, "other")

    monkeypatch.setattr(compaction, "_content", changed)
    before = home.database.read_bytes()
    with pytest.raises(StoreError, match="the copy differs"):
        compact(home)
    assert home.database.read_bytes() == before
    assert not list(home.path.glob("*compacting*"))


def test_a_service_compacts_when_it_starts_if_that_gives_much_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    size = home.database.stat().st_size
    compact_at_start(home)
    assert home.database.stat().st_size == size  # less than a GiB: not worth it
    monkeypatch.setattr(compaction, "_MUCH", size // 3)
    compact_at_start(home)
    assert home.database.stat().st_size < size / 2
    left = home.database.with_name("logprobe.duckdb.compacting")
    left.write_bytes(b"of a process that was killed")
    with service(home.path):
        assert not left.exists()
