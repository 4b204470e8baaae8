"""The worst sequences of a step, and broken tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store


def sequences(source: Source, run: str, step: int, pair: str = "backend", **asked: Any) -> list[dict[str, Any]]:
    asked = {"count": 10, "others": 3, "sample": None} | asked
    return queries.app_tokens_sequences(source, run=run, step=step, pair=pair, **asked).to_pylist()


def test_sequences_are_ranked_by_what_they_add_to_k3(recorded_runs: Path) -> None:
    with open_reader(recorded_runs) as recorded:
        found = sequences(recorded, "v1-initial", 2, count=3)
        sums = recorded.query(
            "SELECT sample_id, sum_k3, sum(sum_k3) OVER () AS whole FROM sequences "
            "WHERE run = 'v1-initial' AND step = 2 ORDER BY sum_k3 DESC"
        ).to_pylist()
        last = sums[-1]["sample_id"]
        assert sequences(recorded, "v1-initial", 2, count=3, sample=last)[3]["sample_id"] == last
    assert [row["sample_id"] for row in found] == [row["sample_id"] for row in sums[:3]]
    assert [row["share"] for row in found] == pytest.approx([row["sum_k3"] / row["whole"] for row in sums[:3]])
    assert all(row["spans"] for row in found)


def test_broken_comes_first_and_what_has_no_valid_token_has_no_values(store: Store) -> None:
    nan, current = math.nan, [-1.0, -2.0, -3.0, -4.0]
    rows = [
        trained("far", trainer_logprobs=[-1.0, -90.0, -3.0, -4.0]),
        trained("broken", trainer_logprobs=[-1.0, -2.0, nan, -4.0]),
        trained("fine", current_logprobs=current),
        trained("nothing", 1, trainer_logprobs=[nan] * 4),
        *(trained(f"unmeasured {at}", received=False) for at in range(4)),
    ]
    feed(store, training=rows)
    found = [(row["sample_id"], row["broken"], row["tokens"]) for row in sequences(store, RUN, 0)]
    measured = [("broken", 1, 3), ("far", 0, 4), ("fine", 0, 4)]
    assert found == [*measured, *((f"unmeasured {at}", None, 4) for at in range(3))]
    (row,) = sequences(store, RUN, 1)
    assert [row[name] for name in ("tokens", "broken", "k3_kl", "log_ratio_min", "share")] == [0, 4, None, None, None]
    (row,) = sequences(store, RUN, 0, "update", others=0)
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
