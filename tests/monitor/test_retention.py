"""Retention and merging: what goes, what stays, and that readers never see a token twice."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from processes import eventually
from segments import at, records, sampled, trained

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.store import retention
from logprobe.monitor.store.retention import (
    COMPACT_BYTES,
    COMPACT_FILES,
    Kept,
    Retention,
    RetentionPolicy,
    expired,
    mergeable,
)
from logprobe.monitor.store.store import Store

DAY = timedelta(days=1)
UNLIMITED = RetentionPolicy(max_bytes=None)
TOKENS = "SELECT count(*) AS n, count(DISTINCT (run, step, sample_id, position)) AS d, sum(token_id)::BIGINT AS s FROM tokens"


def kept(path: str, *, run: str = "run", kind: str = "training", size: int = 10, day: float = 0, step: int = 0) -> Kept:
    return Kept(path, run, kind, step, step, 1, 100, size, at(day * 86400), compacted=False)


# The decision


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        (UNLIMITED, ""),
        (RetentionPolicy(), ""),
        (RetentionPolicy(max_bytes=40), ""),
        (RetentionPolicy(max_bytes=39), "a"),
        (RetentionPolicy(max_bytes=20), "ab"),
        (RetentionPolicy(max_bytes=0), "abcd"),
        (RetentionPolicy(max_bytes=None, max_age=1.5 * DAY), "ab"),
        (RetentionPolicy(max_bytes=None, max_age=10 * DAY), ""),
        (RetentionPolicy(max_bytes=None, max_run_bytes=10), "ab"),
        (RetentionPolicy(max_bytes=10, max_run_bytes=10), "abc"),
        (RetentionPolicy(max_bytes=10, max_age=1.5 * DAY), "abc"),
    ],
)
def test_the_oldest_go_first_until_every_limit_is_kept(policy: RetentionPolicy, gone: str):
    files = [kept("a"), kept("b", run="other", day=1), kept("c", day=2), kept("d", run="other", day=3)]
    assert sorted(file.path for file in expired(files, policy, at(3 * 86400))) == list(gone)


@pytest.mark.parametrize("limit", [{"max_bytes": -1}, {"max_run_bytes": -1}, {"max_age": -DAY}])
def test_a_policy_that_makes_no_sense_is_refused(limit: dict):
    with pytest.raises(ConfigurationError, match="negative"):
        RetentionPolicy(**limit)


def test_merging_joins_small_neighbours_of_one_run_and_kind():
    many = [kept(f"{step:02}", step=step) for step in range(COMPACT_FILES)]
    (group,) = mergeable(
        [*reversed(many), kept("big", size=COMPACT_BYTES), kept("r", kind="rollout"), kept("o", run="o")]
    )
    assert [file.path for file in group] == [file.path for file in many]
    assert list(mergeable(many[:-1])) == [], "too few to be worth it"
    halves = [kept(f"{step:02}", step=step, size=COMPACT_BYTES // 3) for step in range(5)]
    assert [[file.path for file in group] for group in mergeable(halves)] == [["00", "01"], ["02", "03"]]


# Done for real


@pytest.fixture
def _merge_soon(monkeypatch) -> None:
    monkeypatch.setattr(retention, "COMPACT_FILES", 4)


def fill(store: Store, files: int, first: int = 0, run: str = "run") -> None:
    """One training and one rollout file per step; later steps first, so that merging has something to sort."""
    writer, ingester = SpoolWriter(store.home.path, run, f"w{first}"), Ingester(store)
    for step in reversed(range(first, first + files)):
        ids = [1000 * step + i for i in range(4)]
        writer.write("training", records("training", trained(f"s{step}", step, token_ids=ids, received=False)))
        writer.write("rollout", records("rollout", sampled(f"s{step}", token_ids=ids, time=at(step))))
        ingester.run_once()


def counted(store: Store) -> dict:
    (row,) = store.query(TOKENS).to_pylist()
    assert row["n"] == row["d"]
    return row


def on_disk(store: Store) -> set[str]:
    return {store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*")}


def registered(store: Store) -> set[str]:
    return set(store.query("SELECT path FROM raw_files")["path"].to_pylist())


@pytest.mark.usefixtures("_merge_soon")
def test_merging_keeps_every_token_and_sorts_by_step(store: Store):
    fill(store, 6)
    before, sequences = counted(store), store.query("SELECT * FROM sequences ORDER BY step").to_pylist()
    report = Retention(store, UNLIMITED).run_once()
    assert (report.merged_files, report.merged_into, report.raw_files) == (12, 2, 2)
    assert counted(store) == before
    assert store.query("SELECT * FROM sequences ORDER BY step").to_pylist() == sequences
    assert store.query("SELECT count(rollout_logprob) AS r, count(weight_version) AS v FROM tokens").to_pylist() == [
        {"r": 24, "v": 24}
    ]
    assert on_disk(store) == registered(store)
    (merged,) = (path for path in on_disk(store) if "/training/" in path)
    assert pq.read_table(store.home.path / merged, partitioning=None)["step"].to_pylist() == list(range(6))
    assert store.query(
        "SELECT min_step, max_step, rows, tokens, compacted FROM raw_files WHERE kind = 'training'"
    ).to_pylist() == [{"min_step": 0, "max_step": 5, "rows": 6, "tokens": 24, "compacted": True}]
    again = Retention(store, UNLIMITED).run_once()
    assert (again.merged_files, again.removed_files) == (0, 0)


@pytest.mark.usefixtures("_merge_soon")
@pytest.mark.parametrize(("many", "at_once"), [(100, ["b"]), (5, ["b", "c"])])
def test_of_many_runs_some_are_merged_at_a_time_the_largest_first(store: Store, monkeypatch, many, at_once):
    monkeypatch.setattr(retention, "_TOGETHER", 2)
    monkeypatch.setattr(retention, "_MANY_FILES", many)
    for run, files in (("a", 4), ("b", 6), ("c", 5)):
        fill(store, files, run=run)
    before = counted(store)
    seconds = itertools.chain([0.0, 0.0], itertools.repeat(10.0))  # after the first merges it is more than enough
    Retention(store, UNLIMITED, processor=lambda: next(seconds)).run_once()
    merged = store.query("SELECT DISTINCT run FROM raw_files WHERE compacted ORDER BY run")["run"].to_pylist()
    assert merged == at_once
    assert counted(store) == before
    Retention(store, UNLIMITED).run_once()
    assert len(registered(store)) == 6
    assert counted(store) == before
    places = store.query("SELECT DISTINCT run, kind, raw_file FROM segments ORDER BY raw_file").to_pylist()
    files = store.query("SELECT run, kind, path AS raw_file FROM raw_files ORDER BY path").to_pylist()
    assert places == files


@pytest.mark.usefixtures("_merge_soon")
def test_records_in_merged_files_can_still_be_joined(store: Store):
    writer, ingester = SpoolWriter(store.home.path, "run", "w"), Ingester(store)
    for step in range(5):
        writer.write("training", records("training", trained(f"s{step}", step, received=False)))
        ingester.run_once()
    assert Retention(store, UNLIMITED).run_once().merged_into == 1
    writer.write("rollout", records("rollout", *(sampled(f"s{step}") for step in range(5))))
    ingester.run_once()
    assert store.query("SELECT 1 FROM training_sequences WHERE rollout_source = 'joined'").num_rows == 5


def test_statistics_outlive_the_raw_tokens(store: Store):
    fill(store, 6)
    statistics = "SELECT count(*) AS n, sum(n)::BIGINT AS t FROM statistics"
    before = store.query(statistics).to_pylist()
    report = Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    assert (report.removed_files, report.raw_files, report.raw_bytes) == (12, 0, 0)
    assert report.removed_bytes > 0
    assert on_disk(store) == registered(store) == set()
    assert store.query(statistics).to_pylist() == before
    assert store.query("SELECT count(*) AS n FROM tokens").to_pylist() == [{"n": 0}]
    assert store.query("SELECT count(*) FILTER (raw_kept) AS n FROM training_sequences").to_pylist() == [{"n": 0}]


def test_a_budget_keeps_the_newest(store: Store):
    for step in range(5):
        fill(store, 1, step)
    sizes = store.query("SELECT bytes FROM raw_files ORDER BY created_at")["bytes"].to_pylist()
    report = Retention(store, RetentionPolicy(max_bytes=sum(sizes[-4:]))).run_once()
    assert report.raw_bytes == sum(sizes[-4:])
    assert store.query("SELECT DISTINCT step FROM tokens ORDER BY step")["step"].to_pylist() == [3, 4]
    assert store.query("SELECT step FROM training_sequences WHERE raw_kept ORDER BY 1")["step"].to_pylist() == [3, 4]


def test_age_counts_from_ingest(store: Store):
    fill(store, 2)
    (newest,) = store.query("SELECT max(created_at) AS t FROM raw_files")["t"].to_pylist()
    job = Retention(store, RetentionPolicy(max_age=DAY))
    assert job.run_once(now=newest + DAY / 2).removed_files == 0
    assert job.run_once(now=newest + 2 * DAY).removed_files == 4


def test_files_that_somebody_else_removed_are_forgotten(store: Store):
    fill(store, 3)
    gone = min(path for path in on_disk(store) if "/training/" in path)
    (store.home.path / gone).unlink()
    assert counted(store)["n"] == 8
    assert Retention(store, UNLIMITED).run_once().missing_files == 1
    assert gone not in registered(store)
    assert store.query("SELECT count(*) FILTER (raw_kept) AS n FROM training_sequences").to_pylist() == [{"n": 2}]


def test_files_that_are_all_gone_at_once_are_not_forgotten(store: Store, tmp_path):
    fill(store, 3)
    before = registered(store)
    store.home.raw.rename(tmp_path / "unmounted")
    store.home.raw.mkdir()
    with pytest.raises(StoreError, match=r"none of the 6 raw files that the store lists: mount it"):
        Retention(store, UNLIMITED).run_once()
    store.home.raw.rmdir()
    (tmp_path / "unmounted").rename(store.home.raw)
    assert Retention(store, UNLIMITED).run_once().missing_files == 0
    assert registered(store) == before == on_disk(store)


@pytest.mark.usefixtures("_merge_soon")
def test_a_damaged_file_is_reported_and_the_rest_goes_on(store: Store):
    fill(store, 6)
    damaged = min(path for path in on_disk(store) if "/training/" in path)
    (store.home.path / damaged).write_bytes(b"PAR1 no more")
    report = Retention(store, UNLIMITED).run_once()
    assert report.merged_into == 1
    assert len(report.problems) == 1
    assert "cannot be merged" in report.problems[0]
    assert damaged in registered(store)


@pytest.mark.usefixtures("_merge_soon")
def test_readers_see_every_token_once_while_files_are_merged(store: Store):
    fill(store, 12)
    expected = counted(store)
    done, seen, failures = threading.Event(), [], []

    def read() -> None:
        try:
            while not done.is_set():
                seen.append(store.query(TOKENS).to_pylist()[0])
        except Exception as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        eventually(lambda: seen or failures, "somebody reads")
        report = Retention(store, UNLIMITED).run_once()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    store.checkpoint()  # which those reads may have kept away
    assert report.merged_into == 2
    assert failures == []
    assert all(row == expected for row in seen)
    assert on_disk(store) == registered(store)


@pytest.mark.usefixtures("_merge_soon")
def test_a_merge_that_fails_changes_nothing(store: Store, monkeypatch):
    fill(store, 6)
    before, files = counted(store), on_disk(store)
    row = retention._merged_row
    monkeypatch.setattr(retention, "_merged_row", lambda *args: row(*args) | {"nonsense": 1})
    with pytest.raises(StoreError, match="rolled back"):
        Retention(store, UNLIMITED).run_once()
    assert (counted(store), on_disk(store)) == (before, files)
