"""Layouts, types and trimming: what a host hands over is what is recorded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays
from logprobe.collectors.recorder.batches import Batch, decode
from logprobe.collectors.recorder.capture import Call, Capturer
from logprobe.collectors.recorder.ring import Ring
from logprobe.collectors.recorder.token_hash import _CHUNK, token_hash


def captured(call: Call) -> Batch:
    assert Capturer(Ring(1 << 26)).copy(call)
    return decode(call)


def training_call(token_ids, trainer_logprobs, *, mask=None, cu_seqlens=None, **tokens) -> Batch:
    count = len(token_ids) if cu_seqlens is None else len(cu_seqlens) - 1
    call = Call("training", token_ids=token_ids, sample_ids=[f"s{i}" for i in range(count)], cu_seqlens=cu_seqlens)
    call.require("trainer_logprobs", trainer_logprobs)
    call.mask(mask)
    for name, value in tokens.items():
        call.tokens_or_numbers(name, value)
    return captured(call)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_batches_are_no_error(shape):
    batch = training_call(np.zeros(shape, int), np.zeros(shape), mask=np.ones(shape))
    assert (batch.sequences, batch.tokens) == (shape[0], 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.uint8])
def test_masks_of_every_type(dtype):
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]]).to(dtype)
    batch = training_call(torch.arange(6).reshape(2, 3), torch.zeros(2, 3), mask=mask)
    assert batch.token_ids.tolist() == [1, 2, 3]


def test_flash_attention_shape_and_padding_around_packed_sequences():
    cu_seqlens = torch.tensor([1, 3, 6], dtype=torch.int32)
    batch = training_call(torch.arange(8)[None], torch.arange(8.0)[None], cu_seqlens=cu_seqlens)
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    "advantages", [np.array([2.0, 3.0]), np.array([[2.0], [3.0]]), [2.0, 3.0], torch.tensor([2.0, 3.0])]
)
def test_advantages_per_sequence_become_per_token(advantages):
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    batch = training_call(np.ones((2, 3), int), np.zeros((2, 3)), mask=mask, advantages=advantages)
    assert batch.floats["advantages"].tolist() == [2, 2, 3, 3, 3]


def test_none_in_a_list_is_missing_and_nan_is_data():
    batch = training_call([[1, 2, 3]], [[-1.0, None, float("nan")]])
    assert batch.missing["trainer_logprobs"].tolist() == [False, True, False]
    assert np.isnan(batch.floats["trainer_logprobs"]).tolist() == [False, True, True]


@pytest.mark.parametrize("time", [3, 2 << 20])  # small arrays are copied as bytes
def test_what_a_masked_array_hides_is_no_number(time):
    hidden = np.ma.masked_array(np.full((1, time), -1.0), mask=[[False, True] + [False] * (time - 2)])
    batch = training_call(np.ones((1, time), int), hidden, mask=np.ma.masked_array(np.ones((1, time)), mask=False))
    assert np.isnan(batch.floats["trainer_logprobs"][:3]).tolist() == [False, True, False]


@pytest.mark.parametrize("column", [pl.Series, pa.array, np.array])
def test_columns_of_every_library_name_sequences(column):
    assert arrays.host_list("sample_ids", column(["a", "b"]), 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("label", "words"),
    [(3.0, "3"), (3.5, "3.5"), (np.int64(3), "3"), (torch.tensor(3.0), "3"), (b"a/0", "a/0"), (None, None)],
)
def test_a_label_of_any_type_is_the_same_text_on_both_sides(label, words):
    assert arrays.text(label) == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"token_ids": np.zeros(6, int), "trainer_logprobs": np.zeros(6)}, "cu_seqlens"),
        (
            {"token_ids": np.full((2, 3), "a"), "trainer_logprobs": np.zeros((2, 3))},
            "has no numbers; pass an array of numbers",
        ),
        (
            {"token_ids": np.zeros((2, 3)), "trainer_logprobs": np.zeros((2, 3))},
            "is not an integer type; pass integers",
        ),
        ({"token_ids": [[1, 2], [3]], "trainer_logprobs": [[0.0], [0.0, 0.0]], "mask": None}, "one value per token"),
        ({"token_ids": [[1, 2], [3]], "trainer_logprobs": np.zeros(3), "mask": None}, "pass the same layout"),
        ({"token_ids": [[[1, 2]]], "trainer_logprobs": [[[0.0, 0.0]]], "mask": None}, "1-D"),
        (
            {
                "token_ids": np.ones((2, 3), int),
                "trainer_logprobs": np.zeros((2, 3)),
                "mask": np.array([[5, 6, -100]] * 2),
            },
            "mask: contains -100; pass 1",
        ),
        (
            {"token_ids": np.ma.masked_equal([[1, 2, 0]] * 2, 0), "trainer_logprobs": np.zeros((2, 3))},
            "token_ids: masked int64 values; pass a plain array",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, words):
    with pytest.raises(InputError, match=words):
        training_call(**{"mask": np.ones((2, 3)), **arguments})


@pytest.mark.parametrize("cu_seqlens", [[0, 4, 3], [-1, 2, 3], [0, 2, 9], [0.0, 2.0, 3.0]])
def test_offsets_that_make_no_sense(cu_seqlens):
    with pytest.raises(InputError, match="cu_seqlens"):
        training_call(np.zeros(5, int), np.zeros(5), cu_seqlens=np.array(cu_seqlens))


def test_parts_of_a_batch_put_together_are_the_batch():
    random = np.random.default_rng(1)
    pieces = [random.integers(0, 99, n) for n in (3, 0, 50, 1, 7, 0, 20)]
    batch = training_call(pieces, [piece * -0.1 for piece in pieces])
    parts = list(batch.parts(20))
    assert [part.tokens for part in parts] == [3, 50, 8, 20]
    assert np.concatenate([part.token_ids for part in parts]).tolist() == batch.token_ids.tolist()
    assert [s for part in parts for s in part.values["sample_ids"]] == batch.values["sample_ids"]
    assert np.concatenate([np.diff(part.offsets) for part in parts]).tolist() == [3, 0, 50, 1, 7, 0, 20]


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


@pytest.mark.parametrize("tokens", [[], [7], [1, 2, 3], [-1, 2**31 - 1]])
def test_token_hash_is_the_stated_formula(tokens):
    # Stored in every home, and of [] the published first output of SplitMix64: with another function, equal sequences of old and new records would differ.
    total = sum(splitmix64((token % 2**32) | (position << 32)) for position, token in enumerate(tokens, 1)) % 2**64
    expected = splitmix64(total ^ (len(tokens) * 0x9E3779B97F4A7C15 % 2**64))
    assert token_hash(np.array(tokens, np.int32), np.array([0, len(tokens)])).tolist() == [expected]


@pytest.mark.parametrize("beyond", [0, 1])
def test_token_hash_of_more_tokens_than_are_hashed_at_a_time(beyond):
    long = _CHUNK + beyond
    offsets = arrays.offsets_of([5, long, 0, _CHUNK - 5 + beyond, 5, 3])
    ids = np.arange(offsets[-1], dtype=np.int32)
    alone = [token_hash(ids[a:b], np.array([0, b - a]))[0] for a, b in pairwise(offsets)]
    assert token_hash(ids, offsets).tolist() == alone
    total = sum(splitmix64(5 + position | (position + 1 << 32)) for position in range(long)) % 2**64
    assert alone[1] == splitmix64(total ^ (long * 0x9E3779B97F4A7C15 % 2**64))
