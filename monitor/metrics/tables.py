"""Rows of the store → the sums that the catalog is evaluated on, for many steps of one run at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.statistics import COLUMN_SPECS, PAIRS
from logprobe.monitor.columns import floats
from logprobe.monitor.metrics.lag import Versions, WeightRecord
from logprobe.monitor.metrics.sums import Floats, Groups, Lag, Publications, StepSums
from logprobe.monitor.route_counts import ROUTE_COLUMNS


@dataclass(frozen=True)
class StepTables:
    """Everything known of some steps of one run; `monitor/sql/step_*.sql` say the columns."""

    sequences: pa.Table
    statistics: pa.Table
    spans: pa.Table
    scalars: pa.Table
    weights: pa.Table
    publications: pa.Table


def step_sums(steps: NDArray[np.int64], tables: StepTables) -> StepSums:
    """Sums of these steps, ascending [G]."""
    sequences = tables.sequences
    result = StepSums(
        groups=_groups(steps, sequences),
        lag=_lag(steps, tables.spans, tables.weights),
        scalars=_scalars(steps, tables.scalars),
        n_expected=floats(sequences["n_expected"]),
        reward=floats(sequences["reward"]),
        advantage_abs_sum=floats(sequences["advantage_abs_sum"]),
        entropy_sum=floats(sequences["entropy_sum"]),
        entropy_n=floats(sequences["entropy_n"]),
        token_match=floats(sequences["token_match"]),
        length_match=floats(sequences["length_match"]),
        routes={name: floats(sequences[name]) for name in ROUTE_COLUMNS},
        publications=_publications(steps, tables.publications),
    )
    for pair in PAIRS:
        rows = tables.statistics.filter(pc.equal(tables.statistics["pair"], pair))
        if rows.num_rows:
            columns = {c.name: rows[c.name].to_numpy() for c in COLUMN_SPECS}
            result.add_pair(pair, columns, _groups(steps, rows))
    return result


# The first two stand in for what training records do not carry, the others come with the correction that a step states.
_SCALARS = ("entropy", "reward", "is_weight_mean", "clipped_frac")


def _groups(steps: NDArray[np.int64], table: pa.Table) -> Groups:
    return Groups(np.searchsorted(steps, table["step"].to_numpy()), len(steps))


def _scalars(steps: NDArray[np.int64], table: pa.Table) -> Mapping[str, Floats]:
    index = np.searchsorted(steps, table["step"].to_numpy())
    result = {name: np.full(len(steps), np.nan) for name in _SCALARS}
    for name, values in result.items():
        values[index] = floats(table[name])
    return result


def _publications(steps: NDArray[np.int64], table: pa.Table) -> Publications:
    durations = {name: floats(table[name]) for name in ("delay", "resume_delay", "pause")}
    return Publications(groups=_groups(steps, table), **durations)


def _lag(steps: NDArray[np.int64], spans: pa.Table, weights: pa.Table) -> Lag:
    versions = Versions.from_records(WeightRecord(**row) for row in weights.to_pylist())
    lags = versions.lags(spans["trainer_version"], spans["version"])
    _, sequence = np.unique(spans["sequence"].to_numpy(), return_inverse=True)
    return Lag(
        groups=_groups(steps, spans),
        sequence=sequence.astype(np.intp),
        tokens=floats(spans["tokens"]),
        known=pc.is_valid(spans["version"]).to_numpy(),
        **lags,
    )
