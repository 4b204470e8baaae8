"""Rows of the store → the sums that the catalog is evaluated on, for many steps at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor.ingest.sequence_rows import ROUTE_COLUMNS
from logprobe.monitor.metrics.lag import Versions, WeightRecord
from logprobe.monitor.metrics.sums import Floats, Groups, Lag, Ledger, Publications, StepSums
from logprobe.monitor.ragged import floats

# Of steps none of which was folded.
NO_FOLDED_PAIRS: Final = pa.schema(
    [("step", pa.int64()), ("pair", pa.string()), ("sums", pa.map_(pa.string(), pa.float64()))]
    + [(column.name, pa.float64()) for column in COLUMN_SPECS]
).empty_table()


@dataclass(frozen=True)
class StepTables:
    """Everything known of some steps, which the column ``step`` numbers; `monitor/sql/step_*.sql` say the columns."""

    sequences: pa.Table
    statistics: pa.Table
    spans: pa.Table
    scalars: pa.Table
    weights: pa.Table
    publications: pa.Table
    folded: pa.Table
    folded_pairs: pa.Table


def step_sums(steps: NDArray[np.int64], tables: StepTables, *, to_be_kept: bool = False) -> StepSums:
    """Sums of these steps, ascending [G]. `to_be_kept`: see `Ledger`."""
    sequences = tables.sequences
    result = StepSums(
        groups=_groups(steps, sequences, folded_sums(steps, tables.folded, to_be_kept=to_be_kept)),
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
        versions={name: floats(sequences[name]) for name in ("versions_compared", "versions_differing")},
        publications=_publications(steps, tables.publications),
    )
    for pair in PAIRS:
        rows, folded = (
            table.filter(pc.equal(table["pair"], pair)) for table in (tables.statistics, tables.folded_pairs)
        )
        if rows.num_rows or folded.num_rows:
            columns = {c.name: rows[c.name].to_numpy() for c in COLUMN_SPECS}
            before = {c.name: folded[c.name] for c in COLUMN_SPECS}
            ledger = folded_sums(steps, folded, before, to_be_kept=to_be_kept)
            result.add_pair(pair, columns, _groups(steps, rows, ledger))
    return result


def folded_sums(
    steps: NDArray[np.int64],
    table: pa.Table,
    columns: Mapping[str, pa.ChunkedArray] | None = None,
    *,
    to_be_kept: bool = False,
) -> Ledger:
    """Return the folded sums of these steps: the map `sums` of each row of `table`, and `columns` of it by name."""
    place = np.searchsorted(steps, table["step"].to_numpy())
    folded = np.zeros(len(steps), np.bool_)
    folded[place] = True
    before: dict[str, Floats] = {}
    for name, column in (columns or {}).items():
        before[name] = np.full(len(steps), np.nan)
        before[name][place] = floats(column)
    for row, sums in zip(place, table["sums"].to_pylist(), strict=True):
        for name, value in sums or ():
            before.setdefault(name, np.full(len(steps), np.nan))[row] = value
    return Ledger(folded, before, to_be_kept=to_be_kept)


# The first two replace what training records do not carry, the others come with the correction that a step states.
_SCALARS = ("entropy", "reward", "is_weight_mean", "clipped_frac")


def _groups(steps: NDArray[np.int64], table: pa.Table, ledger: Ledger | None = None) -> Groups:
    return Groups(np.searchsorted(steps, table["step"].to_numpy()), len(steps), ledger)


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
    _, sequence = np.unique(spans["sequence"].to_numpy(), return_inverse=True)
    return Lag(
        groups=_groups(steps, spans),
        sequence=sequence.astype(np.intp),
        tokens=floats(spans["tokens"]),
        known=pc.is_valid(spans["version"]).to_numpy(),
        alike=floats(spans["alike"]),
        **_lags(spans, weights),
    )


def _lags(spans: pa.Table, weights: pa.Table) -> dict[str, Floats]:
    """Lags of `spans`: a label means something within its run only."""
    runs = spans["run"].unique().to_pylist()
    if len(runs) <= 1:
        return _versions(weights).lags(spans["trainer_version"], spans["version"])
    by_unit = {name: np.full(spans.num_rows, np.nan) for name in ("versions", "steps", "seconds")}
    for run in runs:
        of_run = pc.equal(spans["run"], run)
        own = spans.filter(of_run)
        lags = _versions(weights.filter(pc.equal(weights["run"], run))).lags(own["trainer_version"], own["version"])
        for name, values in lags.items():
            by_unit[name][np.asarray(of_run)] = values
    return by_unit


def _versions(weights: pa.Table) -> Versions:
    return Versions.from_records(WeightRecord(**row) for row in weights.drop_columns("run").to_pylist())
