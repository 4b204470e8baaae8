"""Retention and merging: what goes, what stays, and that readers never see a token twice."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from processes import eventually
from recorded_home import feed
from segments import at, sampled, trained
from store_contents import rows
from store_work import Fed

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.service.pipeline import Pipeline, SteadyClock
from logprobe.monitor.store import archive, retention
from logprobe.monitor.store.retention import Kept, Retention, RetentionPolicy, expired
from logprobe.monitor.store.store import Store

DAY = timedelta(days=1)
UNLIMITED = RetentionPolicy(max_bytes=None)
TOKENS = "SELECT count(*) AS n, count(DISTINCT (run, step, sample_id, position)) AS d, sum(token_id)::BIGINT AS s FROM tokens"


def kept(path: str, *, run: str = "run", day: float = 0) -> Kept:
    return Kept(path, run, "training", 1, 10, at(day * 86400))


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
        (RetentionPolicy(max_bytes=10, max_age=1.5 * DAY), "abc"),
    ],
)
def test_the_oldest_go_first_until_every_limit_is_kept(policy: RetentionPolicy, gone: str):
    files = [kept("a"), kept("b", run="other", day=1), kept("c", day=2), kept("d", run="other", day=3)]
    assert sorted(file.path for file in expired(files, policy, at(3 * 86400))) == list(gone)


def test_a_policy_that_makes_no_sense_is_refused():
    for limit in ({"max_bytes": -1}, {"max_age": -DAY}):
        with pytest.raises(ConfigurationError, match="negative"):
            RetentionPolicy(**limit)


# Done for real


def fill(store: Store, files: int, first: int = 0, run: str = "run") -> None:
    """One training and one rollout file per step."""
    for step in range(first, first + files):
        ids = [1000 * step + i for i in range(4)]
        training = [trained(f"s{step}", step, token_ids=ids, received=False)]
        feed(store, run, training=training, rollout=[sampled(f"s{step}", token_ids=ids, time=at(step))])


def counted(store: Store) -> dict:
    (row,) = store.query(TOKENS).to_pylist()
    assert row["n"] == row["d"]
    return row


def on_disk(store: Store, *kinds: str) -> set[str]:
    paths = {store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*")}
    return {path for path in paths if path.split("/")[2] in (kinds or ("training", "rollout"))}


def registered(store: Store) -> set[str]:
    return set(store.query("SELECT path FROM raw_files WHERE kind IN ('training', 'rollout')")["path"].to_pylist())


def test_statistics_outlive_the_tokens_and_the_index(store: Store):
    fill(store, 3)
    part_ids = ["p1", "p2"]
    training = [trained("p", 9, received=False, part_ids=part_ids, tags=[("a", "b")])]
    parts = [sampled("p1", 2, prompt_length=3), sampled("p2", 2, token_ids=[2, 3], prompt_length=5)]
    Fed(store).feed(training=training, rollout=parts, step=[{"step": 9, "scalars": [("reward", 1.0)]}])
    tables = ("training_sequences", "statistics", "rollout_sequences", "step_records", "step_metrics")
    sql = {name: f"SELECT * FROM {name} ORDER BY ALL" for name in tables}
    sql["training_sequences"] = "SELECT * EXCLUDE (raw_kept) FROM training_sequences ORDER BY ALL"
    sql["segments"] = "SELECT segment_id, run, writer, sequence, kind, rows, tokens FROM segments ORDER BY ALL"
    before = {name: rows(store, each) for name, each in sql.items()}
    assert {row["joined_by"] for row in before["training_sequences"]} == {"id", "parts"}
    report = Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    assert (report.removed_files, report.raw_files, report.raw_bytes) == (8, 0, 0)
    assert report.removed_bytes > 0
    assert on_disk(store) == registered(store) == set()
    assert len(on_disk(store, "sequences")) == 2
    assert {name: rows(store, each) for name, each in sql.items()} == before
    assert rows(store, "SELECT count(*) AS n FROM tokens") == [{"n": 0}]
    assert rows(store, "SELECT count(*) FILTER (raw_kept) AS n FROM training_sequences") == [{"n": 0}]
    store.close()
    for path in store.home.path.glob("logprobe.duckdb*"):
        path.unlink()
    with Store.open(Home(store.home.path)) as again:
        assert Ingester(again).run_once().problems == []
        assert {name: rows(again, each) for name, each in sql.items()} == before
        Fed(again).feed(training=[trained("late", 9)])
        (row,) = rows(again, "SELECT sequences FROM step_summaries WHERE step = 9")
        assert row == {"sequences": 2}


def test_a_run_whose_deletion_was_cut_short_keeps_no_other_from_its_limits(store: Store):
    fill(store, 2, run="deleted")
    fill(store, 2, run="kept")
    store.archive.tombstones.add("deleted", "ann")
    Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    assert {path.split("/")[1] for path in on_disk(store)} == {"deleted"}  # with which they go


def test_files_that_somebody_else_removed_are_forgotten_unless_all_are_gone_at_once(store: Store):
    fill(store, 3)
    gone = min(path for path in on_disk(store) if "/training/" in path)
    (store.home.path / gone).unlink()
    assert counted(store)["n"] == 8
    assert Retention(store, UNLIMITED).run_once().missing_files == 1
    assert gone not in registered(store)
    assert store.query("SELECT count(*) FILTER (raw_kept) AS n FROM training_sequences").to_pylist() == [{"n": 2}]
    for path in on_disk(store):
        (store.home.path / path).unlink()
    with pytest.raises(StoreError, match="none of the 5 known files with tokens exists"):
        Retention(store, UNLIMITED).run_once()


def test_readers_see_every_token_once_while_files_are_merged(store: Store, monkeypatch: pytest.MonkeyPatch):
    for module in (archive, retention):
        monkeypatch.setattr(module, "SMALL_FILES", 4)
    fill(store, 6)
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
    store.archive.sweep()  # which those reads may have kept away
    assert report.merged_files == 12
    assert failures == []
    assert all(row == expected for row in seen)
    assert on_disk(store) == registered(store)


# What is removed by its age waits until the clock has gone without a step for an hour


class Clocks(Time):
    """The two of them; time passes for both, and a step is one of the wall clock's."""

    def __init__(self) -> None:
        self.seconds = [1.7e9, 100.0]

    def wall(self) -> float:
        return self.seconds[0]

    def monotonic(self) -> float:
        return self.seconds[1]

    def passes(self, seconds: float) -> None:
        self.seconds = [each + seconds for each in self.seconds]


def test_a_step_in_either_direction_starts_the_hour_again() -> None:
    clocks = Clocks()
    clock = SteadyClock(clocks)
    assert not clock.is_steady()
    clocks.passes(3601)
    assert clock.is_steady()
    for step in (86_400 * 365.0, -3_600.0):
        clocks.seconds[0] += step
        assert not clock.is_steady()
        clocks.passes(3599)
        assert not clock.is_steady()
        clocks.passes(2)
        assert clock.is_steady()


def test_a_clock_that_is_years_ahead_costs_no_raw_file(store: Store):
    """As after a reboot with a broken clock: the files look old at once."""
    fill(store, 1)
    with store.transaction() as cursor:
        cursor.execute("UPDATE raw_files SET created_at = created_at - INTERVAL 400 DAYS")
    pipeline = Pipeline(store, threading.Event(), policy=RetentionPolicy(max_age=30 * DAY))
    assert pipeline.retain()["removed_files"] == 0
    pipeline.clock._since -= 3601
    assert pipeline.retain()["removed_files"] == 2
