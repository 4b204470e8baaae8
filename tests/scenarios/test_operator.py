"""What operators do to a home: lose, restore, copy and mount its parts. Nothing that was complete is removed because it is unknown."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import full_disk_checkpoint_program
import pytest
from faultfs.faultfs import FaultyDisk
from operator_homes import (
    FAULTS,
    SEQUENCES,
    TOKENS,
    health_at,
    ingested,
    is_well,
    killed_service,
    raw_files,
    stored,
    table,
    unwell,
    waiting,
)
from processes import connected, end, eventually, record, service, start_service
from segments import on_small_disk

from logprobe.collectors.errors import QueryError
from logprobe.monitor.home import Home


def test_a_lost_log_loses_nothing(home: Path) -> None:
    record(home, steps=range(3))
    with killed_service(home) as reader:
        reader.ingest()
        assert stored(reader) == (12, 192)
    (home / "logprobe.duckdb.wal").unlink()
    with service(home) as reader:
        reader.ingest()
        assert stored(reader) == (12, 192)
        assert is_well(home)
    assert not waiting(home), "a service that stops leaves nothing behind"


def linked_home(home: Path, disk: Path) -> None:
    """A home whose raw tokens lie on another disk, with some of a run."""
    disk.mkdir()
    home.mkdir()
    (home / "archive").symlink_to(disk)
    ingested(home, range(3))


def test_a_copy_with_a_link_does_not_use_the_files_beside_the_original(home: Path, tmp_path: Path) -> None:
    linked_home(home, tmp_path / "disk")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", home, copy], check=True)
    record(home, steps=range(3, 5))
    with service(home) as reader:
        reader.ingest()
        before = raw_files(home)
        with service(copy):
            assert str(FAULTS["A copy of the home whose `archive/` is a link"]) in unwell(copy)
        assert raw_files(home) >= before
        assert stored(reader) == (20, 320)
        assert is_well(home)


def test_raw_files_that_are_mounted_late_are_waited_for(home: Path, tmp_path: Path) -> None:
    ingested(home, range(3))
    before = raw_files(home)
    (home / "archive").rename(tmp_path / "unmounted")
    (home / "archive").mkdir()
    record(home, steps=range(3, 4))
    waits = waiting(home)
    with service(home) as reader:
        assert FAULTS["`archive/` not mounted, at the start or later"] in unwell(home)
        assert waiting(home) == waits
        shutil.rmtree(home / "archive")
        (tmp_path / "unmounted").rename(home / "archive")
        eventually(lambda: is_well(home), "/healthz is well again")
        reader.ingest()
        assert stored(reader) == (16, 256)
    assert raw_files(home) > before


def test_a_service_starts_although_a_command_reads_the_store_at_this_moment(home: Path) -> None:
    ingested(home, range(1))
    reading = duckdb.connect(str(home / "logprobe.duckdb"), read_only=True)
    process = start_service(home)
    try:
        eventually(lambda: Home(home).owner(), "the service has begun to start")
        time.sleep(1.0)
        assert process.poll() is None
        reading.close()
        with connected(home) as reader:
            assert stored(reader) == (4, 64)
    finally:
        reading.close()
        end(process)


def test_a_home_that_is_renamed_under_the_service_becomes_no_two_homes(home: Path, tmp_path: Path) -> None:
    record(home, steps=range(3))
    with service(home) as reader:
        reader.ingest()
        port = Home(home).service_info().health_port
        home.rename(tmp_path / "elsewhere")
        record(home, steps=range(3, 4))  # a trainer that goes on by the old name
        said = eventually(lambda: health_at(port)[1]["problems"], "/healthz says so")
        assert FAULTS["`archive/` unmounted, or the home renamed or removed, under the service"] in said[0]
        assert not (home / "logprobe.duckdb").exists()
        assert waiting(home) > 0, "nothing of it is ingested into the other home"
        shutil.rmtree(home)
        (tmp_path / "elsewhere").rename(home)
        eventually(lambda: is_well(home), "/healthz is well again")


def test_a_moved_home_keeps_its_linked_files_and_is_served_although_one_is_damaged(home: Path, tmp_path: Path) -> None:
    linked_home(home, tmp_path / "disk")
    moved = home.rename(tmp_path / "moved")
    damaged = min(moved.glob("archive/toy/training/*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    record(moved, steps=range(3, 4))
    with service(moved) as reader:
        reader.ingest()
        assert reader.query(SEQUENCES)["n"][0].as_py() == 16
        with pytest.raises(QueryError, match=rf"{damaged.name}.*restore that file, or move it away"):
            reader.query(TOKENS)
        problem = unwell(moved)
        assert str(FAULTS["A file of the archive damaged or unreadable"]) in problem
        assert damaged.name in problem
    assert damaged.exists()


def test_a_service_that_starts_on_a_full_disk_says_so_in_a_sentence(home: Path, tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "faults")
    disk.rule("write", within="service", error=errno.ENOSPC)
    command = [sys.executable, "-m", "logprobe.app.processes.service", "--home", str(home)]
    done = subprocess.run(command, env=disk.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
    assert "with room on its disk" in done.stderr


def test_a_disk_that_becomes_read_only_or_full_is_said_at_once_and_costs_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(tmp_path / "faults")
    record(home, steps=range(2))
    with monkeypatch.context() as preloaded:
        for name, value in disk.environment().items():
            preloaded.setenv(name, value)
        process = start_service(home)
    faults = {errno.EROFS: "The disk read-only, as Linux makes it after an error", errno.ENOSPC: "The disk full"}
    try:
        with connected(home) as reader:
            reader.ingest()
            eventually(lambda: is_well(home), "/healthz is well")
            for first, (error, fault) in zip((2, 4), faults.items(), strict=True):
                rules = [disk.rule(what, within=home, error=error) for what in ("fsync", "write", "mkdir", "rename")]
                record(home, steps=range(first, first + 2))
                assert str(FAULTS[fault]) in unwell(home)
                for rule in rules:
                    rule.stop()
                eventually(lambda: is_well(home), "/healthz is well again")
            eventually(lambda: stored(reader) == (24, 384), "what waited is ingested")
    finally:
        end(process)


def test_the_table_of_faults_in_the_documentation_is_this_one() -> None:
    page = Path(__file__).parents[1] / "RESULTS.md"
    assert table() in page.read_text(encoding="utf-8")


def test_a_disk_that_is_full_during_a_checkpoint_costs_nothing(tmp_path: Path) -> None:
    program = Path(full_disk_checkpoint_program.__file__)
    seen = json.loads(on_small_disk(tmp_path / "disk", 96, program, seconds=400))
    number = full_disk_checkpoint_program.STEPS * full_disk_checkpoint_program.SEQUENCES
    every = {"n": number, "ids": number}
    assert "checkpoint failed" in seen["said"], seen
    assert seen["while full"] == every
    assert seen["killed"] == 0
    assert seen["problems"] == []
    assert seen["runs"] == [every] * 2
