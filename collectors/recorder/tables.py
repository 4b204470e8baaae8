"""Batches and small records as Arrow tables of the wire contract, with columns built from buffers.

`pyarrow.array` imports pandas if installed, which costs 0.2 s and 40 MB during a training step. A child forked during
that import would keep half of it. The module therefore avoids `pyarrow.array`. It also avoids masks of `from_arrays`,
which import pyarrow.compute.

Dimensions: ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays
from logprobe.collectors.recorder.arrays import text
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.spool.schema import SCHEMAS, TRAINING_FLOATS

# What a column's values are called as an argument of a call, where that is another name.
_ARGUMENTS: Final = {
    "sample_id": "sample_ids",
    "group_id": "prompt_ids",
    "reward": "rewards",
    "request_id": "request_ids",
    "prompt_length": "prompt_lengths",
    "prompt_hash": "prompt_hashes",
    "finish_reason": "finish_reasons",
    "adapter": "adapters",
    "adapter_id": "adapter_ids",
    "trajectory": "trajectories",
    "decisions": "step_decisions",
}
_PER_TOKEN: Final = frozenset({"token_ids", "mask", "routes", "logprobs", *TRAINING_FLOATS})


def batch_table(
    kind: str, batches: Sequence[Batch], rank: int | None, computed: Mapping[str, pa.Array] | None = None
) -> pa.Table:
    """Return rows of the kind `training`, `rollout` or `statistics`, one for each sequence.

    `computed`: columns that replace those of the call.

    Raises:
        InputError: a value per sequence does not have its column's type.
    """
    computed = computed or {}
    schema = SCHEMAS[kind]
    columns = [
        computed[field.name] if field.name in computed else _batch_column(field, batches, rank) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _batch_column(field: pa.Field, batches: Sequence[Batch], rank: int | None) -> pa.Array:
    if field.name in _PER_TOKEN:
        return _token_lists(field, batches)
    if field.name == "rank":
        return repeated(rank, sum(batch.sequences for batch in batches), field.type)
    if field.name in {"time", "step"}:
        of_call = [(batch.time_us if field.name == "time" else batch.step, batch.sequences) for batch in batches]
        return numbers([value for value, sequences in of_call for _ in range(sequences)], field.type, field.name)
    name = _ARGUMENTS.get(field.name, field.name)
    values = [item for batch in batches for item in batch.values.get(name) or [None] * batch.sequences]
    return values_column(values, field.type, name)


def _token_lists(field: pa.Field, batches: Sequence[Batch]) -> pa.Array:
    """Return a list per sequence, null for calls without this argument."""
    pieces = [batch.per_token(field.name) for batch in batches]
    sequences = [batch.sequences for batch in batches]
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return pa.nulls(sum(sequences), field.type)
    widths = np.repeat([0 if piece is None else int(np.prod(piece.shape[1:])) for piece in pieces], sequences)
    lengths = np.concatenate([np.diff(batch.offsets) for batch in batches]) * widths
    values = np.concatenate([piece.reshape(-1) for piece in present])
    valid = None
    if any(field.name in batch.missing for batch in batches):  # where a list said None
        gaps = [
            batch.missing.get(field.name, np.zeros(len(piece), np.bool_))
            for batch, piece in zip(batches, pieces, strict=True)
            if piece is not None
        ]
        valid = ~np.concatenate(gaps)
    return lists(lengths, column(values, field.type.value_type, valid), widths == 0)


def rows_table(kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return small records as a table of their kind.

    Raises:
        InputError: a value does not have its column's type.
    """
    schema = SCHEMAS[kind]
    columns = [values_column([row.get(field.name) for row in rows], field.type, field.name) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


# --- Columns ---


def column(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a numeric, time or boolean column that shares the memory of `values`. `valid` is False at null values."""
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [_validity(valid), pa.py_buffer(data)])


def values_column(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    """Return a column of any type of the wire contract from Python values. None becomes null.

    A list value is a list or an array. A struct is a tuple of its fields. A map is a dictionary or a list of pairs.

    Raises:
        InputError: a value cannot be converted to this type without loss.
    """
    if pa.types.is_string(kind):
        return strings(values)
    if pa.types.is_map(kind):
        return maps(values, kind)
    if pa.types.is_list(kind):
        rows = [row for row in values if row is not None and len(row)]
        arrays_ = rows and all(isinstance(row, np.ndarray) for row in rows)
        items = np.concatenate(rows) if arrays_ else [item for row in rows for item in row]
        lengths = [0 if row is None else len(row) for row in values]
        return lists(lengths, values_column(items, kind.value_type, name), _absent(values))
    if pa.types.is_struct(kind):
        absent = _absent(values)
        if absent.any():
            nothing = (None,) * kind.num_fields
            values = [nothing if item is None else item for item in values]
        parts = [values_column([item[place] for item in values], field.type, name) for place, field in enumerate(kind)]
        # Not from_arrays: with a mask it imports pandas or pyarrow.compute, which a thread cannot at a process's end.
        return pa.Array.from_buffers(kind, len(values), [_validity(~absent)], children=parts)
    return numbers(values, kind, name)


def repeated(value: int | None, times: int, kind: pa.DataType) -> pa.Array:
    """Return `times` rows with the same whole number, or null."""
    if value is None:
        return pa.nulls(times, kind)
    return column(np.full(times, value, dtype=_numpy_type(kind)), kind)


def numbers(values: Any, kind: pa.DataType, name: str = "value") -> pa.Array:
    """Return a numeric, time or boolean column from an array or from Python numbers. None becomes null.

    Raises:
        InputError: a value is not a number, or cannot be converted to this type without loss.
    """
    try:
        whole = isinstance(values, np.ndarray)
        given = values if whole else np.array([0 if value is None else value for value in values])
        exact = given.astype(_numpy_type(kind))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}; pass values of type {kind}") from error
    lossy = not pa.types.is_floating(kind) and (exact != given).any()
    if given.dtype.kind not in "biuf" or lossy:
        raise InputError(f"{name}: not all values are of type {kind}; pass such values")
    return column(exact, kind, None if whole else ~_absent(values))


def strings(values: Sequence[Any]) -> pa.Array:
    """Return a text column from labels. None becomes null."""
    encoded = [None if value is None else (text(value) or "").encode() for value in values]
    buffers = [_validity(~_absent(encoded)), _offsets([0 if item is None else len(item) for item in encoded])]
    data = pa.py_buffer(b"".join(item for item in encoded if item))
    return pa.Array.from_buffers(pa.string(), len(values), [*buffers, data])


def lists(lengths_S: NDArray[np.int64] | Sequence[int], values: pa.Array, absent_S: NDArray[np.bool_]) -> pa.Array:
    """Return a list column of lists of these lengths, which share `values`. `absent_S` is True at null lists."""
    buffers = [_validity(~absent_S), _offsets(lengths_S)]
    return pa.Array.from_buffers(pa.list_(values.type), len(lengths_S), buffers, children=[values])


def maps(rows: Sequence[Any], kind: pa.MapType) -> pa.Array:
    """Return a map column from dictionaries or lists of pairs. None becomes null."""
    pairs = [pair for row in rows for pair in (row.items() if isinstance(row, Mapping) else row or ())]
    keys = strings([key for key, _ in pairs])
    items = values_column([item for _, item in pairs], kind.item_type, "value")
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    buffers = [_validity(~_absent(rows)), _offsets([len(row or ()) for row in rows])]
    return pa.Array.from_buffers(kind, len(rows), buffers, children=[entries])


def _absent(rows: Sequence[object]) -> NDArray[np.bool_]:
    return np.array([row is None for row in rows], dtype=np.bool_)


def _offsets(lengths: NDArray[np.int64] | Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(arrays.offsets_of(lengths).astype(np.int32))


def _validity(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Return one bit per value, or None if no value is null."""
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(np.int64) if pa.types.is_timestamp(kind) else np.dtype(kind.to_pandas_dtype())
