"""Which record of the engine belongs to which trained sequence, on a real store; the cases are in tests/unit/test_live.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from segments import at, records, sampled, trained
from store_work import Fed

from logprobe.collectors.spool.segments import SpoolWriter
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


MISSING = trained("a", 3, received=False)


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


def test_a_token_the_engine_did_not_sample_is_missing_and_not_a_match(fed: Fed):
    """A trainer that appends an end-of-sequence token of its own."""
    fed.feed("training", trained("a", received=False))
    fed.feed("rollout", sampled("a", 3))
    check(sequence(fed), alignment="prefix", token_match=True, length_match=False, n=3, n_expected=4)
    found = fed.rows("SELECT rollout_logprob AS r, weight_version AS v FROM tokens ORDER BY position")
    assert found[-1] == {"r": None, "v": None}


def test_of_several_records_that_do_not_match_the_newest_before_training_is_compared(fed: Fed):
    wrong = [sampled("a", token_ids=[i] * 4, time=at(i), request_id=f"at {i}") for i in (1, 2, 3, 4, 5)]
    fed.feed("rollout", *wrong)
    fed.feed("training", MISSING)  # trained at 3
    check(sequence(fed), rollout_source="unaligned", request_id="at 3")


def test_of_several_records_that_do_not_match_one_of_as_many_tokens_is_compared_before_a_nearer_one(fed: Fed):
    wrong = [sampled("a", n, token_ids=[9] * n, time=at(i), request_id=f"at {i}") for i, n in ((1, 4), (2, 3), (3, 5))]
    fed.feed("rollout", *wrong)
    fed.feed("training", MISSING)  # four tokens, trained at 3
    check(sequence(fed), rollout_source="unaligned", length_match=True, request_id="at 1")


ALIKE = [sampled("a", version=f"v{i}", logprobs=[-1.0 - i, -2.0, -3.0, -4.0], time=at(i)) for i in (1, 2)]


def test_without_raw_tokens_several_alike_are_ambiguous_too(fed: Fed):
    fed.feed("rollout", *ALIKE)
    fed.feed("training", MISSING)
    Retention(fed.store, RetentionPolicy(max_bytes=0)).run_once()
    fed.restart()
    fed.feed("training", trained("a", 4, received=False))
    assert joined(fed).ambiguous == 2


def test_runs_are_not_mixed(fed: Fed):
    SpoolWriter(fed.store.home.path, "other", "w").write("rollout", records("rollout", sampled("a")))
    fed.ingester.run_once()
    fed.feed("training", MISSING)
    assert joined(fed).linked == 0


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
