"""Disks that are slow, or say that something failed which did not: no sample is lost and none counts twice.

The recorder runs in a process of its own on a disk with faults; what it has put into the spool is taken at once, as a service does.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import recording_program
from faultfs.faultfs import FaultyDisk

from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

CALLS, SEQUENCES, TOKENS = 60, 100, 64


@dataclass
class Seen:
    """What a recorder sent and was told, and what is in the store."""

    sent: list[str]
    acknowledged: list[str]
    closed: bool
    health: dict
    stored: Counter[str]
    expected_tokens: int
    measured_tokens: int

    def check_exactly_once(self) -> None:
        assert {name: n for name, n in self.stored.items() if n > 1} == {}
        assert set(self.acknowledged) <= set(self.stored)
        assert set(self.stored) == set(self.sent)
        assert self.measured_tokens == self.expected_tokens == len(self.sent) * TOKENS


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "faults")


def recorded(home: Path, disk: FaultyDisk, *, calls_per_flush: int) -> Seen:
    """A recorder on `disk`, while everything that appears in the spool is ingested at once."""
    program = [
        sys.executable,
        recording_program.__file__,
        str(home),
        *map(str, (CALLS, SEQUENCES, TOKENS, calls_per_flush)),
    ]
    with Store.open(Home(home)) as store:
        ingester, ended = Ingester(store), threading.Event()

        def ingest() -> None:
            while not ended.wait(0.002):
                ingester.run_once()

        taking = threading.Thread(target=ingest)
        taking.start()
        try:
            done = subprocess.run(
                program, env=disk.environment(), capture_output=True, text=True, timeout=200, check=False
            )
        finally:
            ended.set()
            taking.join()
        assert done.returncode == 0, done.stderr
        report = ingester.run_once()
        assert (report.remaining, report.quarantined, report.problems) == (0, 0, [])
        return seen(store, json.loads(done.stdout))


def seen(store: Store, told: dict) -> Seen:
    stored = store.query("SELECT sample_id, n_expected FROM training_sequences").to_pylist()
    (measured,) = store.query("SELECT sum(n)::BIGINT AS n FROM statistics WHERE pair = 'backend'").to_pylist()
    return Seen(
        **told,
        stored=Counter(row["sample_id"] for row in stored),
        expected_tokens=sum(row["n_expected"] for row in stored),
        measured_tokens=measured["n"],
    )


def test_a_directory_that_cannot_be_fsynced_after_the_rename_makes_nothing_count_twice(home: Path, disk: FaultyDisk):
    failing = disk.rule(
        "fsync", within=home, only="directories", error=errno.EIO, delay=0.03, chance=0.5, seed=3, skip=4
    )
    seen = recorded(home, disk, calls_per_flush=2)
    assert failing.injected > 3
    seen.check_exactly_once()
    # What closing could not settle, on a disk that may refuse to the last, it has said.
    assert seen.closed or set() < seen.health["dropped"].keys() <= {"raw_reduced", "unwritten"}


def test_a_rename_whose_answer_is_lost_makes_nothing_count_twice(home: Path, disk: FaultyDisk):
    # The delay is what ingest has to take a segment before it comes again.
    lost = disk.rule("rename", within=".arrow", error=errno.EIO, done=True, delay=0.5, chance=0.3, seed=5, times=8)
    seen = recorded(home, disk, calls_per_flush=2)
    assert lost.injected > 3
    seen.check_exactly_once()  # a segment stays until it is merged, so its sender finds it in its place


def test_a_service_that_starts_on_a_full_disk_says_so_in_a_sentence(home: Path, disk: FaultyDisk) -> None:
    disk.rule("write", within="service", error=errno.ENOSPC)
    done = subprocess.run(
        [sys.executable, "-m", "logprobe.app.processes.service", "--home", str(home)],
        env=disk.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
    assert "with room on its disk" in done.stderr
