"""Everything that the tables of the store know of some steps, and the sums and metrics that follow.

For steps whose sequences were folded into sums, and for statistics that were computed again; others are computed from
memory (`monitor.live`).

A statement takes milliseconds, however little it reads. So all are read on one snapshot, and what is simple in most
runs is folded here, on arrays; its statement is for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.live.rows import whole_numbers
from logprobe.monitor.live.tick import Computed
from logprobe.monitor.metrics.catalog import KEYS, evaluate
from logprobe.monitor.metrics.lag import is_number
from logprobe.monitor.metrics.publications import DURATIONS, TIMES, publication_rows
from logprobe.monitor.metrics.tables import NO_FOLDED_PAIRS, StepTables, step_sums
from logprobe.monitor.store.store import Store

_SPAN_KEY: Final = ("step", "trainer_version", "version", "run")
_LAG: Final = ("run", "version", "step", "time", "source")  # what a lag needs of a weight record


def computed(source: queries.Source, steps: Sequence[tuple[str, int]]) -> Computed:
    """Return what the tables say of some steps, ascending; `source` knows them as `chosen` under ``incoming``."""
    table = chosen(steps)
    places = table["place"].to_numpy()
    tables = _tables(source, table)
    sums = step_sums(places, tables)
    values = evaluate(sums)
    return Computed(
        steps=steps,
        values={key: values[key] for key in KEYS},
        tokens=sums.expected.astype(np.int64),
        sequences=sums.groups.count().astype(np.int64),
        times=whole_numbers(pa.chunked_array([newest(places, tables)])).tolist(),
    )


def chosen(steps: Sequence[tuple[str, int]]) -> pa.Table:
    """Return steps of runs for `step_tables`; the place of each is its number here."""
    runs, numbers = [run for run, _ in steps], [number for _, number in steps]
    return pa.table(
        {
            "run": pa.array(runs, pa.string()),
            "step": pa.array(numbers, pa.int64()),
            "place": np.arange(len(steps)),
        }
    )


def newest(steps: NDArray[np.int64], tables: StepTables) -> pa.Array:
    """Time of the newest record of each step, null without one."""
    columns = ["step", "time"]
    records = pa.concat_tables([table.select(columns) for table in (tables.sequences, tables.scalars, tables.folded)])
    newest = records.group_by("step").aggregate([("time", "max")])
    return (
        newest["time_max"]
        .combine_chunks()
        .take(pc.index_in(pa.array(steps), value_set=newest["step"].combine_chunks()))
    )


def step_tables(store: Store, chosen: pa.Table) -> StepTables:
    """Everything known of some steps, on one snapshot. Raises `QueryError`.

    `chosen`: ``run``, ``step`` and ``place``, by which the tables name the step in their column ``step``; in the order
    of all three.
    """
    return store.read_together(lambda source: _tables(source, chosen), chosen)


def range_of(chosen: pa.Table) -> dict[str, Any]:
    """First and last run and step, for zone maps."""
    runs, steps = (pc.min_max(chosen[name]).as_py() for name in ("run", "step"))
    return {"first_run": runs["min"], "last_run": runs["max"], "first": steps["min"], "last": steps["max"]}


def _tables(source: queries.Source, chosen: pa.Table) -> StepTables:
    span = range_of(chosen)
    folded = queries.fold_steps(source)
    sequences = queries.step_sequences(source, **span)
    simple = not folded.num_rows and pc.all(sequences["whole"]).as_py()
    spans = whole_spans(sequences) if simple else queries.step_spans(source, **span)
    records, weights = _weights(source, spans)
    return StepTables(
        sequences=_with_stated(source, span, sequences),
        statistics=queries.step_statistics(source, **span),
        spans=spans,
        scalars=queries.step_scalars(source, **span),
        weights=weights,
        publications=publications(chosen, records),
        folded=folded,
        folded_pairs=queries.fold_pairs(source) if folded.num_rows else NO_FOLDED_PAIRS,
    )


def whole_spans(sequences: pa.Table) -> pa.Table:
    """What ``sql/step_spans.sql`` reads, of `sequences` each of which is `whole`, see ``sql/step_sequences.sql``."""
    sampled = sequences.filter(pc.greater(sequences["sampled"], 0)).select([*_SPAN_KEY, "sampled"])
    kinds = sampled.group_by(_SPAN_KEY, use_threads=False).aggregate([("sampled", "sum"), ([], "count_all")])
    kinds = kinds.sort_by([(name, "ascending") for name in _SPAN_KEY[:-1]]).combine_chunks()
    version = pa.array(kinds["version"].to_pylist(), pa.string())
    return pa.table(
        {
            "sequence": np.arange(1, kinds.num_rows + 1),
            **{name: kinds[name] for name in ("run", "step", "trainer_version")},
            "versions": pa.ListArray.from_arrays(np.arange(kinds.num_rows + 1, dtype=np.int32), version),
            "version": version,
            "tokens": kinds["sampled_sum"],
            "alike": kinds["count_all"],
        }
    )


def _with_stated(source: queries.Source, span: Mapping[str, Any], sequences: pa.Table) -> pa.Table:
    """Adds what both sides say about the weights. Few trainers say anything, and the statement takes long to plan."""
    if not pc.any(sequences["stated"]).as_py():
        nothing = pa.nulls(sequences.num_rows, pa.int64())
        return sequences.append_column("versions_compared", nothing).append_column("versions_differing", nothing)
    stated = queries.step_stated(source, **span)
    place = pc.index_in(sequences["sequence"], value_set=stated["sequence"].combine_chunks())
    for name in ("versions_compared", "versions_differing"):
        sequences = sequences.append_column(name, stated[name].take(place))
    return sequences


def _weights(source: queries.Source, spans: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Weight records of versions that the chosen steps brought; and those of the versions in `spans`.

    The latter of all versions of a run where one is not a number, because those count by their order.
    """
    labels = {
        (run, label)
        for name in ("trainer_version", "version")
        for run, label in zip(spans["run"].to_pylist(), spans[name].to_pylist(), strict=True)
        if label is not None
    }
    whole = pa.array(sorted({run for run, label in labels if not is_number(label)}), pa.string())
    versions = pa.array(sorted({label for _, label in labels}), pa.string())
    records = queries.step_weights_of(source, versions=versions.to_pylist(), whole=whole.to_pylist())
    used = pc.or_(pc.is_in(records["version"], versions), pc.is_in(records["run"], whole))
    return records.filter(records["news"]), records.filter(used).select(_LAG)


def publications(chosen: pa.Table, records: pa.Table) -> pa.Table:
    """How long the weights that the chosen steps produced took to reach the engines. One row per step, version and
    replica, in seconds.

    Null: a time is unknown, or clocks disagree so far that the end lies before the beginning. `records`: of
    ``sql/step_weights_of.sql``, all of each version.
    """
    places = {(row["run"], row["step"]): row["place"] for row in chosen.to_pylist()}
    for name in TIMES:
        at = records.schema.get_field_index(name)
        records = records.set_column(at, name, records[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    rows = publication_rows(places, records.to_pylist())
    columns = {name: pa.array([row[number] for row in rows], pa.float64()) for number, name in enumerate(DURATIONS, 2)}
    return pa.table({"step": pa.array([row[0] for row in rows], pa.int64()), **columns})
