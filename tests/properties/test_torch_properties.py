"""torch and numpy agree: in the statistics, in the metrics, and in what a recorder captures and reduces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.collectors.kernel.statistics import COLUMN_SPECS, Bounds, Statistics, sequence_statistics
from logprobe.collectors.recorder import batches
from logprobe.collectors.recorder.buffers import Budget
from logprobe.collectors.recorder.capture import Call, Capturer
from logprobe.collectors.recorder.reduction import reduce
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.monitor import metrics

law = settings(deadline=None, max_examples=60)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
JUNK = [float("nan"), float("inf"), float("-inf"), -9999.0, 1.0, 0.0, -0.0, 0.5, 1e-7, -300.0]
value = st.one_of(st.floats(-40.0, 0.0, allow_subnormal=False), st.sampled_from(JUNK))
token = st.tuples(value, value, value, st.booleans())
sequences = st.lists(st.lists(token, max_size=12), min_size=1, max_size=8)


def columns_of(batch: list, dtype: torch.dtype) -> tuple[list[torch.Tensor], np.ndarray]:
    """Rollout, trainer, advantages [N] of `dtype`, mask [N]; offsets [S1]."""
    flat = [item for sequence in batch for item in sequence]
    floats = [torch.tensor([item[i] for item in flat], dtype=dtype) for i in range(3)]
    return [*floats, torch.tensor([item[3] for item in flat], dtype=torch.bool)], np.cumsum([0, *map(len, batch)])


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def assert_agree(found: Statistics, expected: Statistics) -> None:
    for column in COLUMN_SPECS:
        a, b = found[column.name], expected[column.name]
        assert a.dtype == b.dtype == column.dtype
        if column.reduction != "sum" or column.count:
            assert a.tolist() == b.tolist(), column.name
        else:  # what rounding leaves of a sum that cancels is relative to its largest terms
            scale = expected["sum_exp_abs_d"] + expected["sum_policy2"] + expected["sum_behaviour2"]
            np.testing.assert_array_less(np.abs(a - b), 1e-12 * np.abs(b) + 1e-14 * scale + 1e-300, column.name)


@law
@given(sequences, st.sampled_from(DTYPES))
def test_statistics_of_tensors_are_those_of_arrays(batch: list, dtype: torch.dtype) -> None:
    (rollout, trainer, advantages, mask), offsets = columns_of(batch, dtype)
    options: dict[str, Any] = {"bounds": Bounds(0.8, 1.2)}
    found = sequence_statistics(rollout, trainer, mask, offsets, advantages_N=advantages, **options)
    arrays = wide(rollout), wide(trainer), mask.numpy(), offsets
    assert_agree(found, sequence_statistics(*arrays, advantages_N=wide(advantages), **options))
    beside = sequence_statistics(
        rollout.double().numpy(), trainer, mask.numpy(), offsets, advantages_N=advantages, **options
    )
    assert_agree(beside, found)


@law
@given(sequences, st.integers(1, 5), st.integers(5, 20))
def test_how_torch_cuts_into_pieces_and_chunks_does_not_matter(batch: list, piece: int, chunk: int) -> None:
    (rollout, trainer, _, mask), offsets = columns_of(batch, torch.float64)
    expected = sequence_statistics(rollout, trainer, mask, offsets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logprobe.collectors.kernel.arithmetic.CHUNK", piece)
        patch.setattr("logprobe.collectors.kernel.torch_arithmetic.CHUNK", chunk)
        assert_agree(sequence_statistics(rollout, trainer, mask, offsets), expected)


@law
@given(sequences, st.sampled_from(DTYPES), st.booleans())
def test_metrics_of_tensors_are_those_of_arrays(batch: list, dtype: torch.dtype, gradients: bool) -> None:
    (rollout, trainer, current, mask), offsets = columns_of(batch, dtype)
    expected = metrics.compute(
        wide(rollout), wide(trainer), mask.numpy(), current_logprobs=wide(current), cu_seqlens=offsets
    )
    tensors = [tensor.clone().requires_grad_(gradients) for tensor in (rollout, trainer, current)]
    found = metrics.compute(*tensors[:2], mask, current_logprobs=tensors[2], cu_seqlens=torch.from_numpy(offsets))
    assert found == expected


@law
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), min_size=1, max_size=8))
def test_token_hash_of_tensors_is_that_of_arrays(ids: list) -> None:
    flat = np.array([token for sequence in ids for token in sequence], np.int32)
    offsets = np.cumsum([0, *map(len, ids)])
    assert token_hash(torch.from_numpy(flat), offsets).tolist() == token_hash(flat, offsets).tolist()


# --- What a recorder captures ---


def laid_out(column: torch.Tensor, offsets: np.ndarray, layout: str, *, strided: bool) -> Any:
    """A column in one of the three layouts; `strided`: every other element of something twice as long."""
    pieces = list(column.split(np.diff(offsets).tolist()))
    if layout == "padded":
        pieces = [torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)]
    elif layout == "packed":
        pieces = [column]
    if strided:
        pieces = [torch.stack([piece, piece], -1)[..., 0] for piece in pieces]
    return pieces if layout == "list" else pieces[0]


def captured(batch: list, dtype: torch.dtype, layout: str, device: Any, **shape: bool) -> batches.Batch:
    (rollout, trainer, advantages, mask), offsets = columns_of(batch, dtype)
    gradients = shape.pop("gradients")
    floats = {"trainer_logprobs": trainer, "rollout_logprobs": rollout, "advantages": advantages}
    ids = laid_out(torch.arange(len(mask)), offsets, layout, **shape)
    call = Call(
        "training",
        token_ids=ids,
        sample_ids=[f"s{i}" for i in range(len(batch))],
        cu_seqlens=offsets if layout == "packed" else None,
    )
    for name, column in floats.items():
        call.tokens_of(name, laid_out(column.requires_grad_(gradients), offsets, layout, **shape))
    call.mask(laid_out(mask, offsets, layout, **shape))
    call.device = device
    assert Capturer(Budget(1 << 26)).copy(call)
    return batches.decode(call)


@law
@given(
    sequences,
    st.sampled_from(DTYPES),
    st.sampled_from(["padded", "packed", "list"]),
    st.booleans(),
    st.booleans(),
)
def test_what_a_recorder_captures_and_reduces(
    batch: list, dtype: torch.dtype, layout: str, strided: bool, gradients: bool
) -> None:
    shape = {"strided": strided, "gradients": gradients}
    host = captured(batch, dtype, layout, None, **shape)
    there = captured(batch, dtype, layout, torch.device("cpu"), **shape)
    assert isinstance(there.floats["trainer_logprobs"], torch.Tensor)
    (rollout, trainer, advantages, mask), offsets = columns_of(batch, dtype)
    if layout == "padded":  # rows are trimmed to what is under the mask
        kept = torch.cat([_from_first_to_last(part) for part in mask.split(np.diff(offsets).tolist())])
    else:
        kept = torch.ones_like(mask)
    expected = {"trainer_logprobs": trainer, "rollout_logprobs": rollout, "advantages": advantages}
    for found in (host, there.on_host()):
        for name, column in expected.items():
            np.testing.assert_array_equal(found.floats[name], column[kept].float().numpy(), name)
        np.testing.assert_array_equal(found.full_mask(), mask[kept].numpy())
        assert found.token_ids.tolist() == torch.arange(len(mask))[kept].tolist()
        assert found.offsets.tolist() == host.offsets.tolist()
    ours, theirs = reduce(there, rank=0), reduce(host, rank=0)
    assert_agree(ours.pairs["backend"], theirs.pairs["backend"])
    for name in ("n_total", "n_expected", "token_hash"):
        assert ours.table[name].equals(theirs.table[name]), name


def _from_first_to_last(mask: torch.Tensor) -> torch.Tensor:
    after, before = mask.int().cumsum(0) > 0, mask.int().flip(0).cumsum(0).flip(0) > 0
    return after & before
