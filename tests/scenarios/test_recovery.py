"""Backing up, restoring, rebuilding and checking a home, as docs/operating.md says: each with the command, on real stores."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from killed_command import run_killed
from operator_homes import ingested, is_well, killed_service, raw_files, remove_store, stored, unwell
from processes import connected, end, logprobe, record, service, start_service
from training_calls import call

from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.recovery.backup import backup
from logprobe.monitor.recovery.rebuilding import restore

KILLED_EARLY = 4  # changes of a rebuild that are made: the store is new, and no raw file is in it yet
WITHIN_A_LENGTH = 38  # byte of a log of DuckDB 2.0: the highest of the length of its first entry
METRICS = "SELECT run, step, metric, value FROM step_metrics ORDER BY ALL"


def metrics(home: Path) -> dict[tuple[Any, ...], float | None]:
    """Every number of every step."""
    with open_reader(home) as reader:
        rows = reader.query(METRICS).to_pylist()
    return {(row["run"], row["step"], row["metric"]): row["value"] for row in rows}


def command(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command prints as JSON."""
    return json.loads(logprobe(*arguments, "--json", code=code).stdout)


def assert_equal_or_null(found: dict, before: dict) -> int:
    """Every number from before is there again or unknown; → how many are there."""
    there = {key: value for key, value in found.items() if value is not None}
    assert {key: before[key] for key in there} == pytest.approx(there, rel=1e-9)
    return len(there)


def assert_rebuilt(home: Path, before: dict) -> None:
    """Every number of the steps before that raw tokens can give is there, and equal."""
    steps = {step for _, step, _ in before}
    found = {key: value for key, value in metrics(home).items() if key[1] in steps}
    there = {key for key, value in found.items() if value is not None}
    lost = {key for key, value in before.items() if value is not None} - there
    assert assert_equal_or_null(found, before) > 50
    assert not {metric for _, _, metric in lost if metric.startswith(("backend.", "total."))}


def test_a_lost_store_is_rebuilt_from_raw_tokens_and_spool(home: Path) -> None:
    ingested(home, range(2))
    ingested(home, range(2, 4))
    before, files = metrics(home), raw_files(home)
    remove_store(home)
    record(home, steps=range(4, 5))
    done = command("store", "check", "--repair", "--home", home)
    assert (done["new_store"], done["sequences"], done["incomplete"]) == (True, 16, {})
    assert done["adopted_files"] == len(files)
    assert done["from_spool"] > 0
    assert_rebuilt(home, before)
    assert command("store", "check", "--home", home)["problems"] == []
    with service(home) as reader:
        assert stored(reader) == (20, 320)
        assert is_well(home)


def test_what_a_rebuild_cannot_measure_is_listed_also_when_a_start_has_made_an_empty_store(home: Path) -> None:
    """As an operator comes to it: the store is gone, `up` is started, `runs` shows none, `/healthz` says what to do."""
    ingested(home, range(2))
    with Recorder(home, "half", rank=0, raw_fraction=0.5) as recorder:
        for step in range(2):
            recorder.training(**call(step))
        assert recorder.flush(60)
    with service(home) as reader:
        reader.ingest()
    before = metrics(home)
    assert {run for run, _, _ in before} == {"toy", "half"}
    remove_store(home)
    with service(home):
        assert "logprobe store check --repair" in unwell(home)
        said = logprobe("runs", "--home", home).stderr
        assert "raw files of runs that this store does not list; `logprobe doctor` says what to do" in said
    done = logprobe("store", "check", "--repair", "--home", home).stdout
    assert "a new one" in done
    assert "unknown  half: steps 0 to 1" in done
    assert "scalars of step records" in done
    assert {run for run, _, _ in metrics(home)} == {"toy"}


def test_yesterdays_backup_is_restored_and_what_came_since_is_taken_in(home: Path, tmp_path: Path) -> None:
    record(home, steps=range(2))
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            made = command("store", "copy", tmp_path / "backup", "--home", home)
            assert made["files"] >= 1
            record(home, steps=range(2, 4))
            reader.ingest()
        with pytest.raises(HomeBusyError):
            restore(Home(home), tmp_path / "backup")
    finally:
        end(process)
    before, files = metrics(home), raw_files(home)
    done = restore(Home(home), tmp_path / "backup")
    assert (done.new_store, done.sequences) == (False, 8)
    assert len(done.set_aside) == 1
    assert raw_files(home) == files
    assert_equal_or_null(metrics(home), before)
    with service(home) as reader:
        assert stored(reader) == (16, 256)
        assert is_well(home)


def test_a_backup_with_raw_tokens_makes_the_home_elsewhere(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))
    (home / ".#logprobe.yaml").symlink_to("somebody@host.1:2")  # an editor has it open
    command("store", "copy", tmp_path / "backup", "--raw", "--home", home)
    assert "exists" in logprobe("store", "copy", tmp_path / "backup", "--home", home, code=1).stderr
    shutil.rmtree(home)
    restore(Home(home), tmp_path / "backup")
    with service(home) as reader:
        assert stored(reader) == (8, 128)
        assert is_well(home)


