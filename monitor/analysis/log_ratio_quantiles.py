"""Quantiles of the log-ratio d = policy − behaviour by step, from stored profiles.

A column covers one or more steps. A quantile is the value of the profile's bin that holds it, within 1 % of |d|.

Dimensions: ``_C`` columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.analysis.profiles import bin_value
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import floats

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

COLUMNS: Final = 240
_ENOUGH: Final = 2_500  # tokens of a column, while there are more than `_FEWEST` of them
_FEWEST: Final = 60
NAMES: Final = ("p1", "p10", "p50", "p90", "p99")
_COUNTS: Final = ("steps", "profiled", "kept", "expected", "seen", "drawn", "broken")


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
class Quantiles:
    """Quantiles of d per column.

    Attributes:
        columns: steps of the columns.
        d_C: values by name (`NAMES`), NaN without a valid token.
        counts_C: numbers by name. Finished `steps`, of these `profiled`, and of these `kept`, with raw tokens at
            profiling. Tokens under the mask: `expected`, of these `seen` by the profile, `drawn` with a log-ratio, and
            `broken`.
    """

    columns: Columns
    d_C: Mapping[str, Floats]
    counts_C: Mapping[str, Counts]


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


def read(source: Source, run: str, pair: str, columns: Columns) -> Quantiles:
    """Return the quantiles of a pair's log-ratios. Raises `QueryError` if the store refused, see `Reader.read`."""
    rows = queries.app_mismatch_quantiles(
        source, run=run, pair=pair, first=columns.first, last=columns.last, width=columns.width
    )
    place = rows["column"].to_numpy()

    def spread(values: Floats, missing: float) -> Floats:
        whole = np.full(columns.size, missing)
        whole[place] = values
        return whole

    bins = {name: floats(rows[name]) for name in NAMES}
    return Quantiles(
        columns=columns,
        d_C={name: spread(np.copysign(bin_value(values), values), np.nan) for name, values in bins.items()},
        counts_C={name: spread(floats(rows[name]), 0).astype(np.int64) for name in _COUNTS},
    )
