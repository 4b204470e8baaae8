"""Batches and small records as Arrow tables of the wire contract, their columns built from buffers.

Not through `pyarrow.array`: that imports pandas wherever it is installed, 0.2 s and 40 MB no one asked for, in the
middle of someone's training step; and a child that is forked during the import would keep half of it. Masks of
`from_arrays` import pyarrow.compute, for the same reason they are not used.

Dimensions: ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.labels import text
from logprobe.collectors.spool.schema import DECISION, ROLLOUT, SCHEMAS, SPAN, STATED_SPAN, TRAINING, TRAINING_FLOATS


def training_table(batches: Sequence[Batch], rank: int | None) -> pa.Table:
    """Rows of the `training` kind."""
    floats = {name: _floats(batches, name) for name in TRAINING_FLOATS}
    data = {
        **trainer_columns(batches, rank),
        "token_ids": _lists(batches, [batch.token_ids for batch in batches], pa.int32()),
        "mask": _lists(batches, [batch.full_mask() for batch in batches], pa.bool_()),
        "routes": _routes(batches),
        **floats,
    }
    return pa.Table.from_arrays([data[name] for name in TRAINING.names], schema=TRAINING)


def trainer_columns(batches: Sequence[Batch], rank: int | None) -> dict[str, pa.Array]:
    """What the `training` and `statistics` kinds have in common: everything of a sequence but its tokens."""
    rows = sum(batch.sequences for batch in batches)
    return {
        "time": _times(batches),
        "step": numbers([batch.step for batch in batches for _ in range(batch.sequences)], pa.int64(), "step"),
        "rank": repeated(rank, rows, pa.int32()),
        "sample_id": _texts(batches, "sample_ids"),
        "group_id": _texts(batches, "prompt_ids"),
        "reward": numbers(_concatenated(batches, "rewards"), pa.float64(), "rewards"),
        "weight_version": _texts(batches, "weight_version"),
        "tags": _tags(batches),
        "part_ids": _name_lists(_concatenated(batches, "part_ids")),
        "rollout_versions": _struct_lists(_concatenated(batches, "rollout_versions"), STATED_SPAN),
    }


def rollout_table(batches: Sequence[Batch]) -> pa.Table:
    """Rows of the `rollout` kind."""
    data = {
        "time": _times(batches),
        "sample_id": _texts(batches, "sample_ids"),
        "request_id": _texts(batches, "request_ids"),
        "group_id": _texts(batches, "prompt_ids"),
        "replica": _texts(batches, "replica"),
        "token_ids": _lists(batches, [batch.token_ids for batch in batches], pa.int32()),
        "logprobs": _floats(batches, "logprobs"),
        "spans": _struct_lists(_concatenated(batches, "spans"), SPAN),
        "prompt_length": _whole(batches, "prompt_lengths"),
        "prompt_hash": _texts(batches, "prompt_hashes"),
        "cached_prefix_tokens": _whole(batches, "cached_prefix_tokens"),
        "finish_reason": _texts(batches, "finish_reasons"),
        "sampling_id": _texts(batches, "sampling_id"),
        "engine_config_id": _texts(batches, "engine_config_id"),
        "routes": _routes(batches),
        "adapter": _texts(batches, "adapters"),
        "adapter_id": numbers(_concatenated(batches, "adapter_ids"), pa.int64(), "adapter_ids"),
        "step_times": _integer_lists(_concatenated(batches, "step_times"), pa.int64()),
        "decisions": _struct_lists(_concatenated(batches, "step_decisions"), DECISION),
        "machine": _texts(batches, "machine"),
        "clock_offset": numbers(_concatenated(batches, "clock_offset"), pa.int64(), "clock_offset"),
        "engine_started": numbers(_concatenated(batches, "engine_started"), pa.int64(), "engine_started"),
        "trajectory": _texts(batches, "trajectories"),
        "prompt_token_ids": _integer_lists(_concatenated(batches, "prompt_token_ids"), pa.int32()),
    }
    return pa.Table.from_arrays([data[name] for name in ROLLOUT.names], schema=ROLLOUT)


def _concatenated(batches: Sequence[Batch], name: str) -> list[Any]:
    """Values per sequence over all batches; None where a call had none."""
    return [item for batch in batches for item in batch.values.get(name) or [None] * batch.sequences]


def _texts(batches: Sequence[Batch], name: str) -> pa.Array:
    return strings(_concatenated(batches, name))


def _whole(batches: Sequence[Batch], name: str) -> pa.Array:
    return numbers(_concatenated(batches, name), pa.int32(), name)


def _tags(batches: Sequence[Batch]) -> pa.Array:
    items = _concatenated(batches, "tags")
    return maps([None if item is None else list(item.items()) for item in items], TRAINING.field("tags").type)


def _times(batches: Sequence[Batch]) -> pa.Array:
    return numbers([batch.time_us for batch in batches for _ in range(batch.sequences)], TRAINING.field("time").type)


def _name_lists(rows: list[list[Any] | None]) -> pa.Array:
    """Lists of labels; None becomes null."""
    return _of_rows(rows, strings([name for row in rows for name in row or ()]))


def _integer_lists(rows: list[NDArray[np.integer[Any]] | None], kind: pa.DataType) -> pa.Array:
    values = [row for row in rows if row is not None]
    return _of_rows(rows, column(np.concatenate(values), kind)) if values else pa.nulls(len(rows), pa.list_(kind))


def _struct_lists(rows: list[list[tuple[Any, ...]] | None], kind: pa.StructType) -> pa.Array:
    """Lists of structs from tuples of their fields; None becomes null."""
    items = [item for row in rows for item in row or ()]
    parts = [_field(field, [item[place] for item in items]) for place, field in enumerate(kind)]
    return _of_rows(rows, pa.StructArray.from_arrays(parts, fields=list(kind)))


def _floats(batches: Sequence[Batch], name: str) -> pa.Array:
    return _lists(batches, [batch.floats.get(name) for batch in batches], pa.float32(), name)


def _lists(
    batches: Sequence[Batch], pieces: Sequence[NDArray[Any] | None], kind: pa.DataType, name: str = ""
) -> pa.Array:
    """A list column; rows of a call without this argument are null."""
    present = [piece for piece in pieces if piece is not None]
    sequences = [batch.sequences for batch in batches]
    if not present:
        return pa.nulls(sum(sequences), pa.list_(kind))
    absent = np.repeat([piece is None for piece in pieces], sequences)
    lengths = np.concatenate([np.diff(batch.offsets) for batch in batches])
    lengths[absent] = 0
    values = column(np.concatenate(present), kind, _valid(batches, pieces, name))
    return lists(lengths, values, absent)


def _routes(batches: Sequence[Batch]) -> pa.Array:
    """A list of [tokens × layers] per sequence; null for those of a call without."""
    present = [batch.routes.reshape(-1) for batch in batches if batch.routes is not None]
    sequences = [batch.sequences for batch in batches]
    if not present:
        return pa.nulls(sum(sequences), pa.list_(pa.uint16()))
    layers = np.repeat([0 if batch.routes is None else batch.routes.shape[1] for batch in batches], sequences)
    lengths = np.concatenate([np.diff(batch.offsets) for batch in batches]) * layers
    return lists(lengths, column(np.concatenate(present), pa.uint16()), layers == 0)


def _valid(batches: Sequence[Batch], pieces: Sequence[NDArray[Any] | None], name: str) -> NDArray[np.bool_] | None:
    """False where a list said None; None: nowhere."""
    if not any(name in batch.missing for batch in batches):
        return None
    pairs = zip(batches, pieces, strict=True)
    return ~np.concatenate([b.missing.get(name, np.zeros(len(p), np.bool_)) for b, p in pairs if p is not None])


def rows_table(kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Small records as a table of their kind.

    Raises:
        InputError: a value is not of its column's type.
    """
    schema = SCHEMAS[kind]
    return pa.Table.from_arrays(
        [_field(field, [row.get(field.name) for row in rows]) for field in schema], schema=schema
    )


