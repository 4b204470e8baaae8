"""Laws that the sufficient statistics and the metrics obey on any input."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from logprobe.collectors.kernel.statistics import (
    BROKEN,
    COLUMN_SPECS,
    COLUMNS,
    empty,
    merge,
    sequence_statistics,
)
from logprobe.monitor import metrics

law = settings(deadline=None, max_examples=60)

JUNK = [float("nan"), math.inf, -math.inf, -9999.0, 1.0, 0.0, -0.0, 0.5, 1e-7, -1e30]
logprobs = st.floats(-40.0, 0.0, allow_subnormal=False)
anything = st.one_of(logprobs, st.sampled_from(JUNK))
token = st.tuples(anything, anything, st.booleans())
valid_token = st.tuples(
    st.floats(-40.0, -1e-3, allow_subnormal=False), st.floats(-40.0, -1e-3, allow_subnormal=False), st.just(True)
)
batches = st.lists(st.lists(token, max_size=12), max_size=8)
valid_batches = st.lists(st.lists(valid_token, min_size=1, max_size=12), min_size=1, max_size=8)
close_token = st.tuples(st.floats(-10.0, -1e-3), st.floats(-10.0, -1e-3), st.just(True))
close_batches = st.lists(st.lists(close_token, min_size=1, max_size=12), min_size=1, max_size=8)
worthless_token = st.one_of(
    st.tuples(anything, anything, st.just(False)),
    st.tuples(st.sampled_from([math.nan, -math.inf, -9999.0, 1.0, 0.5]), logprobs, st.just(True)),
    st.tuples(logprobs, st.sampled_from([math.nan, math.inf, -9999.0, 1.0, 0.5]), st.just(True)),
    st.tuples(st.just(0.0), st.floats(-40.0, -1.5), st.just(True)),
)
worthless_batches = st.lists(st.lists(worthless_token, max_size=12), max_size=8)


def columns_of(batch: list, dtype: type = np.float64) -> dict[str, np.ndarray]:
    flat = [item for sequence in batch for item in sequence]
    r, t, m = (np.array([item[i] for item in flat]) for i in range(3))
    offsets = np.cumsum([0, *map(len, batch)])
    return sequence_statistics(r.astype(dtype), t.astype(dtype), m, offsets)


def one_side_is_zero(sequence: list) -> bool:
    """Whether a side of two tokens or more is exactly 0 wherever it is no placeholder."""
    r, t = ([item[i] for item in sequence if item[2] and -9984 < item[i] <= 1e-6] for i in range(2))
    return any(len(side) > 1 and not any(side) for side in (r, t))


def values_of(batch: list) -> dict[str, float | None]:
    r, t, m = ([[item[i] for item in sequence] for sequence in batch] for i in range(3))
    return metrics.compute(r, t, m)


def total(columns: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: column[0].item() for name, column in merged(columns).items()}


def merged(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All sequences as one."""
    parts = (
        {name: column[place : place + 1] for name, column in columns.items()} for place in range(len(columns["n"]))
    )
    return reduce(merge, parts, empty(1))


def same(a: dict[str, float], b: dict[str, float], rel: float = 1e-12) -> None:
    for name in COLUMNS:
        # A sum may cancel; what rounding leaves is relative to its largest terms.
        scale = max(a["sum_exp_abs_d"], a["sum_policy2"] + a["sum_behaviour2"], 1.0)
        assert a[name] == pytest.approx(b[name], rel=rel, abs=rel * scale), name


@law
@given(batches, st.integers(0, 8), st.integers(0, 12), st.randoms(use_true_random=False))
def test_no_total_depends_on_shards_cuts_or_order(batch: list, shard: int, cut: int, random) -> None:
    whole = total(columns_of(batch))
    both = merge(*(merged(columns_of(part)) for part in (batch[:shard], batch[shard:])))
    same(whole, {name: column[0].item() for name, column in both.items()})
    shuffled = [random.sample(sequence, len(sequence)) for sequence in batch]
    random.shuffle(shuffled)
    same(whole, total(columns_of(shuffled)))
    pieces = [[sequence[:cut], sequence[cut:]] for sequence in batch]
    # What was never filled in is judged whole.
    cuttable = [at for at, some in enumerate(pieces) if not any(map(one_side_is_zero, [batch[at], *some]))]
    same(
        total(columns_of([batch[at] for at in cuttable])),
        total(columns_of([piece for at in cuttable for piece in pieces[at]])),
    )


@law
@given(batches)
def test_every_token_under_the_mask_is_valid_or_broken_of_one_kind_and_sums_are_finite(batch: list) -> None:
    columns = columns_of(batch)
    assert columns["n_expected"].tolist() == [sum(m for *_, m in sequence) for sequence in batch]
    broken = sum(columns[name] for name in BROKEN)
    assert (columns["n"] + broken).tolist() == columns["n_expected"].tolist()
    assert (columns["n_positive_d"] + columns["n_negative_d"] + columns["n_zero_d"]).tolist() == columns["n"].tolist()
    for column in COLUMN_SPECS:
        if column.reduction == "sum":
            assert np.isfinite(columns[column.name]).all(), column.name


@law
@given(worthless_batches)
def test_a_batch_without_a_valid_token_has_no_values(batch: list) -> None:
    counts = {"coverage", "nonfinite_tokens", "impossible_tokens", "clamped_tokens"}
    for key, value in values_of(batch).items():
        if key.startswith("backend.") and key.split(".")[1] not in counts:
            assert value is None, key


@law
@given(close_batches, st.floats(1e-12, 1e-5))
def test_close_to_agreement_every_divergence_is_quadratic(batch: list, scale: float) -> None:
    near = [[(r, min(r + scale * (t - r), 0.0), m) for r, t, m in sequence] for sequence in batch]
    values = values_of(near)
    k2 = values["backend.k2_kl"]
    third_order = 10 * scale * k2 + 1e-300  # |d| ≤ 10 before scaling
    assert values["backend.k3_kl"] == pytest.approx(k2, rel=1e-9, abs=third_order)
    assert values["backend.reverse_kl"] == pytest.approx(k2, rel=1e-9, abs=2 * third_order)


@law
@given(valid_batches)
def test_float32_and_float64_agree(batch: list) -> None:
    single = columns_of(batch, np.float32)
    widened = [[(float(np.float32(r)), float(np.float32(t)), m) for r, t, m in sequence] for sequence in batch]
    double = columns_of(widened)
    assert {name: column.tolist() for name, column in single.items()} == {n: c.tolist() for n, c in double.items()}


@law
@given(batches)
def test_layouts_agree(batch: list) -> None:
    assume(any(batch))
    r, t, m = _padded(batch)
    flat = [np.array([item[i] for sequence in batch for item in sequence]) for i in range(3)]
    packed = metrics.compute(*flat, cu_seqlens=np.cumsum([0, *map(len, batch)]))
    assert values_of(batch) == packed
    assert metrics.compute(np.array(r), np.array(t), np.array(m, bool)) == packed


def _padded(batch: list) -> list[list[list[float]]]:
    width = max(map(len, batch))
    filled = [[*sequence, *[(float("nan"), 0.0, False)] * (width - len(sequence))] for sequence in batch]
    return [[[item[i] for item in row] for row in filled] for i in range(3)]