def test_of_backups_to_one_folder_at_once_one_is_made(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))

    def made(_: int) -> str:
        try:
            return backup(Home(home), tmp_path / "backup", raw=True)["folder"]
        except ConfigurationError as error:
            return str(error)

    with service(home), ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(made, range(4)))
    assert said[0] == str(tmp_path / "backup")
    assert set(said[1:]) == {f"{tmp_path / 'backup'} exists; choose a folder that does not"}
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("damage", ["log", "length in the log", "database"])
def test_a_damaged_store_is_named_set_aside_and_rebuilt(home: Path, damage: str) -> None:
    """DuckDB takes a log with a wrong length of an entry for one that ends there, and says nothing; nothing is lost."""
    ingested(home, range(2))
    record(home, steps=range(2, 4))
    with killed_service(home) as reader:
        reader.ingest()
    file = home / ("logprobe.duckdb" if damage == "database" else "logprobe.duckdb.wal")
    data = bytearray(file.read_bytes())
    places = {
        "log": [-1],  # what the checksum of the last entry covers, however long the log is
        "length in the log": [WITHIN_A_LENGTH],
        "database": range(len(data) // 3, len(data), 1009),
    }
    for place in places[damage]:
        data[place] ^= 1
    file.write_bytes(data)
    done = command("store", "check", "--repair", "--home", home)
    assert done["set_aside"] or damage == "length in the log"
    assert done["new_store"] == (damage == "database")
    assert command("store", "check", "--home", home)["problems"] == []
    with service(home) as reader:
        assert stored(reader) == (16, 256)
        assert is_well(home)


def test_up_does_not_start_again_and_again_on_a_damaged_log_but_says_what_to_do(home: Path) -> None:
    record(home, steps=range(2))
    up = subprocess.Popen(
        [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", home], stderr=subprocess.PIPE, text=True
    )
    try:
        with connected(home) as reader:
            reader.ingest()
        info = Home(home).service_info()
        assert info is not None
        os.kill(info.pid, signal.SIGSTOP)
        log = home / "logprobe.duckdb.wal"
        data = bytearray(log.read_bytes())
        data[-1] ^= 1
        log.write_bytes(data)
        os.kill(info.pid, signal.SIGKILL)
        _, said = up.communicate(timeout=120)
    finally:
        up.kill()
    assert up.returncode == 1
    assert "is damaged" in said
    assert f"logprobe store check --repair --home {home}" in said


def test_files_that_are_gone_for_good_are_forgotten_and_come_back(home: Path, tmp_path: Path) -> None:
    ingested(home, range(3))
    before, files = metrics(home), raw_files(home)
    (home / "raw").rename(tmp_path / "unmounted")
    assert len(command("store", "check", "--home", home, code=2)["problems"]) >= len(files)
    assert command("store", "check", "--repair", "--home", home)["forgotten_files"] == len(files)
    assert metrics(home) == before
    shutil.rmtree(home / "raw")
    (tmp_path / "unmounted").rename(home / "raw")
    with service(home):
        assert "complete raw files" in unwell(home)
    assert command("store", "check", "--repair", "--home", home)["adopted_files"] == len(files)
    with service(home) as reader:
        assert stored(reader) == (12, 192)
        assert is_well(home)
    assert raw_files(home) == files


def killed_ever_later(below: Path, *arguments: object) -> Iterator[None]:
    """Runs the command until it is done; each time it is killed a little later, and what that leaves can be looked at."""
    for step in itertools.count():
        if run_killed(below, step * (step + 1) // 2, *arguments):
            assert step > 3, "it was hardly ever killed"
            return
        yield


def test_rebuilds_that_are_killed_lose_nothing_and_the_next_one_completes(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))
    ingested(home, range(2, 4))
    before, files = metrics(home), raw_files(home)
    remove_store(home)
    record(home, steps=range(4, 5))
    for _ in killed_ever_later(tmp_path, "store", "check", "--repair", "--home", home):
        assert raw_files(home) >= files
    assert_rebuilt(home, before)
    assert command("store", "check", "--home", home)["problems"] == []
    with service(home) as reader:
        assert stored(reader) == (20, 320)
        assert is_well(home)


@pytest.mark.long
def test_after_a_killed_rebuild_the_service_says_that_it_is_not_done(home: Path, tmp_path: Path) -> None:
    ingested(home, range(4))
    files = raw_files(home)
    remove_store(home)
    assert not run_killed(tmp_path, KILLED_EARLY, "store", "check", "--repair", "--home", home)
    with service(home) as reader:
        assert "logprobe store check --repair" in unwell(home)
        reader.ingest()
    assert raw_files(home) == files
    command("store", "check", "--repair", "--home", home)
    with service(home) as reader:
        assert stored(reader) == (16, 256)
        assert is_well(home)


@pytest.mark.long
def test_copies_that_are_killed_are_none_and_the_next_one_completes(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))
    folder = tmp_path / "backup"
    for _ in killed_ever_later(tmp_path, "store", "copy", folder, "--raw", "--home", home):
        assert not folder.exists()
    files = raw_files(home)
    assert {path.name for path in folder.glob("raw/[!!]*/*/*.parquet")} == files