def _field(field: pa.Field, values: list[Any]) -> pa.Array:
    if pa.types.is_string(field.type):
        return strings(values)
    if pa.types.is_map(field.type):
        return maps(values, field.type)
    if pa.types.is_list(field.type):
        return number_lists(values, field.type)
    return numbers(values, field.type, field.name)


# --- Columns ---


def column(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """A numeric, time or boolean column that shares the memory of `values`; `valid`: False where it is null."""
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [_validity(valid), pa.py_buffer(data)])


def repeated(value: int | None, times: int, kind: pa.DataType) -> pa.Array:
    """`times` rows with the same whole number, or null."""
    if value is None:
        return pa.nulls(times, kind)
    return column(np.full(times, value, dtype=_numpy_type(kind)), kind)


def numbers(values: Sequence[Any], kind: pa.DataType, name: str = "value") -> pa.Array:
    """A numeric, time or boolean column from Python numbers; None becomes null.

    Raises:
        InputError: not numbers, or not of this type without loss.
    """
    try:
        given = np.array([0 if value is None else value for value in values])
        exact = given.astype(_numpy_type(kind))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}") from error
    lossy = not pa.types.is_floating(kind) and (exact != given).any()
    if given.dtype.kind not in "biuf" or lossy:
        raise InputError(f"{name}: not all values are of type {kind}")
    return column(exact, kind, ~_absent(values))


