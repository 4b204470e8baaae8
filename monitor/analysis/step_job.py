"""The step job: from per-sequence statistics to step metrics, for the steps that received data since they were last
computed.

Ingest appends a mark to `dirty_steps` in the transaction that brings data. The job reads the marks first and the data
after, computes, and in one transaction writes the metrics and deletes exactly the marks it has read. Data that arrives
meanwhile brings its own mark, so its step is computed again; nothing is lost and nothing is computed from half a commit
for longer than one round.

Steps that a later attempt trained again under the run's name: the newest attempt counts, older ones are set aside.

An older attempt is known by what a trainer says of itself (`Recorder.begins`), never by what its records look like:
other ranks, micro-batches and sessions at work at the same time are one attempt. What is set aside lies in the tables
``older_*``, where no metric looks, and comes back when its writer turns out to have been at work still. A step of the
older attempt counts until the newest has recorded it, too. Of a step that had been folded the sums go, and its sample
is what is set aside; where the sample is gone as well, nothing tells the attempts apart.

The tables that metrics are computed from hold everything the store knows of some steps. A statement takes milliseconds,
however little it reads. So all are read on one snapshot, and what is simple in most runs is folded here, on arrays; its
statement is for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.metrics.catalog import KEYS, evaluate
from logprobe.monitor.metrics.lag import is_number
from logprobe.monitor.metrics.publications import DURATIONS, TIMES, publication_rows
from logprobe.monitor.metrics.sums import Floats, StepSums
from logprobe.monitor.metrics.tables import NO_FOLDED_PAIRS, StepTables, step_sums
from logprobe.monitor.store.store import Store

STEPS_PER_BATCH: Final = 256  # of one transaction: bounds memory, and how long other writers wait

# Dropping by range first lets the store skip what lies outside; steps of a batch need not be contiguous.
_DROP_METRICS: Final = """
DELETE FROM step_metrics
WHERE run BETWEEN $first_run AND $last_run AND step BETWEEN $first AND $last
    AND EXISTS (FROM computed_summaries AS c WHERE c.run = step_metrics.run AND c.step = step_metrics.step)
