"""The kernel's tables and scratch memory of numpy arrays. Dimensions as in `kernel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel import arithmetic as kernel

CHUNK: Final = 16_384  # tokens: ten float64 rows of 128 KiB stay in a core's second cache

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(slots=True)
class Table:
    """A `kernel.Table`: `rows` of `columns` are the pieces with tokens, and `starts` where these start in the chunk.

    `blocks` are columns that are filled together, as the rows of one array.
    """

    columns: dict[str, NDArray[Any]]
    blocks: dict[tuple[str, ...], Floats]
    rows: slice | Indices
    starts: Indices

    def sums(self, names: tuple[str, ...], rows_RK: Floats) -> None:
        """Σ of each row over each piece, into the column of its name."""
        self.blocks[names][:, self.rows] = np.add.reduceat(rows_RK, self.starts, axis=1)

    def count(self, name: str, hits_K: Bools) -> None:
        """Number of hits in each piece."""
        self.columns[name][self.rows] = np.add.reduceat(
            hits_K, self.starts, dtype=np.int32
        )  # a chunk has no 2³¹ tokens

    def extremes(self, values_K: Floats) -> tuple[float, float]:
        """`min_d` and `max_d` of each piece; → of all of them."""
        lowest, highest = np.minimum.reduceat(values_K, self.starts), np.maximum.reduceat(values_K, self.starts)
        self.columns["min_d"][self.rows], self.columns["max_d"][self.rows] = lowest, highest
        return float(np.minimum.reduce(lowest)), float(np.maximum.reduce(highest))

    def keep(self, keep_K: Bools, *names: str) -> None:
        """From now on the chunk consists of these of its tokens only; their number in each piece goes into the columns
        `names`."""
        kept_P = np.add.reduceat(keep_K, self.starts, dtype=np.intp)
        for name in names:
            self.columns[name][self.rows] = kept_P
        ends_P = np.cumsum(kept_P)
        filled = kept_P > 0  # reduceat returns the next piece's first token for an empty piece
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        self.rows, self.starts = rows[filled], (ends_P - kept_P)[filled]


class Workspace:
    """A `kernel.Workspace`."""

    xp: Final[Any] = np

    def __init__(self, size: int) -> None:
        self._memory = np.empty(kernel.ROWS * size)

    def rows(self, size: int) -> Floats:
        """Float64 [`kernel.ROWS`, size], without gaps: a small chunk lies in as little of the cache."""
        return self._memory[: kernel.ROWS * size].reshape(kernel.ROWS, size)

    def range(self, values_K: NDArray[Any]) -> tuple[float, float]:
        """Lowest and highest; NaN where one is NaN."""
        return float(np.minimum.reduce(values_K)), float(np.maximum.reduce(values_K))

    def hits(self, where_K: Bools) -> Indices:
        """Indices of the true ones."""
        return np.flatnonzero(where_K)
