"""Arrow columns from numpy arrays and lists, built from their buffers.

Not through `pyarrow.array`: that imports pandas wherever it is installed, 0.2 s and 40 MB no one asked for, in the
middle of someone's training step; and a child that is forked during the import would keep half of it. Masks of
`from_arrays` import pyarrow.compute, for the same reason they are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder.labels import text


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
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    try:
        given = np.array([0 if value is None else value for value in values])
        exact = given.astype(_numpy_type(kind))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}") from error
    lossy = not pa.types.is_floating(kind) and (exact != given).any()
    if given.dtype.kind not in "biuf" or lossy:
        raise InputError(f"{name}: not all values are of type {kind}")
    return column(exact, kind, None if valid.all() else valid)


def strings(values: Sequence[Any]) -> pa.Array:
    """A text column from labels; None becomes null."""
    encoded = [None if value is None else (text(value) or "").encode() for value in values]
    offsets = _offsets([0 if item is None else len(item) for item in encoded])
    valid = np.array([item is not None for item in encoded], dtype=np.bool_)
    data = pa.py_buffer(b"".join(item for item in encoded if item))
    validity = None if valid.all() else _validity(valid)
    return pa.Array.from_buffers(pa.string(), len(values), [validity, pa.py_buffer(offsets), data])


def lists(offsets_S1: NDArray[np.integer], values: pa.Array, absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """A list column; `absent`: True where it is null."""
    buffers = [None if absent is None else _validity(~absent), pa.py_buffer(offsets_S1.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(values.type), len(offsets_S1) - 1, buffers, children=[values])


def number_lists(rows: Sequence[Sequence[Any] | None], kind: pa.ListType) -> pa.Array:
    """A list column from lists of numbers; None becomes null."""
    absent = np.array([row is None for row in rows], dtype=np.bool_)
    values = numbers([value for row in rows for value in row or ()], kind.value_type)
    return lists(_offsets([len(row or ()) for row in rows]), values, absent if absent.any() else None)


def maps(rows: Sequence[Sequence[tuple[Any, Any]] | None], kind: pa.MapType) -> pa.Array:
    """A map column from lists of pairs; None becomes null."""
    pairs = [pair for row in rows for pair in row or ()]
    keys = strings([key for key, _ in pairs])
    of_text = pa.types.is_string(kind.item_type)
    items = strings([item for _, item in pairs]) if of_text else numbers([item for _, item in pairs], kind.item_type)
    offsets = _offsets([len(row or ()) for row in rows])
    plain = pa.MapArray.from_arrays(column(offsets, pa.int32()), keys, items)
    valid = np.array([row is not None for row in rows], dtype=np.bool_)
    if valid.all():
        return plain
    return pa.Array.from_buffers(kind, len(rows), [_validity(valid), pa.py_buffer(offsets)], children=[_entries(plain)])


def _entries(maps_: pa.MapArray) -> pa.Array:
    return pa.StructArray.from_arrays([maps_.keys, maps_.items], fields=[maps_.type.key_field, maps_.type.item_field])


def _offsets(lengths: Sequence[int]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _validity(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(np.int64) if pa.types.is_timestamp(kind) else np.dtype(kind.to_pandas_dtype())
