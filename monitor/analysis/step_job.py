"""The step job: from per-sequence statistics to step metrics, for the steps that received data since they were last computed.

Ingest appends a mark to `dirty_steps` in the transaction that brings data. The job reads the marks first and the data after,
computes, and in one transaction writes the metrics and deletes exactly the marks it has read. Data that arrives meanwhile
brings a mark of its own, so its step is computed again; nothing is lost and nothing is computed from half a commit for longer
than one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from logprobe.monitor.analysis.attempts import settle
from logprobe.monitor.analysis.step_tables import range_of, step_tables
from logprobe.monitor.metrics.catalog import KEYS, evaluate
from logprobe.monitor.metrics.sums import Floats, StepSums
from logprobe.monitor.metrics.tables import StepTables, step_sums
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
        self._shown: frozenset[str] = frozenset()  # metrics and scalars for which the view `steps` has columns

    def run_once(self, *, max_steps: int | None = None) -> StepReport:
        """Compute the steps that are dirty now, at most `max_steps` of them.

        Raises:
            StoreError: the store failed; the steps of the failed transaction stay dirty.
        """
        started = time.perf_counter()
        settle(self._store, self._store.read("dirty_steps"))
        marks = self._store.read("dirty_steps")
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
        shown = self._shown.union(KEYS, *tables.scalars["names"].to_pylist())
        with self._store.transaction() as cursor, _registered(cursor, computed):
            cursor.execute(_DROP_METRICS, range_of(chosen))
            for statement in (_WRITE_METRICS, _WRITE_SUMMARIES, _CLEAR_MARKS):
                cursor.execute(statement)
            if shown != self._shown:
                self._store.refresh_steps_view(cursor)
        self._shown = shown
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
