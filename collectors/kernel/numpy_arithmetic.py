"""The kernel's tables and scratch memory of numpy arrays. Dimensions as in `kernel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel import arithmetic as kernel

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(slots=True)
class Table:
    """A `kernel.Table`: `rows` of `columns` are the pieces with tokens, and `starts` where these start in the chunk."""

    columns: dict[str, NDArray[Any]]
    rows: slice | Indices
    starts: Indices

    def sum(self, name: str, values_K: Floats) -> None:
        """Σ over each piece."""
        self.columns[name][self.rows] = np.add.reduceat(values_K, self.starts)

    def count(self, name: str, hits_K: Bools) -> None:
        """Number of hits in each piece."""
        self.columns[name][self.rows] = np.add.reduceat(hits_K, self.starts, dtype=np.int64)

    def extremes(self, values_K: Floats) -> None:
        """`min_d` and `max_d` of each piece."""
        self.columns["min_d"][self.rows] = np.minimum.reduceat(values_K, self.starts)
        self.columns["max_d"][self.rows] = np.maximum.reduceat(values_K, self.starts)

    def lengths(self, name: str, total: int) -> None:
        """Number of tokens of each piece."""
        self.columns[name][self.rows] = np.diff(self.starts, append=total)

    def rest(self, name: str, whole: str, *parts: str) -> None:
        """What of the column `whole` is in none of the `parts`."""
        left = self.columns[whole][self.rows]
        for part in parts:
            left = left - self.columns[part][self.rows]
        self.columns[name][self.rows] = left

    def keep(self, keep_K: Bools) -> None:
        """From now on the chunk consists of these of its tokens only."""
        kept_P = np.add.reduceat(keep_K, self.starts, dtype=np.intp)
        ends_P = np.cumsum(kept_P)
        filled = kept_P > 0  # reduceat returns the next piece's first token for an empty piece
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        self.rows, self.starts = rows[filled], (ends_P - kept_P)[filled]


class Workspace:
    """A `kernel.Workspace`."""

    xp: Final[Any] = np

    def __init__(self) -> None:
        self._arrays = np.empty((9, kernel.CHUNK))

    def rows(self, size: int) -> list[Floats]:
        """Nine float64 arrays [size]."""
        return list(self._arrays[:, :size])

    def overwrite(self, target: Floats, values: Floats, where: Bools) -> None:
        """Write `values` into `target` where `where` is true."""
        np.copyto(target, values, where=where)