"""
_WRITE_METRICS: Final = "INSERT INTO step_metrics SELECT run, step, metric, value FROM computed_metrics"
_WRITE_SUMMARIES: Final = """
INSERT OR REPLACE INTO step_summaries
SELECT run, step, tokens, sequences, time, computed_at, nextval('revision') FROM computed_summaries
"""
_CLEAR_MARKS: Final = "DELETE FROM dirty_steps WHERE mark IN (SELECT mark FROM computed_marks)"
_SET_ASIDE: Final = ("attempts_statistics", "attempts_forget_statistics", "attempts_records", "attempts_forget_records")
_FOLDED: Final = (
    "folded_steps",
    "folded_pairs",
    "folded_spans",
    "folded_joins",
    "sampled_sequences",
)  # a row per step, or more
_SPAN_KEY: Final = ("step", "trainer_version", "version", "run")
_LAG: Final = ("run", "version", "step", "time", "source")  # what a lag needs of a weight record


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one run of the job did; `remaining` dirty steps are left because of `max_steps`."""

    runs: int
    steps: int
    sequences: int
    remaining: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some dirty steps of some runs, ascending [G], and the marks that made them dirty.

    Of several runs, because a small statement takes milliseconds, whatever it reads, and a step takes a dozen of them.
    """

    runs: list[str]
    steps: NDArray[np.int64]
    marks: NDArray[np.int64]


class StepJob:
    """Recomputes dirty steps of a store."""

    def __init__(self, store: Store, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = store
        self._now = now

    def run_once(self, *, max_steps: int | None = None) -> StepReport:
        """Compute the steps that are dirty now, at most `max_steps` of them.

        Raises:
            StoreError: the store failed; the steps of the failed transaction stay dirty.
        """
        started = time.perf_counter()
        settle(self._store, queries.dirty_steps(self._store.kept))
        marks = queries.dirty_steps(self._store.kept)
        sequences = steps = 0
        runs = set()
        for batch in _batches(marks, max_steps):
            sequences += self._compute(batch)
            steps += len(batch.steps)
            runs.update(batch.runs)
        return StepReport(len(runs), steps, sequences, _distinct_steps(marks) - steps, time.perf_counter() - started)

    def _compute(self, batch: _Batch) -> int:
        """Compute and write one batch; → its sequences."""
        chosen = _chosen(batch.runs, batch.steps)
        places = chosen["place"].to_numpy()
        tables = step_tables(self._store, chosen)
        sums = step_sums(places, tables)
        computed = {
            "computed_metrics": _metric_rows(batch, evaluate(sums)),
            "computed_summaries": _summary_rows(batch, sums, newest(places, tables), self._now()),
            "computed_marks": pa.table({"mark": batch.marks}),
        }
        with self._store.transaction() as cursor, _registered(cursor, computed):
            cursor.execute(_DROP_METRICS, range_of(chosen))
            for statement in (_WRITE_METRICS, _WRITE_SUMMARIES, _CLEAR_MARKS):
                cursor.execute(statement)
        return int(tables.sequences.num_rows)


def _chosen(runs: Sequence[str], steps: NDArray[np.int64]) -> pa.Table:
    """Steps of runs for `step_tables`; the place of each is its number here."""
    return pa.table({"run": pa.array(runs, pa.string()), "step": steps, "place": np.arange(len(steps))})


def _batches(marks: pa.Table, max_steps: int | None) -> Iterator[_Batch]:
    """Marks, ordered by run and step, in batches of `STEPS_PER_BATCH` steps."""
    rows = zip(*(marks[name].to_pylist() for name in ("run", "step", "mark")), strict=True)
    steps = [(key, [mark for *_, mark in of_step]) for key, of_step in groupby(rows, key=lambda row: row[:2])]
    steps = steps[:max_steps]
    for start in range(0, len(steps), STEPS_PER_BATCH):
        chosen = steps[start : start + STEPS_PER_BATCH]
        yield _Batch(
            runs=[run for (run, _), _ in chosen],
            steps=np.array([step for (_, step), _ in chosen], np.int64),
            marks=np.array([mark for _, of_step in chosen for mark in of_step], np.int64),
        )


def _distinct_steps(marks: pa.Table) -> int:
    return int(marks.group_by(["run", "step"]).aggregate([]).num_rows)


def _metric_rows(batch: _Batch, values: dict[str, Floats]) -> pa.Table:
    """One row per step and metric, null for what cannot be measured."""
    steps = len(batch.steps)
    value = np.concatenate([values[key] for key in KEYS])
    return pa.table(
        {
            "run": pa.array(batch.runs * len(KEYS), pa.string()),
            "step": np.tile(batch.steps, len(KEYS)),
            "metric": pa.DictionaryArray.from_arrays(
                np.repeat(np.arange(len(KEYS), dtype=np.int32), steps), list(KEYS)
            ),
            "value": pa.array(value, mask=np.isnan(value)),
        }
    )


def _summary_rows(batch: _Batch, sums: StepSums, times: pa.Array, now: datetime) -> pa.Table:
    return pa.table(
        {
            "run": pa.array(batch.runs, pa.string()),
            "step": batch.steps,
            "tokens": sums.expected.astype(np.int64),
            "sequences": sums.groups.count().astype(np.int64),
            "time": times,
            "computed_at": pa.array([now] * len(batch.steps), pa.timestamp("us", "UTC")),
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


@contextmanager
def _registered(cursor: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]) -> Iterator[None]:
    """Lets statements of a transaction read Arrow tables by name; a rollback takes the names back by itself."""
    for name, table in tables.items():
        cursor.register(name, table)
    yield
    for name in tables:
        cursor.unregister(name)


def settle(store: Store, marks: pa.Table) -> None:
    """Sets aside, or brings back, sequences of the dirty steps in `marks` (``run``, ``step``). Raises `StoreError`,
    `QueryError`."""
    steps = marks.select(["run", "step"]).group_by(["run", "step"]).aggregate([])
    runs = queries.attempts_runs(store, steps)["run"] if steps.num_rows else None
    if not runs:
        return
    steps = steps.filter(pc.is_in(steps["run"], runs.combine_chunks()))
    _bring_back(store, queries.attempts_disproved(store, steps))
    _set_aside(store, steps, queries.attempts_older(store, steps), queries.attempts_folded(store, steps))


def _set_aside(store: Store, steps: pa.Table, older: pa.Table, folded: pa.Table) -> None:
    with store.transaction() as cursor:
        if folded.num_rows:
            store.execute(cursor, "attempts_set_aside_sample", folded)
            for name in _FOLDED:
                store.execute(cursor, "forget_steps", folded, table=name)
        if older.num_rows:
            store.execute(cursor, "attempts_set_aside", older)
            store.execute(cursor, "attempts_forget", older, table="training_sequences")
        for name in _SET_ASIDE:
            store.execute(cursor, name, steps)


def _bring_back(store: Store, sequences: pa.Table) -> None:
    if not sequences.num_rows:
        return
    with store.transaction() as cursor:
        for name in ("attempts_bring_back", "attempts_bring_back_statistics", "attempts_bring_back_records"):
            store.execute(cursor, name, sequences)
        for table in ("older_sequences", "older_statistics"):
            store.execute(cursor, "attempts_forget", sequences, table=table)
        store.execute(cursor, "attempts_forget_older_records", sequences)
        store.execute(cursor, "mark_dirty", sequences)


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
