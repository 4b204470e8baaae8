"""What is said of the tokens of one sequence is what the statistics of that sequence are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor.analysis.token_view import (
    FIRST_BROKEN,
    SIDES,
    STATES,
    PairTokens,
    Tokens,
    pair_tokens,
    read_tokens,
    turn_starts,
    version_switches,
)
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.store.store import Store


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Reader]:
    """A home with the shipped runs, read without a service."""
    with open_reader(recorded_runs) as reader:
        yield reader


def of_step(store: Store, step: int) -> Tokens:
    """The tokens of the only training record of a step."""
    (key,) = store.query("SELECT segment_id, row FROM training_sequences WHERE step = ?", [step]).to_pylist()
    found = read_tokens(store, RUN, step, segment=key["segment_id"], row=key["row"])
    assert found is not None
    return found


def states(pair: PairTokens) -> list[str]:
    return [STATES[code] for code in pair.state_N]


def test_tokens_add_up_to_the_statistics_of_their_sequence(recorded: Reader) -> None:
    rows = recorded.query(
        "SELECT pair, step, segment_id, row, n, n_expected, sum_d, sum_k3, min_d, max_d FROM statistics WHERE run = 'v1-initial' AND step = 1 ORDER BY ALL LIMIT 24"
    ).to_pylist()
    assert {row["pair"] for row in rows} >= {"backend"}
    for row in rows:
        tokens = read_tokens(recorded, "v1-initial", 1, segment=row["segment_id"], row=row["row"])
        assert tokens is not None
        pair = pair_tokens(tokens, row["pair"])
        assert (pair.measured, pair.broken) == (row["n"], row["n_expected"] - row["n"])
        assert np.nansum(pair.k3_N) == pytest.approx(row["sum_k3"], rel=1e-9, abs=1e-15)
        assert pair.log_ratio == pytest.approx(row["sum_d"], rel=1e-9, abs=1e-12)
        assert (np.nanmin(pair.d_N), np.nanmax(pair.d_N)) == (row["min_d"], row["max_d"])
        assert pair.sequence_ratio == pytest.approx(math.exp(row["sum_d"]))
        assert pair.geometric_ratio == pytest.approx(math.exp(row["sum_d"] / row["n"]))


def test_each_token_has_a_state_and_only_measured_ones_a_value(store: Store) -> None:
    r = [-1.0, math.nan, -9999.0, 0.5, 0.0, -1.0, -1.0, -3.0]
    t = [-1.5, -1.0, -1.0, -1.0, -4.0, math.inf, -math.inf, -1.0]
    reference = {"trainer_logprobs": [-1.5, -0.5, -2.0, -3.0], "reference_logprobs": [-1.0, 0.0, 0.0, math.nan]}
    sides = {
        "current_logprobs": [-0.25, -1.0, -2.0, -3.0],
        "reference_logprobs": [-1.0, -2.0, -3.0, -4.0],
        "teacher_logprobs": [-0.25] * 4,
    }
    spans = [
        {"start": at, "end": end, "version": version} for at, end, version in ((0, 2, "4"), (2, 3, None), (3, 4, "5"))
    ]
    feed(
        store,
        training=[
            trained("broken", 0, n=8, rollout_logprobs=r, trainer_logprobs=t),
            trained("placeholder", 1, **reference),
            trained("joined", 2, received=False, mask=[False, True, True, True]),
            trained("sides", 3, **sides),
        ],
        rollout=[sampled("joined", logprobs=[-1.0, None, -3.0, -4.0], spans=spans)],
    )
    pair = pair_tokens(of_step(store, 0), "backend")
    assert states(pair) == [
        "measured", "nonfinite_behaviour", "sentinel_behaviour", "positive_behaviour", "zero_behaviour", "nonfinite_policy",
        "nonfinite_policy", "measured",
    ]  # fmt: skip
    assert pair.worst.tolist() == [1, 2, 3, 4, 5, 6, 7, 0], "broken ones come first"
    assert np.isnan(pair.d_N[1:7]).all()
    assert np.isnan(pair.ratio_N[1:7]).all()
    assert (pair.log_ratio, pair.measured, pair.broken) == (1.5, 2, 6)

    pair = pair_tokens(of_step(store, 1), "reference")  # 0 is a placeholder where the trainer is far from certain
    assert states(pair) == ["measured", "measured", "zero_policy", "nonfinite_policy"]
    assert pair.d_N[:2].tolist() == [0.5, 0.5]
    (known,) = store.query("SELECT n, n_expected FROM statistics WHERE pair = 'reference' AND step = 1").to_pylist()
    assert (known["n"], known["n_expected"]) == (pair.measured, pair.measured + pair.broken)

    tokens = of_step(store, 2)
    pair = pair_tokens(tokens, "backend")
    assert states(pair) == ["masked", "missing", "measured", "measured"]
    assert (pair.measured, pair.broken) == (2, 0), "what was not recorded is not broken"
    assert states(pair_tokens(tokens, "total")) == ["masked", "missing", "missing", "missing"]
    assert pair_tokens(tokens, "update").sequence_ratio is None
    assert [None if code < 0 else tokens.versions[code] for code in tokens.version_N] == ["4", "4", None, "5"]
    assert version_switches(tokens.version_N).tolist() == [3], "unknown is no switch"

    found = {name: pair_tokens(of_step(store, 3), name).d_N[0] for name in SIDES}
    assert found == {"backend": 0.5, "update": 0.25, "total": 0.75, "reference": -0.5, "teacher": 0.25}


def test_a_turn_begins_after_what_is_not_trained_on() -> None:
    assert turn_starts(np.array([0, 1, 1, 0, 0, 1], bool)).tolist() == [1, 5]
    assert turn_starts(np.array([1, 1], bool)).tolist() == [0]
    assert turn_starts(np.zeros(0, bool)).tolist() == []


def test_tokens_that_are_not_kept_are_none(recorded: Reader) -> None:
    assert read_tokens(recorded, "v1-initial", 1, segment="gone", row=0) is None
    assert STATES.index("nonfinite_behaviour") == FIRST_BROKEN