def strings(values: Sequence[Any]) -> pa.Array:
    """A text column from labels; None becomes null."""
    encoded = [None if value is None else (text(value) or "").encode() for value in values]
    buffers = [_validity(~_absent(encoded)), _offsets([0 if item is None else len(item) for item in encoded])]
    data = pa.py_buffer(b"".join(item for item in encoded if item))
    return pa.Array.from_buffers(pa.string(), len(values), [*buffers, data])


def lists(lengths_S: NDArray[np.int64] | Sequence[int], values: pa.Array, absent_S: NDArray[np.bool_]) -> pa.Array:
    """A list column of lists of these lengths, which share `values`; `absent_S`: True where it is null."""
    buffers = [_validity(~absent_S), _offsets(lengths_S)]
    return pa.Array.from_buffers(pa.list_(values.type), len(lengths_S), buffers, children=[values])


def _of_rows(rows: Sequence[Sequence[Any] | NDArray[Any] | None], values: pa.Array) -> pa.Array:
    """A list column of lists as long as these, which share `values`; None becomes null."""
    return lists([0 if row is None else len(row) for row in rows], values, _absent(rows))


def number_lists(rows: Sequence[Sequence[Any] | None], kind: pa.ListType) -> pa.Array:
    """A list column from lists of numbers; None becomes null."""
    return _of_rows(rows, numbers([value for row in rows for value in row or ()], kind.value_type))


def maps(rows: Sequence[Sequence[tuple[Any, Any]] | None], kind: pa.MapType) -> pa.Array:
    """A map column from lists of pairs; None becomes null."""
    pairs = [pair for row in rows for pair in row or ()]
    keys = strings([key for key, _ in pairs])
    of_text = pa.types.is_string(kind.item_type)
    items = strings([item for _, item in pairs]) if of_text else numbers([item for _, item in pairs], kind.item_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    buffers = [_validity(~_absent(rows)), _offsets([len(row or ()) for row in rows])]
    return pa.Array.from_buffers(kind, len(rows), buffers, children=[entries])


def _absent(rows: Sequence[object]) -> NDArray[np.bool_]:
    return np.array([row is None for row in rows], dtype=np.bool_)


def _offsets(lengths: NDArray[np.int64] | Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(arrays.offsets_of(lengths).astype(np.int32))


def _validity(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """A bit per value; None where all are there."""
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(np.int64) if pa.types.is_timestamp(kind) else np.dtype(kind.to_pandas_dtype())
