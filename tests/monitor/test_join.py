"""Which record of the engine belongs to which trained sequence, on a real store; the cases are in tests/unit/test_live.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from segments import RUN, at, records, sampled, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live import sequences
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

JOINED = """
SELECT count(rollout_segment) AS linked, count(*) FILTER (rollout_source = 'joined') AS joined,
       count(*) FILTER (rollout_source = 'unaligned') AS unaligned, count(*) FILTER (joined_by = 'ambiguous') AS ambiguous
FROM training_sequences
"""


class Joined(NamedTuple):
    """How many sequences the store has of each kind."""

    linked: int
    joined: int
    unaligned: int
    ambiguous: int


class Pipeline:
    """Spool → store, in the hand of a test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = SpoolWriter(store.home.path, RUN, "w")
        self.ingester = Ingester(store)

    def ingest(self, kind: str, *rows: dict) -> None:
        self.writer.write(kind, records(kind, *rows))
        self.ingester.run_once()

    def restart(self) -> None:
        self.ingester = Ingester(self.store)

    def feed(self, kind: str, *rows: dict) -> Joined:
        self.ingest(kind, *rows)
        return Joined(**self.rows(JOINED)[0])

    def sequence(self, sample_id: str = "a") -> dict:
        (row,) = self.store.query("SELECT * FROM sequences WHERE sample_id = ?", [sample_id]).to_pylist()
        return row

    def rows(self, sql: str) -> list[dict]:
        return self.store.query(sql).to_pylist()


@pytest.fixture
def pipeline(home: Path) -> Iterator[Pipeline]:
    with Store.open(Home(home)) as store:
        yield Pipeline(store)


def check(row: dict, **expected) -> None:
    assert {name: row[name] for name in expected} == expected


MISSING = trained("a", 3, received=False)


def test_tokens_see_the_joined_logprobs_and_the_versions_in_their_places(pipeline: Pipeline):
    spans = [{"start": 0, "end": 1, "version": "v1"}, {"start": 1, "end": 3, "version": "v2"}]
    prompt_and_tool = trained(
        "a", token_ids=[90, 0, 91, 1, 2], n=5, received=False, mask=[False, True, False, True, True]
    )
    pipeline.ingest("training", prompt_and_tool)
    pipeline.feed("rollout", sampled("a", 3, spans=spans))
    check(
        pipeline.sequence(), rollout_source="joined", alignment="masked", token_match=True, n=3, n_expected=3, n_total=5
    )
    found = pipeline.rows("SELECT token_id, rollout_logprob, weight_version FROM tokens ORDER BY position")
    assert [row["token_id"] for row in found] == [90, 0, 91, 1, 2]
    sampled_only = [row for row in found if row["token_id"] < 90]
    assert [(row["rollout_logprob"], row["weight_version"]) for row in sampled_only] == [
        (-1.0, "v1"),
        (-2.0, "v2"),
        (-3.0, "v2"),
    ]
    assert [row["rollout_logprob"] for row in found if row["token_id"] >= 90] == [None, None]


def test_tokens_masked_out_of_a_fully_aligned_sequence_keep_their_places(pipeline: Pipeline):
    pipeline.ingest("training", trained("a", received=False, mask=[True, False, True, False]))
    pipeline.feed("rollout", sampled("a"))
    check(pipeline.sequence(), alignment="all", token_match=True, n=2, sum_d=1.0)
    found = pipeline.rows("SELECT rollout_logprob AS r, weight_version AS v FROM tokens ORDER BY position")
    assert found == [{"r": -float(i + 1), "v": "v1"} for i in range(4)]


def test_a_token_the_engine_did_not_sample_is_missing_and_not_a_match(pipeline: Pipeline):
    """A trainer that appends an end-of-sequence token of its own."""
    pipeline.ingest("training", trained("a", received=False))
    pipeline.feed("rollout", sampled("a", 3))
    check(pipeline.sequence(), alignment="prefix", token_match=True, length_match=False, n=3, n_expected=4)
    found = pipeline.rows("SELECT rollout_logprob AS r, weight_version AS v FROM tokens ORDER BY position")
    assert found[-1] == {"r": None, "v": None}


def test_of_several_records_that_do_not_match_the_newest_before_training_is_compared(pipeline: Pipeline):
    wrong = [sampled("a", token_ids=[i] * 4, time=at(i), request_id=f"at {i}") for i in (1, 2, 3, 4, 5)]
    pipeline.ingest("rollout", *wrong)
    pipeline.feed("training", MISSING)  # trained at 3
    check(pipeline.sequence(), rollout_source="unaligned", request_id="at 3")


ALIKE = [sampled("a", version=f"v{i}", logprobs=[-1.0 - i, -2.0, -3.0, -4.0], time=at(i)) for i in (1, 2)]


def test_without_raw_tokens_several_alike_are_ambiguous_too(pipeline: Pipeline):
    pipeline.ingest("rollout", *ALIKE)
    pipeline.ingest("training", MISSING)
    Retention(pipeline.store, RetentionPolicy(max_bytes=0)).run_once()
    pipeline.restart()
    assert pipeline.feed("training", trained("a", 4, received=False)).ambiguous == 2


def test_runs_are_not_mixed(pipeline: Pipeline):
    SpoolWriter(pipeline.store.home.path, "other", "w").write("rollout", records("rollout", sampled("a")))
    pipeline.ingester.run_once()
    assert pipeline.feed("training", MISSING).linked == 0


def test_without_raw_tokens_fingerprints_decide(pipeline: Pipeline):
    same, other = sampled("a"), sampled("b", token_ids=[4, 4, 4, 4])
    pipeline.ingest("rollout", same, other, sampled("c", 2), sampled("d"))
    Retention(pipeline.store, RetentionPolicy(max_bytes=0)).run_once()
    pipeline.restart()
    masked = trained("d", received=False, mask=[True, False, True, True])
    rows = [trained(name, received=False) for name in "abc"]
    report = pipeline.feed("training", *rows, masked)
    assert (report.linked, report.joined) == (4, 0)
    check(
        pipeline.sequence("a"), rollout_source="missing", token_match=True, length_match=True, alignment="all", n=None
    )
    check(pipeline.sequence("b"), rollout_source="unaligned", token_match=False, length_match=True, alignment=None)
    check(pipeline.sequence("c"), rollout_source="unaligned", token_match=False, length_match=False, alignment=None)
    check(pipeline.sequence("d"), rollout_source="missing", token_match=None, length_match=True, alignment=None)


def test_many_batches_come_to_the_same_as_one(pipeline: Pipeline, monkeypatch):
    monkeypatch.setattr(sequences, "TOKENS_PER_BATCH", 100)
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 40, 60)
    pipeline.ingest("rollout", *(sampled(f"{i}", int(n)) for i, n in enumerate(lengths)))
    rows = (trained(f"{i}", i // 8, int(n), received=False) for i, n in enumerate(lengths))
    assert pipeline.feed("training", *rows).joined == 60
    found = {
        row["sample_id"]: (row["n"], row["sum_d"]) for row in pipeline.rows("SELECT sample_id, n, sum_d FROM sequences")
    }
    assert found == {f"{i}": (n, n * 0.5) for i, n in enumerate(lengths)}
