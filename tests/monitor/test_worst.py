"""The worst sequences and tokens of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor.analysis import worst
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.store.store import Store


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Reader]:
    """A home with the shipped runs, read without a service."""
    with open_reader(recorded_runs) as reader:
        yield reader


def test_sequences_are_ranked_by_what_they_add_to_k3(recorded: Reader) -> None:
    table = worst.sequences(recorded, "v1-initial", steps=(2, 3), count=3)
    assert table["step"].to_pylist() == [2, 2, 2, 3, 3, 3]
    assert table["place"].to_pylist() == [1, 2, 3, 1, 2, 3]
    sums = recorded.query(
        "SELECT step, sample_id, sum_k3, sum(sum_k3) OVER (PARTITION BY step) AS whole FROM sequences "
        "WHERE run = 'v1-initial' AND step IN (2, 3) ORDER BY step, sum_k3 DESC"
    ).to_pylist()
    wanted = [row for step in (2, 3) for row in [row for row in sums if row["step"] == step][:3]]
    assert table["sample_id"].to_pylist() == [row["sample_id"] for row in wanted]
    assert table["share"].to_pylist() == pytest.approx([row["sum_k3"] / row["whole"] for row in wanted])
    assert all(spans for spans in table["spans"].to_pylist())


def test_tokens_of_a_run_are_read_from_its_own_files(store: Store) -> None:
    feed(store, training=[trained("a", 0)])
    other = store.home.raw / "other" / "training" / "damaged.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"not Parquet")
    assert worst.tokens(store, RUN, steps=(0, 0), count=1).num_rows == 1
    assert worst.tokens(store, "unknown", steps=(0, 0), count=1).num_rows == 0


def test_tokens_are_ranked_by_their_gap(recorded: Reader) -> None:
    table = worst.tokens(recorded, "v1-initial", steps=(2, 3), count=4)
    gaps = recorded.query(
        "SELECT step, abs(log_ratio) AS gap FROM tokens WHERE run = 'v1-initial' AND step IN (2, 3) AND mask"
    ).to_pylist()
    for step in (2, 3):
        largest = sorted((row["gap"] for row in gaps if row["step"] == step), reverse=True)[:4]
        found = [row for row in table.to_pylist() if row["step"] == step]
        assert [abs(row["log_ratio"]) for row in found] == largest
        assert [row["place"] for row in found] == [1, 2, 3, 4]


def test_broken_comes_first_and_what_has_no_valid_token_has_no_values(store: Store) -> None:
    nan, current = math.nan, [-1.0, -2.0, -3.0, -4.0]
    rows = [
        trained("far", trainer_logprobs=[-1.0, -90.0, -3.0, -4.0]),
        trained("broken", trainer_logprobs=[-1.0, -2.0, nan, -4.0]),
        trained("fine", current_logprobs=current),
        trained("nothing", 1, trainer_logprobs=[nan] * 4),
    ]
    feed(store, training=rows)
    found = worst.sequences(store, RUN).to_pylist()
    assert [(row["sample_id"], row["broken"]) for row in found] == [
        ("broken", 1),
        ("far", 0),
        ("fine", 0),
        ("nothing", 4),
    ]
    values = [found[3][name] for name in ("tokens", "k3_kl", "log_ratio_min", "share")]
    assert values == [0, None, None, None]
    tokens = worst.tokens(store, RUN, steps=(0, 0), count=2).to_pylist()
    assert [(row["sample_id"], row["position"], row["broken"]) for row in tokens] == [
        ("broken", 2, "nonfinite"),
        ("far", 1, None),
    ]
    (row,) = worst.sequences(store, RUN, pair="update").to_pylist()
    assert (row["sample_id"], row["log_ratio_mean"]) == ("fine", -0.5)


BROKEN: list[tuple[float, float, str | None]] = [
    (-1.0, math.nan, "nonfinite"), (-math.inf, -1.0, "nonfinite"), (-9999.0, -1.0, "sentinel"), (-1.0, 1.0, "sentinel"),
    (0.25, -1.0, "positive"), (0.0, -8.0, "zero"), (0.0, -0.5, None), (5e-7, -0.5, None), (-9983.0, -0.5, None),
]  # fmt: skip


def test_tokens_are_broken_by_the_rules_of_the_statistics(store: Store) -> None:
    """Log-probs of engine and trainer, and what both are called."""
    feed(
        store,
        rollout=[sampled(str(row), n=2, logprobs=[-0.5, r]) for row, (r, _, _) in enumerate(BROKEN)],
        training=[
            trained(str(row), n=2, received=False, trainer_logprobs=[-0.5, t]) for row, (_, t, _) in enumerate(BROKEN)
        ],
    )
    by_token = store.query("SELECT broken FROM tokens ORDER BY sample_id, position")["broken"].to_pylist()
    assert by_token == [each for _, _, kind in BROKEN for each in (None, kind)]
    counted = store.query(
        "SELECT n_nonfinite_behaviour + n_nonfinite_policy AS nonfinite, n_sentinel_behaviour + "
        "n_sentinel_policy AS sentinel, n_positive_behaviour + n_positive_policy AS positive, "
        "n_zero_behaviour AS zero FROM sequences ORDER BY sample_id"
    ).to_pylist()
    assert counted == [{name: int(name == kind) for name in counted[0]} for _, _, kind in BROKEN]


def test_masked_and_missing_tokens_are_not_ranked(store: Store) -> None:
    mask = np.array([True, False, True, True]).tolist()
    feed(
        store,
        training=[trained("a", mask=mask, trainer_logprobs=[-1.0, -90.0, -3.0, -4.0]), trained("b", received=False)],
    )
    rows = worst.tokens(store, RUN, steps=(None, None)).to_pylist()
    assert [(row["sample_id"], row["position"]) for row in rows] == [("a", 0), ("a", 2), ("a", 3)]
