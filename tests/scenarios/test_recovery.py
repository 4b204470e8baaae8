"""Backing up, restoring, rebuilding and checking a home, as docs/operating.md says: each with the command, on real stores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from operator_homes import ingested, is_well, killed_service, raw_files, remove_store, stored, unwell
from processes import connected, end, logprobe, record, service, start_service

from logprobe.monitor.home import Home
from logprobe.monitor.objects.moving import Mover
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.store import Store

METRICS = "SELECT run, step, metric, value FROM step_metrics ORDER BY ALL"


def metrics(home: Path) -> dict[tuple[Any, ...], float | None]:
    """Every number of every step."""
    with open_reader(home) as reader:
        rows = reader.query(METRICS).to_pylist()
    return {(row["run"], row["step"], row["metric"]): row["value"] for row in rows}


def command(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command prints as JSON."""
    return json.loads(logprobe(*map(str, arguments), "--json", code=code).stdout)


def assert_equal_or_null(found: dict, before: dict) -> int:
    """Every number from before is there again or unknown; → how many are there."""
    there = {key: value for key, value in found.items() if value is not None}
    assert {key: before[key] for key in there} == pytest.approx(there, rel=1e-9)
    return len(there)


def moved_to(home: Path, share: Path) -> set[str]:
    """Moves what is there to an object store, and nothing that comes later; → the names."""
    settings, files = home / "logprobe.yaml", raw_files(home)
    settings.write_text(f"storage: {{raw: 'file://{share}', after: 0}}\n")
    with Store.open(Home(home)) as store:
        assert Mover(store, Retention(store), threading.Event()).run_once().moved_files == len(files)
    settings.write_text(f"storage: {{raw: 'file://{share}'}}\n")
    assert raw_files(home) == set()
    return files


def test_a_lost_store_is_rebuilt_from_raw_tokens_objects_and_spool(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))
    objects = moved_to(home, tmp_path / "share")
    ingested(home, range(2, 4))
    before, files = metrics(home), raw_files(home)
    remove_store(home)
    record(home, steps=range(4, 5))
    done = command("rebuild", "--home", home)
    assert (done["new_store"], done["sequences"], done["incomplete"]) == (True, 16, {})
    assert (done["adopted_files"], done["adopted_objects"], done["left_objects"]) == (len(files), len(objects), [])
    assert done["from_spool"] > 0
    found = metrics(home)
    old = {key: value for key, value in found.items() if key[1] < 4}
    scalars = {key for key, value in before.items() if value is not None} - {k for k, v in old.items() if v is not None}
    assert assert_equal_or_null(old, before) > 50
    assert not {metric for _, _, metric in scalars if metric.startswith(("backend.", "total."))}
    assert command("check", "--home", home)["problems"] == []
    with service(home) as reader:
        assert stored(reader) == (20, 320)
        assert is_well(home)


def test_yesterdays_backup_is_restored_and_what_came_since_is_taken_in(home: Path, tmp_path: Path) -> None:
    record(home, steps=range(2))
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            made = command("backup", tmp_path / "backup", "--home", home)
            assert made["files"] >= 1
            record(home, steps=range(2, 4))
            reader.ingest()
        assert "is in use" in logprobe("restore", tmp_path / "backup", "--home", home, code=1).stderr
    finally:
        end(process)
    before, files = metrics(home), raw_files(home)
    done = command("restore", tmp_path / "backup", "--home", home)
    assert (done["new_store"], done["sequences"]) == (False, 8)
    assert len(done["set_aside"]) == 1
    assert raw_files(home) == files
    assert_equal_or_null(metrics(home), before)
    with service(home) as reader:
        assert stored(reader) == (16, 256)
        assert is_well(home)


def test_a_backup_with_raw_tokens_makes_the_home_elsewhere(home: Path, tmp_path: Path) -> None:
    ingested(home, range(2))
    command("backup", tmp_path / "backup", "--raw", "--home", home)
    assert "exists" in logprobe("backup", tmp_path / "backup", "--home", home, code=1).stderr
    shutil.rmtree(home)
    command("restore", tmp_path / "backup", "--home", home)
    with service(home) as reader:
        assert stored(reader) == (8, 128)
        assert is_well(home)


@pytest.mark.parametrize("damage", ["log", "database"])
def test_a_damaged_store_is_named_set_aside_and_rebuilt(home: Path, damage: str) -> None:
    ingested(home, range(2))
    record(home, steps=range(2, 4))
    with killed_service(home) as reader:
        reader.ingest()
    file = home / ("logprobe.duckdb.wal" if damage == "log" else "logprobe.duckdb")
    data = bytearray(file.read_bytes())
    for place in range(len(data) // 3, len(data), 1009) if damage == "database" else [len(data) // 2]:
        data[place] ^= 1
    file.write_bytes(data)
    done = command("rebuild", "--home", home)
    assert done["set_aside"]
    assert done["new_store"] == (damage == "database")
    assert command("check", "--home", home)["problems"] == []
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
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        os.kill(info.pid, signal.SIGKILL)
        _, said = up.communicate(timeout=120)
    finally:
        up.kill()
    assert up.returncode == 1
    assert "is damaged" in said
    assert f"logprobe rebuild --home {home}" in said


def test_files_that_are_gone_for_good_are_forgotten_and_come_back(home: Path, tmp_path: Path) -> None:
    ingested(home, range(3))
    before, files = metrics(home), raw_files(home)
    (home / "raw").rename(tmp_path / "unmounted")
    assert len(command("check", "--home", home, code=2)["problems"]) >= len(files)
    assert command("rebuild", "--home", home)["forgotten_files"] == len(files)
    assert metrics(home) == before
    shutil.rmtree(home / "raw")
    (tmp_path / "unmounted").rename(home / "raw")
    with service(home):
        assert "complete raw files" in unwell(home)
    assert command("rebuild", "--home", home)["adopted_files"] == len(files)
    with service(home) as reader:
        assert stored(reader) == (12, 192)
        assert is_well(home)
    assert raw_files(home) == files
