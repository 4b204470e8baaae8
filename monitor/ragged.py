"""Arrow columns as flat numpy arrays with offsets, without a Python loop over tokens.

Dimensions: ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.recorder.arrays import segment_sums


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, without a copy if it is one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the number of elements of each list [S], −1 for a null list."""
    return np.asarray(pc.fill_null(pc.list_value_length(column), -1), dtype=np.int64)


def flat_floats(column: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the elements of all lists [N], NaN for a null element or list, or None if every list is null.

    `lengths_S`: length of each sequence. Every non-null list has this length.
    """
    return _filled(column, lengths_S, np.dtype(np.float32), np.nan)


def flat_mask(column: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the elements of all lists [N], True throughout a null list, since without a mask every token counts."""
    mask = _filled(column, lengths_S, np.dtype(np.bool_), fill=True)
    return np.ones(int(lengths_S.sum()), np.bool_) if mask is None else mask


def flat_ids(column: pa.ChunkedArray) -> NDArray[np.int32]:
    """Return the elements of all lists [N], none of which may be null."""
    return np.asarray(one_array(column).flatten())


def finite_sums(
    values_N: NDArray[np.float32], mask_N: NDArray[np.bool_] | None, offsets_S1: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return the sum and number of the finite values of each sequence [S], under the mask if given."""
    usable = np.isfinite(values_N)
    if mask_N is not None:
        usable &= mask_N
    kept = values_N if usable.all() else np.where(usable, values_N, np.float32(0))
    return segment_sums(kept, offsets_S1), segment_sums(usable, offsets_S1).astype(np.int32)


def _filled(
    column: pa.ChunkedArray, lengths_S: NDArray[np.int64], dtype: np.dtype[Any], fill: Any
) -> NDArray[Any] | None:
    if column.null_count == len(column):
        return None
    elements = one_array(column).flatten()  # leaves out what stands behind null lists
    values = np.asarray(elements.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
    if column.null_count == 0:
        return values
    result = np.full(int(lengths_S.sum()), fill, dtype)
    result[np.repeat(np.asarray(column.is_valid()), lengths_S)] = values
    return result


def floats(column: pa.ChunkedArray | pa.Array) -> NDArray[np.float64]:
    """Return a column of numbers or booleans as float64, with NaN for null and booleans as 0 and 1.

    >>> floats(pa.array([1, None, 3])).tolist()
    [1.0, nan, 3.0]
    """
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def float_lists(column: pa.ChunkedArray) -> list[NDArray[np.float64]]:
    """Return one array per sequence without null lists, with NaN for a null element."""
    return [np.asarray(item.values.cast(pa.float64()).to_numpy(zero_copy_only=False)) for item in column]
