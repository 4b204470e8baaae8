"""Which record of the engine belongs to which trained sequence, on a real store; the cases are in tests/unit/test_live.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from segments import sampled, trained
from store_work import Fed

from logprobe.monitor.live import sequences
from logprobe.monitor.store.retention import Retention, RetentionPolicy

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


def joined(fed: Fed) -> Joined:
    return Joined(**fed.rows(JOINED)[0])


def sequence(fed: Fed, sample_id: str = "a") -> dict:
    (row,) = fed.rows("SELECT * FROM sequences WHERE sample_id = ?", sample_id)
    return row


def check(row: dict, **expected) -> None:
    assert {name: row[name] for name in expected} == expected


def test_tokens_see_the_joined_logprobs_and_the_versions_in_their_places(fed: Fed):
    spans = [{"start": 0, "end": 1, "version": "v1"}, {"start": 1, "end": 3, "version": "v2"}]
    prompt_and_tool = trained(
        "a", token_ids=[90, 0, 91, 1, 2], n=5, received=False, mask=[False, True, False, True, True]
    )
    fed.feed("training", prompt_and_tool)
    fed.feed("rollout", sampled("a", 3, spans=spans))
    check(sequence(fed), rollout_source="joined", alignment="masked", token_match=True, n=3, n_expected=3, n_total=5)
    found = fed.rows("SELECT token_id, rollout_logprob, weight_version FROM tokens ORDER BY position")
    assert [row["token_id"] for row in found] == [90, 0, 91, 1, 2]
    sampled_only = [row for row in found if row["token_id"] < 90]
    assert [(row["rollout_logprob"], row["weight_version"]) for row in sampled_only] == [
        (-1.0, "v1"),
        (-2.0, "v2"),
        (-3.0, "v2"),
    ]
    assert [row["rollout_logprob"] for row in found if row["token_id"] >= 90] == [None, None]


def test_tokens_masked_out_of_a_fully_aligned_sequence_keep_their_places(fed: Fed):
    fed.feed("training", trained("a", received=False, mask=[True, False, True, False]))
    fed.feed("rollout", sampled("a"))
    check(sequence(fed), alignment="all", token_match=True, n=2, sum_d=1.0)
    found = fed.rows("SELECT rollout_logprob AS r, weight_version AS v FROM tokens ORDER BY position")
    assert found == [{"r": -float(i + 1), "v": "v1"} for i in range(4)]


def test_without_raw_tokens_fingerprints_decide(fed: Fed):
    same, other = sampled("a"), sampled("b", token_ids=[4, 4, 4, 4])
    fed.feed("rollout", same, other, sampled("c", 2), sampled("d"))
    Retention(fed.store, RetentionPolicy(max_bytes=0)).run_once()
    fed.restart()
    masked = trained("d", received=False, mask=[True, False, True, True])
    rows = [trained(name, received=False) for name in "abc"]
    fed.feed("training", *rows, masked)
    report = joined(fed)
    assert (report.linked, report.joined) == (4, 0)
    check(sequence(fed, "a"), rollout_source="missing", token_match=True, length_match=True, alignment="all", n=None)
    check(sequence(fed, "b"), rollout_source="unaligned", token_match=False, length_match=True, alignment=None)
    check(sequence(fed, "c"), rollout_source="unaligned", token_match=False, length_match=False, alignment=None)
    check(sequence(fed, "d"), rollout_source="missing", token_match=None, length_match=True, alignment=None)


def test_many_batches_come_to_the_same_as_one(fed: Fed, monkeypatch):
    monkeypatch.setattr(sequences, "TOKENS_PER_BATCH", 100)
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 40, 60)
    fed.feed("rollout", *(sampled(f"{i}", int(n)) for i, n in enumerate(lengths)))
    rows = (trained(f"{i}", i // 8, int(n), received=False) for i, n in enumerate(lengths))
    fed.feed("training", *rows)
    assert joined(fed).joined == 60
    found = {
        row["sample_id"]: (row["n"], row["sum_d"]) for row in fed.rows("SELECT sample_id, n, sum_d FROM sequences")
    }
    assert found == {f"{i}": (n, n * 0.5) for i, n in enumerate(lengths)}
