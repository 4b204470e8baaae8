"""Growing columns of facts about records, and the token lists of these records.

Dimensions: ``_S`` records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NONE: Final = int(np.iinfo(np.int64).min)  # null in a column of whole numbers or times
ON_DISK: Final = 0  # number of lists that were not read yet
NO_LISTS: Final = -1
_ROW_BITS: Final = 32  # of the number of a list: the row in its block


class Rows:
    """Columns of equal length that grow at the end. The cost of appending depends only on the appended rows."""

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a view of a column. It may be outdated after the next `append`."""
        return self._columns[name][: self._size]

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows with the same columns as before."""
        size = self._size + len(next(iter(columns.values())))
        self._columns = {name: self._longer(name, column, size) for name, column in columns.items()}
        self._size = size

    def put(self, name: str, rows: Any, values: Any) -> None:
        """Overwrite a column in some rows."""
        if _is_blank(self._columns[name]):
            if not np.any(values):
                return
            self._columns[name] = self._columns[name].copy()
        self._columns[name][: self._size][rows] = values

    def _longer(self, name: str, column: NDArray[Any], size: int) -> NDArray[Any]:
        before = self._columns.get(name)
        if before is None:
            return column if _is_blank(column) else column.copy()
        if _is_blank(before) and _is_blank(column):
            return blank(size, column.shape[1])
        if size > len(before) or _is_blank(before):
            before = _roomier(before, size)
        before[self._size : size] = column
        return before


def blank(size: int, columns: int) -> NDArray[np.float64]:
    """Return zeros [size, columns] that need no memory and cannot be written."""
    return np.broadcast_to(np.float64(0), (size, columns))


def _is_blank(column: NDArray[Any]) -> bool:
    return column.ndim > 1 and not any(column.strides)


def _roomier(column: NDArray[Any], size: int) -> NDArray[Any]:
    larger = np.empty((max(size, 2 * len(column)), *column.shape[1:]), column.dtype)
    larger[: len(column)] = column
    return larger


class Lists:
    """Token lists of records, in blocks by order of arrival. Each record refers to its lists by one number."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[pa.Table, int]] = {}
        self._next = 1
        self._bytes = 0

    def add(self, table: pa.Table, names: Sequence[str]) -> NDArray[np.int64]:
        """Keep some columns of a table and return the numbers of its rows [S].

        No data is copied. The other columns of the segment therefore stay in memory, and their size counts.
        """
        block, self._next = self._next, self._next + 1
        self._blocks[block] = table.select(names), table.nbytes
        self._bytes += table.nbytes
        return (block << _ROW_BITS) + np.arange(table.num_rows, dtype=np.int64)

    def keep(self, nbytes: int) -> None:
        """Drop the oldest blocks beyond a size. Their lists can be read back from raw files."""
        for block in list(self._blocks):
            if self._bytes <= nbytes:
                break
            self._bytes -= self._blocks.pop(block)[1]

    def absent(self, numbers_S: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the lists that are only on the disk."""
        return np.array([n >= 0 and n >> _ROW_BITS not in self._blocks for n in numbers_S.tolist()], np.bool_)

    def take(self, numbers_S: NDArray[np.int64]) -> pa.Table:
        """Return the lists of records in the given order. All must be in memory."""
        blocks_S, rows_S = numbers_S >> _ROW_BITS, numbers_S & ((1 << _ROW_BITS) - 1)
        needed = np.unique(blocks_S)
        tables = [self._whole(int(block)) for block in needed]
        starts = np.cumsum([0, *(table.num_rows for table in tables[:-1])])
        places_S = starts[np.searchsorted(needed, blocks_S)] + rows_S
        table = pa.concat_tables(tables)
        if len(places_S) == table.num_rows and np.array_equal(places_S, np.arange(len(places_S))):
            return table.combine_chunks()
        return table.take(pa.array(places_S)).combine_chunks()

    def _whole(self, block: int) -> pa.Table:
        """Return a block as one chunk, since each selection from several chunks would copy all of them."""
        table, nbytes = self._blocks[block]
        if any(column.num_chunks > 1 for column in table.columns):
            table = table.combine_chunks()
            self._blocks[block] = table, nbytes
        return table


def whole_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of whole numbers or times as int64, `NONE` for null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    numbers = column.cast(pa.int64())
    return np.asarray(numbers.fill_null(int(NONE)) if numbers.null_count else numbers, dtype=np.int64)


def objects(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """Return a column of strings as objects, None for null."""
    return np.asarray(column.to_numpy(), dtype=object) if len(column) else np.empty(0, object)


def nothing(size: int) -> NDArray[np.object_]:
    """Return None for each of `size` records."""
    return np.full(size, None, object)


def listed(column: pa.ChunkedArray, values: Iterable[Any]) -> NDArray[np.object_]:
    """Return `values` as an object array with one entry per row of `column`."""
    result = np.empty(len(column), object)
    for place, value in enumerate(values):
        result[place] = value
    return result
