"""torch and numpy agree: in the metrics, and in what a recorder captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.collectors.recorder import batches
from logprobe.collectors.recorder.capture import Call, Capturer
from logprobe.collectors.recorder.ring import Ring
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


def captured(batch: list, dtype: torch.dtype, layout: str, *, strided: bool, given_as: str) -> batches.Batch:
    (rollout, trainer, advantages, mask), offsets = columns_of(batch, dtype)
    arrays = given_as == "arrays" and dtype is not torch.bfloat16

    def given(column: torch.Tensor) -> Any:
        found = laid_out(column, offsets, layout, strided=strided)
        if not arrays:
            return found
        return [each.numpy() for each in found] if layout == "list" else found.numpy()

    call = Call(
        "training",
        token_ids=given(torch.arange(len(mask))),
        sample_ids=[f"s{i}" for i in range(len(batch))],
        cu_seqlens=offsets if layout == "packed" else None,
    )
    for name, column in {"trainer_logprobs": trainer, "rollout_logprobs": rollout, "advantages": advantages}.items():
        call.tokens_of(name, given(column.requires_grad_(given_as.endswith("gradients"))))
    call.mask(given(mask))
    assert Capturer(Ring(1 << 26)).copy(call)
    return batches.decode(call)


@law
@given(
    sequences,
    st.sampled_from(DTYPES),
    st.sampled_from(["padded", "packed", "list"]),
    st.booleans(),
    st.sampled_from(["tensors", "tensors with gradients", "arrays"]),
)
def test_what_a_recorder_captures(batch: list, dtype: torch.dtype, layout: str, strided: bool, given_as: str) -> None:
    found = captured(batch, dtype, layout, strided=strided, given_as=given_as)
    (rollout, trainer, advantages, mask), offsets = columns_of(batch, dtype)
    if layout == "padded":  # rows are trimmed to what is under the mask
        kept = torch.cat([_from_first_to_last(part) for part in mask.split(np.diff(offsets).tolist())])
    else:
        kept = torch.ones_like(mask)
    expected = {"trainer_logprobs": trainer, "rollout_logprobs": rollout, "advantages": advantages}
    for name, column in expected.items():
        np.testing.assert_array_equal(found.floats[name], column[kept].float().numpy(), name)
    np.testing.assert_array_equal(found.full_mask(), mask[kept].numpy())
    assert found.token_ids.tolist() == torch.arange(len(mask))[kept].tolist()
    lengths = [int(part.sum()) for part in kept.split(np.diff(offsets).tolist())]
    assert np.diff(found.offsets).tolist() == lengths


def _from_first_to_last(mask: torch.Tensor) -> torch.Tensor:
    after, before = mask.int().cumsum(0) > 0, mask.int().flip(0).cumsum(0).flip(0) > 0
    return after & before
