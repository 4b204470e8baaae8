"""A file that an older version wrote: reading leaves it as it is, and an upgrade keeps it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import duckdb
import pytest
from processes import logprobe

from logprobe.collectors.errors import QueryError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.recovery.checking import check
from logprobe.monitor.store import copies, migrations, sql_files
from logprobe.monitor.store import store as store_module
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.store import Store


def version(store: Store) -> int:
    return store.query("SELECT max(version) AS version FROM schema_versions")["version"][0].as_py()


@pytest.fixture
def older(home: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of the version before, which nobody uses."""
    known = sql_files.migrations()
    with monkeypatch.context() as patched:
        for module in (migrations, store_module, copies):
            if hasattr(module, "migrations"):
                patched.setattr(module, "migrations", lambda: known[:-1])
        patched.setattr(store_module.views, "create", lambda *_: None)  # today's views may need today's columns
        with Store.open(Home(home)) as store:
            assert version(store) == known[-2].version
    return Home(home)


def content(home: Home) -> dict[str, tuple[int, bytes]]:
    """Every file of a home."""
    files = [path for path in home.path.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_file_of_an_older_schema_is_read_from_a_copy_and_stays_as_it_is(older: Home) -> None:
    before = content(older)
    with Store.open(older, read_only=True) as store:
        assert store.read_only
        assert version(store) == sql_files.migrations()[-1].version
        assert store.query("SELECT * FROM tokens").num_rows == 0
        temporary = store.home.path
    assert content(older) == before
    assert not temporary.exists()


@pytest.mark.parametrize("command", [["sql", "SELECT count(*) FROM steps"], ["runs"], ["doctor"]])
def test_commands_that_read_change_nothing_in_an_older_home(older: Home, command: list[str]) -> None:
    before = content(older)
    logprobe(*command, "--home", older.path)
    assert content(older) == before


def test_the_old_file_is_kept_before_an_upgrade(older: Home, caplog: pytest.LogCaptureFixture) -> None:
    known = sql_files.migrations()
    with Store.open(older) as store:
        assert version(store) == known[-1].version
    (kept,) = older.path.glob("logprobe.duckdb.schema-*")
    assert kept.name == f"logprobe.duckdb.schema-{known[-2].version}"
    assert str(kept) in caplog.text
    with duckdb.connect(str(kept), read_only=True) as connection:
        assert migrations.current_version(connection) == known[-2].version


HOMES = sorted((Path(__file__).parents[1] / "data").glob("home-*.tar.gz"))  # each of one schema
FIRST_OF_ALL, NEVER_COMMITTED = 19, {20, 21, 25}


def unpacked(archive: Path, folder: Path) -> Home:
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return Home(folder / archive.name.removesuffix(".tar.gz"))


@pytest.fixture(params=HOMES, ids=lambda path: path.name.partition(".")[0])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """A home that an earlier version wrote."""
    return unpacked(request.param, tmp_path)


def test_every_earlier_schema_has_a_home(tmp_path: Path) -> None:
    """Whoever adds a migration keeps one of the schema before: tests/data/README.md."""
    schemas = [json.loads((unpacked(each, tmp_path).path / "numbers.json").read_text())["schema"] for each in HOMES]
    newest = sql_files.migrations()[-1].version
    assert set(range(FIRST_OF_ALL, newest)) - NEVER_COMMITTED <= set(schemas)
    assert len(schemas) == len(set(schemas))


def test_a_home_of_an_earlier_version_opens_with_the_same_numbers(released: Home) -> None:
    said = json.loads((released.path / "numbers.json").read_text())
    before = {(step, metric): value for step, metric, value in said["metrics"]}
    with Store.open(released) as store:
        rows = store.query("SELECT step, metric, value FROM step_metrics WHERE value IS NOT NULL").to_pylist()
        found = {(row["step"], row["metric"]): row["value"] for row in rows}
        assert {key: found.get(key) for key in before} == pytest.approx(before, rel=1e-12)
        assert store.query("SELECT count(*) AS n FROM tokens")["n"].to_pylist() == [192]
        Ingester(store).run_once()
        assert store.raw.problems() == []
        if "verdict" in said:
            assert store.query("SELECT verdict FROM diagnoses")["verdict"].to_pylist() == [said["verdict"]]
    upgraded = said["schema"] < sql_files.migrations()[-1].version
    assert (released.path / f"logprobe.duckdb.schema-{said['schema']}").exists() == upgraded


def test_a_home_of_an_earlier_version_with_a_damaged_raw_file_opens_with_the_same_numbers(released: Home) -> None:
    said = json.loads((released.path / "numbers.json").read_text())
    before = {(step, metric): value for step, metric, value in said["metrics"]}
    (damaged,) = released.raw.glob("toy/training/*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with Store.open(released) as store:
        rows = store.query("SELECT step, metric, value FROM step_metrics WHERE value IS NOT NULL").to_pylist()
        found = {(row["step"], row["metric"]): row["value"] for row in rows}
        assert {key: found.get(key) for key in before} == pytest.approx(before, rel=1e-12)
        with pytest.raises(QueryError, match=rf"{damaged.name}.*restore that file, or move it away"):
            store.query("SELECT count(*) AS n FROM tokens")
        Ingester(store).run_once()
        report = Retention(store).run_once()
        assert report.missing_files == 0
        assert any(str(damaged) in problem for problem in store.raw.problems())
    assert damaged.exists()
    checked = check(released)
    assert any(damaged.name in problem for problem in checked["problems"])
    named = "-" in damaged.name  # with a checksum, since some version
    assert checked["not_compared"] == (0 if named else checked["raw_files"])


def test_reading_a_home_of_an_earlier_version_changes_nothing(released: Home) -> None:
    before = content(released)
    try:
        with Store.open(released, read_only=True) as store:
            assert store.query("SELECT count(*) AS n FROM tokens")["n"].to_pylist() == [192]
    except StoreError as refusal:
        assert "reading does not upgrade it; start its service once" in str(refusal)  # noqa: PT017
    assert content(released) == before
