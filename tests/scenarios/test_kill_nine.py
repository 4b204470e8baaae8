"""kill -9 of the recording process and of the service at random moments: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import killed_processes
import pytest
from killed_processes import RUN, length
from processes import eventually
from recorded_home import take_in

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

PER_LIFE = 40  # samples that are acknowledged in half of the recorder's lives


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Processes that start in milliseconds: forked from one that has imported everything and done nothing."""
    context = multiprocessing.get_context("forkserver")
    # Not this test's own module: Python 3.11's fork server does not see the tests' part of sys.path.
    context.set_forkserver_preload(
        ["logprobe.monitor.service.service", "logprobe.collectors.recorder.recorder", "pyarrow.parquet"]
    )
    return context


def start(context: ForkServerContext, target, *arguments) -> ForkServerProcess:
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def kill(process: ForkServerProcess) -> None:
    assert process.is_alive(), f"ended by itself with {process.exitcode}: the test is about killing it"
    process.kill()
    process.join()


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_and_nothing_counts_twice(home: Path, tmp_path: Path, processes, kills: int):
    """Recorder and service are killed `kills` times each."""
    rng = random.Random(9)  # six lives have two of each moment
    acknowledgements = tmp_path / "acknowledged"
    acknowledgements.touch()
    service = start(processes, killed_processes.serve, home)
    recorder = start(processes, killed_processes.record, home, 0, acknowledgements)
    noticed: set[str] = set()

    def committed() -> int:
        noticed.update(spooled(home))
        return len(noticed - spooled(home))

    try:
        for life in range(1, kills + 1):
            # Half of the lives end early, in the middle of starting; the others some time after the first success.
            if rng.random() < 0.5:
                enough = acknowledged_in(acknowledgements) + PER_LIFE
                eventually(
                    lambda enough=enough: acknowledged_in(acknowledgements) >= enough, "the recorder acknowledges some"
                )
            time.sleep(rng.uniform(0.0, 0.3))
            kill(recorder)
            recorder = start(processes, killed_processes.record, home, life, acknowledgements)
            moment = rng.random()
            if moment < 0.35:
                before = raw_files(home)
                eventually(lambda before=before: raw_files(home) - before, "the service ingests something")
            elif moment < 0.7:
                before = committed()
                eventually(lambda before=before: committed() > before, "the service commits something")
            time.sleep(rng.uniform(0.0, 0.3))
            kill(service)
            service = start(processes, killed_processes.serve, home)

        eventually(lambda: committed() > 2 * kills, "the service commits what the recorder writes")
    finally:
        for process in (recorder, service):
            process.kill()
            process.join()
    check(Home(home), acknowledgements.read_text().split(), kills)


def acknowledged_in(file: Path) -> int:
    """Samples."""
    return file.read_bytes().count(b"\n")


def raw_files(home: Path) -> set[str]:
    """Written, and perhaps not yet committed."""
    return {path.name for path in (home / "archive" / RUN).glob("*/*")}


def spooled(home: Path) -> set[str]:
    """In no file of the archive yet: what is goes away from here."""
    return {str(path) for path in (home / "spool").rglob("*.arrow")}


def check(home: Home, acknowledged: list[str], kills: int) -> None:
    with home.lock(), Store.open(home) as store:
        ingested_under_fire = count(store, "SELECT count(*) FROM segments")
        report = take_in(store)
        store.archive.merge()
        check_content(store, set(acknowledged))
        check_files(store)
        assert report.problems == []
        # Otherwise the test has shown nothing.
        assert len(acknowledged) > 20 * kills
        assert ingested_under_fire > kills


def check_content(store: Store, acknowledged: set[str]) -> None:
    sequences = store.query(
        "SELECT sample_id, n, n_total, rollout_source FROM sequences WHERE run = ?", [RUN]
    ).to_pylist()
    known = {row["sample_id"]: row for row in sequences}
    assert acknowledged <= known.keys(), "acknowledged, and lost"
    assert len(sequences) == len(known), "counted twice"
    for sample_id in acknowledged:
        row = known[sample_id]
        assert (row["n"], row["n_total"], row["rollout_source"]) == (length(sample_id),) * 2 + ("joined",)
    tokens = store.query(
        "SELECT sample_id, count(*) AS n, count(rollout_logprob) AS r FROM tokens GROUP BY 1"
    ).to_pylist()
    assert {row["sample_id"]: row["n"] for row in tokens} == {sample_id: length(sample_id) for sample_id in known}
    assert count(store, "SELECT count(*) FROM rollouts") == count(
        store, "SELECT count(DISTINCT sample_id) FROM rollouts"
    )
    assert count(store, "SELECT count(*) FROM statistics") == count(
        store, "SELECT count(DISTINCT (segment_id, row, pair)) FROM statistics"
    )
    assert count(store, "SELECT sum(tokens)::BIGINT FROM steps") == sum(length(sample_id) for sample_id in known)


def check_files(store: Store) -> None:
    assert count(store, "SELECT count(*) FROM quarantine") == 0
    assert list(store.home.spool.rglob("*.arrow")) == []
    registered = set(store.query("SELECT path FROM raw_files")["path"].to_pylist())
    assert {store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*")} == registered


def count(store: Store, sql: str) -> int:
    return store.query(sql)[0][0].as_py()
