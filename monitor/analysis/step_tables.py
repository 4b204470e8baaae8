"""Everything the store knows of some steps: the tables that their metrics are computed from.

A statement takes milliseconds, however little it reads. So all are read on one snapshot, and what is simple in most runs is folded
here, on arrays; its statement is for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.monitor.metrics.lag import is_number
from logprobe.monitor.metrics.tables import NO_FOLDED_PAIRS, StepTables
from logprobe.monitor.store.store import Read, Store

_SPAN_KEY: Final = ("step", "trainer_version", "version", "run")
_LAG: Final = ("run", "version", "step", "time", "source")  # what a lag needs of a weight record
_TIMES: Final = ("requested_at", "started_at", "applied_at", "resumed_at")
_DURATIONS: Final = ("delay", "resume_delay", "pause")
_Record = Mapping[str, Any]  # of weights, its `_TIMES` in microseconds


def step_tables(store: Store, chosen: pa.Table) -> StepTables:
    """Everything known of some steps, on one snapshot. Raises `QueryError`.

    `chosen`: ``run``, ``step`` and ``place``, by which the tables name the step in their column ``step``; in the order of all three.
    """
    return store.read_together(lambda read: _tables(read, chosen), chosen)


def range_of(chosen: pa.Table) -> dict[str, Any]:
    """First and last run and step, for zone maps."""
    runs, steps = (pc.min_max(chosen[name]).as_py() for name in ("run", "step"))
    return {"first_run": runs["min"], "last_run": runs["max"], "first": steps["min"], "last": steps["max"]}


def _tables(read: Read, chosen: pa.Table) -> StepTables:
    span = range_of(chosen)
    folded = read("fold_steps")
    sequences = _in_order(read("step_sequences", **span))
    simple = not folded.num_rows and pc.all(sequences["whole"]).as_py()
    spans = whole_spans(sequences) if simple else read("step_spans", **span)
    records, weights = _weights(read, spans)
    return StepTables(
        sequences=_with_stated(read, span, sequences),
        statistics=_in_order(read("step_statistics", **span)),
        spans=spans,
        scalars=read("step_scalars", **span),
        weights=weights,
        publications=publications(chosen, records),
        folded=folded,
        folded_pairs=read("fold_pairs") if folded.num_rows else NO_FOLDED_PAIRS,
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


def _with_stated(read: Read, span: Mapping[str, Any], sequences: pa.Table) -> pa.Table:
    """Adds what both sides say about the weights. Few trainers say anything, and the statement takes long to plan."""
    if not pc.any(sequences["stated"]).as_py():
        nothing = pa.nulls(sequences.num_rows, pa.int64())
        return sequences.append_column("versions_compared", nothing).append_column("versions_differing", nothing)
    stated = read("step_stated", **span)
    place = pc.index_in(sequences["sequence"], value_set=stated["sequence"].combine_chunks())
    for name in ("versions_compared", "versions_differing"):
        sequences = sequences.append_column(name, stated[name].take(place))
    return sequences


def _in_order(table: pa.Table) -> pa.Table:
    """In the order in which the rows came: it decides about the last digits of their sums, and a join may lose it."""
    sequence = table["sequence"].to_numpy()
    return table if (np.diff(sequence) >= 0).all() else table.take(pa.array(np.argsort(sequence, kind="stable")))


def _weights(read: Read, spans: pa.Table) -> tuple[pa.Table, pa.Table]:
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
    records = _in_order(read("step_weights_of", versions=versions.to_pylist(), whole=whole.to_pylist()))
    used = pc.or_(pc.is_in(records["version"], versions), pc.is_in(records["run"], whole))
    return records.filter(records["news"]), records.filter(used).select(_LAG)


def publications(chosen: pa.Table, records: pa.Table) -> pa.Table:
    """How long the weights that the chosen steps produced took to reach the engines. One row per step, version and replica, in seconds.

    Null: a time is unknown, or clocks disagree so far that the end lies before the beginning. `records`: of ``sql/step_weights_of.sql``,
    all of each version.
    """
    places = {(row["run"], row["step"]): row["place"] for row in chosen.to_pylist()}
    for name in _TIMES:
        at = records.schema.get_field_index(name)
        records = records.set_column(at, name, records[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    version_of = itemgetter("run", "version")
    rows: list[tuple[Any, ...]] = []
    for (run, version), found in groupby(sorted(records.to_pylist(), key=version_of), key=version_of):
        of_version = list(found)
        # Whoever knows of which step these weights are the result says it for all.
        step = min((record["step"] for record in of_version if record["step"] is not None), default=None)
        if (place := places.get((run, step))) is not None:
            rows += ((place, version, *row) for row in _of_replicas(of_version))
    rows.sort(key=itemgetter(0, 1))
    columns = {name: pa.array([row[number] for row in rows], pa.float64()) for number, name in enumerate(_DURATIONS, 2)}
    return pa.table({"step": pa.array([row[0] for row in rows], pa.int64()), **columns})


def _of_replicas(records: Sequence[_Record]) -> Iterator[tuple[float | None, ...]]:
    """`_DURATIONS` of one version, replica by replica; `records`: all that there are of it.

    Of several records of an engine the one that was applied first counts: later ones are reloads. A version that no engine has recorded
    is what the trainer says of it.
    """
    engines = any(record["source"] == "engine" for record in records)
    heard = [r for r in records if r["source"] is not None and (r["source"] == "engine") == engines]
    first: dict[str | None, _Record] = {}
    for record in sorted(heard, key=lambda r: [_or_last(r[name]) for name in ("applied_at", "resumed_at")]):
        first.setdefault(record["replica"], record)
    trainers = [record for record in records if record["source"] == "trainer"]
    for replica in sorted(first, key=_or_last):
        record = first[replica]
        asked = [record, *(t for t in trainers if t["replica"] in {None, replica})]
        begun = min((t[name] for t in asked for name in _TIMES[:2] if t[name] is not None), default=None)
        applied, resumed = record["applied_at"], record["resumed_at"]
        yield _seconds(begun, applied), _seconds(begun, resumed), _seconds(record["requested_at"], resumed)


def _or_last(value: Any) -> tuple[bool, Any]:
    """A key by which what is not known comes last."""
    return value is None, value


def _seconds(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None or end < begin else (end - begin) / 1e6
