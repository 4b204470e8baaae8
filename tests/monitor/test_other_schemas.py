"""A home whose store has another schema, or is another program's: refused with a remedy, and no byte of it is changed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import duckdb
import pytest
from processes import logprobe, record

from logprobe.collectors.errors import StoreDamagedError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.service import Service
from logprobe.monitor.store.schema import VERSION
from logprobe.monitor.store.store import Store

OLDER = "has schema 28 of an older logprobe. Export its runs with the version that wrote it (logprobe export), or use a new data directory."
NEWER = f"has schema 999; this logprobe supports schema {VERSION}. Upgrade logprobe, or use a new data directory."
STRANGE = "is a database of another program. Move it away, or use a new data directory."
COMMANDS = (
    "up --no-app", "up --once", "sql 'SELECT 1'", "runs", "show toy", "export toy --to out.csv", "store delete toy",
)  # fmt: skip


def content(home: Home) -> dict[str, tuple[int, bytes]]:
    """Every file and folder of a home."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [home.path, *home.path.rglob("*")]
    }


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an ingested run and more in its spool."""
    home = tmp_path_factory.mktemp("stored") / "home"
    record(home)
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    record(home, "later")
    return home


def altered(stored: Path, home: Path, statement: str) -> Home:
    """A copy of it whose store is altered and keeps the change in its log."""
    place = Home(shutil.copytree(stored, home))
    with duckdb.connect(str(place.database)) as connection:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        connection.execute(statement)
    assert place.database.with_name("logprobe.duckdb.wal").exists()
    return place


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("UPDATE schema_versions SET version = 28", OLDER),
        ("UPDATE schema_versions SET version = 999", NEWER),
        ("DROP TABLE schema_versions", STRANGE),
    ],
)
def test_it_is_not_opened(stored: Path, home: Path, statement: str, refusal: str) -> None:
    place = altered(stored, home, statement)
    before = content(place)
    for lock_or_open in (place.lock, lambda: Store.open(place, read_only=True)):
        with pytest.raises(StoreError) as raised:
            lock_or_open()
        assert not isinstance(raised.value, StoreDamagedError)
        assert str(raised.value) == f"{place.database} {refusal}"
        assert content(place) == before


def test_commands_a_service_and_a_reader_say_so_and_change_nothing(
    stored: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = altered(stored, home, "UPDATE schema_versions SET version = 28")
    monkeypatch.chdir(tmp_path)
    before = content(older)
    for command in COMMANDS:
        done = logprobe(*shlex.split(command), "--home", older.path, code=1)
        assert f"{older.database} {OLDER}" in done.stderr, command
        assert content(older) == before, command
    for serve_or_read in (Service(older).run, lambda: open_reader(older)):
        with pytest.raises(StoreError, match="schema 28"):
            serve_or_read()
    assert content(older) == before
    assert [path for path in tmp_path.iterdir() if path != older.path] == []


def test_a_home_with_nothing_but_such_a_store_gets_no_other_file(tmp_path: Path) -> None:
    place = Home(tmp_path / "bare")
    place.path.mkdir()
    with duckdb.connect(str(place.database)) as connection:
        connection.execute("CREATE TABLE schema_versions AS SELECT 28 AS version")
    before = content(place)
    for command in ("up --no-app", "up --once"):
        assert OLDER in logprobe(*command.split(), "--home", place.path, code=1).stderr
    assert content(place) == before
