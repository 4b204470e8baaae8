"""Distribution of tokens over the log-ratio d = policy − behaviour by step, from stored profiles.

A column covers one or more steps. A row covers several logarithmic bins of |d| on one side of 0, and the middle row
surrounds 0. Columns with few tokens use wide rows to reduce noise.

Dimensions: ``_C`` columns, ``_B`` rows of the grid from the most negative d to the largest, ``_Q`` quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.analysis.profiles import LOG_GAMMA, SMALLEST
from logprobe.monitor.queries import Source

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

FINE: Final = 10  # bins of the profile in one row: |d| grows by a factor 1.22 from row to row
COARSE: Final = 25
_FEW: Final = 10_000  # tokens of a column, below which rows are coarse
COLUMNS: Final = 240
_ENOUGH: Final = 2_500  # tokens of a column, while there are more than `_FEWEST` of them
_FEWEST: Final = 60
DECADES: Final = 6  # of |d| on either side; what is smaller lies in the row around 0
_NEAR_ZERO: Final = 0.02  # share of the tokens with d ≠ 0 that may lie in the row around 0 without need


@dataclass(frozen=True)
class Columns:
    """Steps `first` to `last` of a run with `width` steps per column. C is the number of columns."""

    first: int
    last: int
    width: int

    @property
    def size(self) -> int:
        """Return the number of columns."""
        return (self.last - self.first) // self.width + 1


@dataclass(frozen=True)
class Density:
    """Tokens per column and row.

    Attributes:
        columns: steps of the columns.
        merged: number of profile bins per row.
        floor: largest |d| of the middle row.
        tokens_CB: valid tokens, with odd B.
        broken_C: broken tokens under the mask.
        steps_C: finished steps.
        profiled_C: finished steps with a profile.
        kept_C: finished steps that had raw tokens at profiling.
        expected_C: tokens under the mask.
        seen_C: tokens under the mask with raw tokens.
    """

    columns: Columns
    merged: int
    floor: float
    tokens_CB: Counts
    broken_C: Counts
    steps_C: Counts
    profiled_C: Counts
    kept_C: Counts
    expected_C: Counts
    seen_C: Counts

    @property
    def side(self) -> int:
        """Number of rows on either side of the middle one."""
        return int(self.tokens_CB.shape[1]) // 2

    def edges(self) -> Floats:
        """Return the ends of the rows in d [B + 1], ascending. The middle row spans −floor to floor."""
        outwards = self.floor * np.exp(self.merged * LOG_GAMMA * np.arange(self.side + 1))
        return np.concatenate([-outwards[::-1], outwards])

    def quantiles(self, q: Sequence[float]) -> Floats:
        """Return the quantiles of d per column [C, Q], NaN without a valid token. Tokens are assumed uniform within a
        row.
        """
        tokens_C1 = self.tokens_CB.sum(axis=1, keepdims=True)
        reached_CB = np.cumsum(self.tokens_CB, axis=1)
        ranks_CQ = np.array(q) * tokens_C1
        row_CQ = np.sum(reached_CB[:, None, :] < ranks_CQ[:, :, None], axis=2)
        row_CQ = np.minimum(row_CQ, self.tokens_CB.shape[1] - 1)
        inside = np.take_along_axis(self.tokens_CB, row_CQ, axis=1)
        before = np.take_along_axis(reached_CB, row_CQ, axis=1) - inside
        share = np.divide(ranks_CQ - before, inside, out=np.full(ranks_CQ.shape, 0.5), where=inside > 0)
        ends = self.edges()
        low_CQ, high_CQ = ends[row_CQ], ends[row_CQ + 1]
        return np.where(tokens_C1 > 0, low_CQ + np.clip(share, 0, 1) * (high_CQ - low_CQ), np.nan)


def columns_of(steps: NDArray[np.int64], tokens: Floats, first: int, last: int) -> Columns:
    """Return at most `COLUMNS` columns for a range of steps. A column covers at least one step, and more steps if they
    have few tokens.

    Args:
        steps: steps of the run, ascending.
        tokens: number of tokens of each step, NaN if unknown.
        first: first step to show.
        last: last step to show.

    >>> columns_of(np.arange(0, 1000, 10), np.full(100, 1e5), 0, 999)
    Columns(first=0, last=999, width=10)
    >>> [columns_of(np.arange(1000), np.full(1000, tokens), 0, 999).size for tokens in (1e5, 250.0)]
    [200, 100]
    """
    chosen = (steps >= first) & (steps <= last)
    inside, span = steps[chosen], last - first + 1
    apart = int(np.median(np.diff(inside))) if len(inside) > 1 else 1
    tokens_shown = np.nansum(tokens[chosen])
    wanted = int(np.clip(tokens_shown // _ENOUGH, _FEWEST, COLUMNS))
    return Columns(first, last, max(1, apart, -(-span // wanted)))


def read(source: Source, run: str, pair: str, columns: Columns) -> Density:
    """Return the density of a pair's log-ratios. Columns with few tokens have coarse rows.

    Raises:
        QueryError: the store refused, see `Reader.read`.
    """
    span = {"run": run, "first": columns.first, "last": columns.last, "width": columns.width}
    by_column = queries.app_mismatch_columns(source, **span)
    bins_per_row = FINE if _usual_tokens(by_column) >= _FEW else COARSE
    cells = queries.app_mismatch_density(source, pair=pair, merge=bins_per_row, **span)
    valid = cells.filter(cells["bin"].is_valid())
    broken = cells.filter(cells["bin"].is_null())
    column, number, tokens = (valid[name].to_numpy().astype(np.int64) for name in ("column", "bin", "tokens"))
    low, high = _span(number, tokens, math.ceil(DECADES * _rows_per_decade(bins_per_row)))
    return Density(
        columns=columns,
        merged=bins_per_row,
        floor=SMALLEST * math.exp(low * bins_per_row * LOG_GAMMA),
        tokens_CB=_grid(column, _row(number, low, high), tokens, (columns.size, 2 * (high - low) + 1)),
        broken_C=_spread(broken, "tokens", columns.size),
        **{
            f"{name}_C": _spread(by_column, name, columns.size)
            for name in ("steps", "profiled", "kept", "expected", "seen")
        },
    )


def _rows_per_decade(merged: int) -> float:
    return math.log(10) / (merged * LOG_GAMMA)


def _usual_tokens(by_column: pa.Table) -> float:
    return float(np.median(by_column["expected"].to_numpy())) if by_column.num_rows else 0.0


def _span(number: Counts, tokens: Counts, most: int) -> tuple[int, int]:
    """Return the rows of |d| at which the middle row and the grid end, counted from `SMALLEST`.

    At most `most` rows lie in between, and the outermost row is empty.
    """
    size = np.abs(number)
    counts = np.bincount(size[size > 0], tokens[size > 0])
    if not counts.any():
        return 0, 1
    high = len(counts)
    usual = int(np.searchsorted(np.cumsum(counts), _NEAR_ZERO * counts.sum()))
    low = max(usual - 1, high - most)
    return max(0, min(low, high - 1)), high


def _row(number: Counts, low: int, high: int) -> Counts:
    row: Counts = (high - low) + np.sign(number) * np.clip(np.abs(number) - low, 0, high - low)
    return row


def _grid(column: Counts, row: Counts, tokens: Counts, shape: tuple[int, int]) -> Counts:
    grid = np.zeros(shape, np.int64)
    np.add.at(grid, (column, row), tokens)
    return grid


def _spread(table: pa.Table, name: str, size: int) -> Counts:
    """Return a column of a table by `column` of the grid, 0 for missing columns."""
    values = np.zeros(size, np.int64)
    values[table["column"].to_numpy()] = table[name].to_numpy()
    return values
