"""Sequences that were sampled in several engine requests: joined part by part; more cases are in tests/unit/test_live.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from segments import RUN, sampled, trained
from store_work import Fed

from logprobe.collectors import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.placing import Part, trajectory
from logprobe.monitor.store.store import Store

METRICS = "SELECT metric, value FROM metrics WHERE metric IN ({})"


def metrics(fed: Fed, *names: str) -> dict[str, float]:
    listed = ", ".join(f"'{name}'" for name in names)
    return {row["metric"]: row["value"] for row in fed.rows(METRICS.format(listed))}


# Two turns with a tool's answer (90, 91) between; of the first, token 7 was sampled and never sent. r is −1, −2, …, t = r + 0.5.
TOKENS, MASK = [5, 6, 90, 91, 8, 9], [True, True, False, False, True, True]
TRAINED = trained(
    "a/0…b/0", token_ids=TOKENS, n=6, mask=MASK, received=False, weight_version="4",
    trainer_logprobs=[-0.5, -1.5, 0.0, 0.0, -0.5, -1.5],
)  # fmt: skip
FIRST = sampled("a/0", 3, token_ids=[5, 6, 7], version="2", prompt_length=10, cached_prefix_tokens=0, replica="dp0")
SECOND = sampled("b/0", 2, token_ids=[8, 9], version="4", prompt_length=14, cached_prefix_tokens=12, replica="dp1")
BY_ENGINE = (TRAINED | {"sample_id": "mine"}, FIRST | {"trajectory": "mine"}, SECOND | {"trajectory": "mine"})


def test_parts_are_joined_in_the_store(fed: Fed) -> None:
    for number, record in enumerate(BY_ENGINE):
        fed.feed("rollout" if number else "training", record)
    (row,) = fed.rows("SELECT * FROM sequences")
    assert (row["rollout_source"], row["joined_by"], row["alignment"]) == ("joined", "parts", "masked")
    assert (row["token_match"], row["length_match"], row["n"], row["sum_d"]) == (True, True, 4, 2.0)
    assert row["spans"] == [{"start": 0, "end": 2, "version": "2"}, {"start": 2, "end": 4, "version": "4"}]
    parts = [(part["sample_id"], part["start"], part["end"], part["cached_prefix_tokens"]) for part in row["parts"]]
    assert parts == [("a/0", 0, 2, 0), ("b/0", 2, 4, 12)]
    found = metrics(fed, "backend.coverage", "weight_lag_mean", "mixed_version_frac", "length_mismatch_frac")
    expected = {"backend.coverage": 1, "weight_lag_mean": 1, "mixed_version_frac": 1, "length_mismatch_frac": 0}
    assert found == expected
    tokens = fed.rows("SELECT rollout_logprob, weight_version FROM tokens ORDER BY position")
    assert [(t["rollout_logprob"], t["weight_version"]) for t in tokens] == [
        (-1, "2"), (-2, "2"), (None, None), (None, None), (-1, "4"), (-2, "4"),
    ]  # fmt: skip
    assert len(fed.rows("SELECT * FROM rollouts")) == 2


def part(prompt_length: int | None, *tokens: int) -> Part:
    return Part({"prompt_length": prompt_length, "spans": []}, np.array(tokens), np.zeros(len(tokens), np.float32))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part(10, 5, 6), part(14, 8, 9)], [(0, 2), (2, 4)]),
        ([part(None, 5, 6), part(None, 8, 9)], [(0, 2), (2, 4)]),  # it is unknown how long prompts were
        ([part(10, 5, 6, 8), part(14, 8, 9)], [(0, 2), (2, 4)]),  # sampled on, and the next request sampled the same
        ([part(10, 5, 6), part(14, 8)], [(0, 2), (2, 3)]),  # the trainer appended a token of its own
        ([part(10, 5, 6), part(14, 7, 9)], None),
        ([part(14, 5, 6), part(10, 8, 9)], [(0, 2), (2, 4)]),  # prompts that shrink say nothing about places
    ],
)
def test_places_of_parts(parts: list[Part], expected: list[tuple[int, int]] | None) -> None:
    found = trajectory(np.array(TOKENS), np.array(MASK), parts)
    assert (found.placed and [(place.start, place.end) for place in found.placed]) == expected


def test_a_part_of_which_the_trainer_left_out_a_token() -> None:
    tokens, mask = np.array([5, 6, 7, 8]), np.array([True, False, True, True])
    found = trajectory(tokens, mask, [part(3, 5, 6, 7), part(6, 8)])
    assert found.complete
    assert [place.theirs_P.tolist() for place in found.placed or ()] == [[0, 2], [0]]


def test_recorder_takes_tuples_of_names(home: Path) -> None:
    with Recorder(home, RUN) as recorder:
        tokens = [[1, 2], [3]]
        assert recorder.training(
            step=0, sample_ids=[("a/0", "b/0"), "c/0"], token_ids=tokens, trainer_logprobs=[[-1.0, -1.0], [-1.0]]
        )
        assert not recorder.training(step=0, sample_ids=[()], token_ids=[[1]], trainer_logprobs=[[-1.0]])
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        rows = store.query("SELECT sample_id, part_ids FROM training_sequences ORDER BY ALL").to_pylist()
    assert [tuple(row.values()) for row in rows] == [("a/0…b/0", ["a/0", "b/0"]), ("c/0", None)]
