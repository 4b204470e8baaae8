"""The step job: from per-sequence statistics to step metrics, for the steps that received data since they were last computed.

Ingest appends a mark to `dirty_steps` in the transaction that brings data. The job reads the marks first and the data after,
computes, and in one transaction writes the metrics and deletes exactly the marks it has read. Data that arrives meanwhile
brings a mark of its own, so its step is computed again; nothing is lost and nothing is computed from half a commit for longer
than one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.monitor.metrics.catalog import KEYS, evaluate
from logprobe.monitor.metrics.sums import Floats, StepSums
from logprobe.monitor.metrics.tables import StepTables, step_sums
from logprobe.monitor.store import Store

STEPS_PER_BATCH: Final = 256  # of one run and transaction: bounds memory, and how long other writers wait

# Dropping by range first lets the store skip what lies outside; steps of a batch need not be contiguous.
_DROP_METRICS: Final = """
DELETE FROM step_metrics
WHERE run = $run AND step BETWEEN $first AND $last AND step IN (SELECT step FROM computed_summaries)
"""
_WRITE_METRICS: Final = "INSERT INTO step_metrics SELECT run, step, metric, value FROM computed_metrics"
_WRITE_SUMMARIES: Final = """
INSERT OR REPLACE INTO step_summaries
SELECT run, step, tokens, sequences, time, computed_at, nextval('revision') FROM computed_summaries
"""
_CLEAR_MARKS: Final = "DELETE FROM dirty_steps WHERE mark IN (SELECT mark FROM computed_marks)"


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
    """Some dirty steps of one run, ascending, and the marks that made them dirty."""

    run: str
    steps: NDArray[np.int64]
    marks: NDArray[np.int64]


class StepJob:
    """Recomputes dirty steps of a store."""

    def __init__(self, store: Store, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = store
        self._now = now
        self._shown: frozenset[str] = frozenset()  # metrics and scalars for which the view `steps` has columns

    def run_once(self, *, max_steps: int | None = None) -> StepReport:
        """Compute the steps that are dirty now, at most `max_steps` of them.

        Raises:
            StoreError: the store failed; the steps of the failed transaction stay dirty.
        """
        started = time.perf_counter()
        marks = self._store.read("dirty_steps")
        sequences = steps = 0
        runs = set()
        for batch in _batches(marks, max_steps):
            sequences += self._compute(batch)
            steps += len(batch.steps)
            runs.add(batch.run)
        return StepReport(len(runs), steps, sequences, _distinct_steps(marks) - steps, time.perf_counter() - started)

    def _compute(self, batch: _Batch) -> int:
        """Compute and write one batch; → its sequences."""
        tables = self._tables(batch)
        sums = step_sums(batch.steps, tables)
        computed = {
            "computed_metrics": _metric_rows(batch, evaluate(sums)),
            "computed_summaries": _summary_rows(batch, sums, tables, self._now()),
            "computed_marks": pa.table({"mark": batch.marks}),
        }
        shown = self._shown.union(KEYS, *tables.scalars["names"].to_pylist())
        with self._store.transaction() as cursor, _registered(cursor, computed):
            span = {"run": batch.run, "first": int(batch.steps[0]), "last": int(batch.steps[-1])}
            cursor.execute(_DROP_METRICS, span)
            for statement in (_WRITE_METRICS, _WRITE_SUMMARIES, _CLEAR_MARKS):
                cursor.execute(statement)
            if shown != self._shown:
                self._store.refresh_steps_view(cursor)
        self._shown = shown
        return int(tables.sequences.num_rows)

    def _tables(self, batch: _Batch) -> StepTables:
        selected = {"run": batch.run, "steps": batch.steps.tolist()}
        read = self._store.read
        return StepTables(
            sequences=read("step_sequences", **selected),
            statistics=read("step_statistics", **selected),
            spans=read("step_spans", **selected),
            scalars=read("step_scalars", **selected),
            weights=read("step_weights", run=batch.run),
            publications=read("step_publications", **selected),
        )


def _batches(marks: pa.Table, max_steps: int | None) -> Iterator[_Batch]:
    """Marks, ordered by run and step, in batches of `STEPS_PER_BATCH` steps of one run."""
    left = _distinct_steps(marks) if max_steps is None else max_steps
    rows = zip(*(marks[name].to_pylist() for name in ("run", "step", "mark")), strict=True)
    for run, of_run in groupby(rows, key=lambda row: row[0]):
        table = np.array([(step, mark) for _, step, mark in of_run], np.int64)
        steps = np.unique(table[:, 0])[:left]
        left -= len(steps)
        for start in range(0, len(steps), STEPS_PER_BATCH):
            chosen = steps[start : start + STEPS_PER_BATCH]
            yield _Batch(run, chosen, table[np.isin(table[:, 0], chosen), 1])


def _distinct_steps(marks: pa.Table) -> int:
    return int(marks.group_by(["run", "step"]).aggregate([]).num_rows)


def _metric_rows(batch: _Batch, values: dict[str, Floats]) -> pa.Table:
    """One row per step and metric, null for what cannot be measured."""
    steps = len(batch.steps)
    value = np.concatenate([values[key] for key in KEYS])
    return pa.table(
        {
            "run": pa.repeat(batch.run, len(value)),
            "step": np.tile(batch.steps, len(KEYS)),
            "metric": pa.DictionaryArray.from_arrays(
                np.repeat(np.arange(len(KEYS), dtype=np.int32), steps), list(KEYS)
            ),
            "value": pa.array(value, mask=np.isnan(value)),
        }
    )


def _summary_rows(batch: _Batch, sums: StepSums, tables: StepTables, now: datetime) -> pa.Table:
    steps = len(batch.steps)
    return pa.table(
        {
            "run": pa.repeat(batch.run, steps),
            "step": batch.steps,
            "tokens": sums.expected.astype(np.int64),
            "sequences": sums.groups.count().astype(np.int64),
            "time": _newest(batch.steps, tables),
            "computed_at": pa.array([now] * steps, pa.timestamp("us", "UTC")),
        }
    )


def _newest(steps: NDArray[np.int64], tables: StepTables) -> pa.Array:
    """Time of the newest record of each step, null without one."""
    columns = ["step", "time"]
    records = pa.concat_tables([tables.sequences.select(columns), tables.scalars.select(columns)])
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
