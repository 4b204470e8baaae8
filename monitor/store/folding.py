"""A budget for the store: sequences of old steps are folded into sums, so that the store stays within a size and
metrics stay exact.

What grows with a run is kept of every step: its metrics, and the sums over sequences that they follow from, 4 to 5 kB.
What goes is one row per sequence and its statistics, and the profile of each step by itself. Of a folded step there
remain

* every metric, in every bit; data that arrive late are added to the sums, and the step is as if it had never been
  folded,
* the sums that diagnosis, status and the verdict "identical" read, for any window of steps,
* its profile as part of a window of `WINDOW` steps,
* a few sequences, as a sample (view ``sampled_sequences``), of the newest `SAMPLED_STEPS` folded steps of each run.

What needs all sequences of a step (slices, the gap by weight version, engine or prefix cache) has nothing to say of a
folded step.

A step is folded when the store exceeds its budget, those computed longest ago first; never the newest `PROTECTED_STEPS`
of a run, and none that is still receiving data. A batch is one transaction: killed in the middle, nothing has happened.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor import queries
from logprobe.monitor.analysis.step_tables import newest, step_tables
from logprobe.monitor.budgets import GIB, KEEP_STORE_GIB
from logprobe.monitor.metrics.catalog import evaluate
from logprobe.monitor.metrics.sums import Floats, Ledger, PairSums
from logprobe.monitor.metrics.tables import StepTables, step_sums
from logprobe.monitor.store.store import Store

PROTECTED_STEPS: Final = 64
QUIET: Final = timedelta(minutes=2)  # as long as an engine's records are waited for, see macro_steps_on_their_way
_DAY: Final = timedelta(days=1)
_GROWTH_PAUSE: Final = timedelta(minutes=10)  # between two sizes that are remembered
WINDOW: Final = 256  # steps whose profiles become one
WORST, CHANCE = 2, 2  # sequences of a step that its sample has
SAMPLED_STEPS: Final = 10_000
STEPS_PER_BATCH: Final = 128
SEQUENCES_PER_BATCH: Final = 50_000  # ingest waits while a batch is written
_LOW_WATER: Final = 0.9  # of the budget: what is folded to, so that a store at its limit is not folded all the time
_BATCHES_PER_CHECKPOINT: Final = 8
_REST: Final = 1.0  # times as long as a batch took
_CHECKPOINT_ATTEMPTS, _PAUSE = 20, 0.25  # seconds
_PRODUCTS: Final = ("c_nn", "c_dd", "c_dn", "c_aa", "c_an", "c_qq", "c_qn")
_GOING: Final = ("training_sequences", "statistics", "profiles")


@dataclass(frozen=True, slots=True)
class StoreBudget:
    """Limit of the store in bytes: its file without free blocks, and its write-ahead log; None: no limit."""

    max_bytes: int | None = int(KEEP_STORE_GIB * GIB)

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a negative limit."""
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ConfigurationError(f"the store's budget must not be negative: {self.max_bytes} bytes")


@dataclass(slots=True)
class FoldReport:
    """What one run did. `bytes`: in use now; `over`: more than the budget. `problem`: why it stays so.

    `growth`: bytes that were added in a day, by what was in use up to a day ago, folding included; None: not yet known.
    """

    steps: int = 0
    sequences: int = 0
    again: int = 0  # of these steps, those folded before that got late data
    batches: int = 0
    bytes: int = 0
    free_bytes: int = 0
    max_bytes: int | None = None
    over: bool = False
    growth: float | None = None
    problem: str | None = None
    seconds: float = 0.0


class Folder:
    """Keeps a store within its budget. One per store, used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        budget: StoreBudget | None = None,
        stopping: threading.Event | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        protected: int = PROTECTED_STEPS,
        quiet: timedelta = QUIET,
    ) -> None:
        """`stopping`: when set, work ends after the batch in hand."""
        self._store = store
        self._budget = budget or StoreBudget()
        self._stopping = stopping or threading.Event()
        self._now = now
        self._protected = protected
        self._quiet = quiet
        self._sizes: deque[tuple[datetime, int]] = deque(maxlen=_DAY // _GROWTH_PAUSE)

    def run_once(self) -> FoldReport:
        """Folds what arrived late of folded steps, and, beyond the budget, old steps until the store is well within it.

        Raises:
            StoreError: the store or the disk refused; what was not folded is tried again next time.
            QueryError: the store could not be read.
        """
        started = time.perf_counter()
        report = FoldReport(max_bytes=self._budget.max_bytes)
        self._measure(report)
        exceeded = self._is_exceeded(report)
        if exceeded and self._tidy():  # what an earlier run has folded may have become free only now
            self._measure(report)
            exceeded = self._is_exceeded(report)
        nothing_left = False
        while not self._stopping.is_set():
            due = self._due(only_again=not exceeded)
            for run, steps in _batches(due):
                begun = time.perf_counter()
                self._fold(run, steps, report)
                # Ingest has its turn: whoever lets go of the store and takes it again at once keeps all others waiting.
                if self._stopping.wait(_REST * (time.perf_counter() - begun)):
                    break
            if report.batches:
                freed = self._tidy()
                self._measure(report)
                if not freed:  # what is in use is not known
                    break
            exceeded = exceeded and report.bytes > _LOW_WATER * (self._budget.max_bytes or 0)
            nothing_left = not due.num_rows
            if nothing_left or not exceeded:
                break
        report.over = self._is_exceeded(report)
        report.growth = self._growth(report.bytes)
        if report.over and nothing_left:
            report.problem = (
                f"the store holds {report.bytes / GIB:.2f} GiB, its budget is "
                f"{(self._budget.max_bytes or 0) / GIB:.2f}, and every step that "
                "can be folded already is; give `logprobe up` a larger --keep-store-gib"
            )
        report.seconds = time.perf_counter() - started
        return report

    def _is_exceeded(self, report: FoldReport) -> bool:
        return self._budget.max_bytes is not None and report.bytes > self._budget.max_bytes

    def _growth(self, size: int) -> float | None:
        """Bytes a day since a day ago, or since this process started; None in its first minutes."""
        now = self._now()
        if not self._sizes or now - self._sizes[-1][0] >= _GROWTH_PAUSE:
            self._sizes.append((now, size))
        since, first = self._sizes[0]
        return None if now - since < _GROWTH_PAUSE else (size - first) / ((now - since) / _DAY)

    def _due(self, *, only_again: bool) -> pa.Table:
        return queries.fold_due(
            self._store,
            protected=self._protected,
            quiet_since=(self._now() - self._quiet).isoformat(),
            most=STEPS_PER_BATCH * _BATCHES_PER_CHECKPOINT,
            only_again=only_again,
        )

    def _measure(self, report: FoldReport) -> None:
        row = queries.fold_size(self._store).to_pylist()[0]
        log = self._store.home.database.with_name(f"{self._store.home.database.name}.wal")
        report.bytes = row["bytes"] + (log.stat().st_size if log.exists() else 0)
        report.free_bytes = row["free_bytes"]

    def _tidy(self) -> bool:
        """Whether the blocks of what was deleted are free now: DuckDB refuses while it finds someone else at work."""
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "fold_thin_sample", steps=SAMPLED_STEPS)
        for _ in range(_CHECKPOINT_ATTEMPTS):
            with suppress(StoreError):
                self._store.checkpoint()
                return True
            self._stopping.wait(_PAUSE)
        return False

    def _fold(self, run: str, due: list[Mapping[str, Any]], report: FoldReport) -> None:
        """One batch. Sums are computed beside everybody else's work; they count if the steps have not changed
        meanwhile."""
        steps = np.array(sorted(row["step"] for row in due), np.int64)
        again = {row["step"] for row in due if row["again"]}
        chosen = pa.table(
            {"run": pa.repeat(run, len(steps)), "step": steps, "again": [step in again for step in steps.tolist()]}
        )
        rows = folded_rows(self._store, run, steps, self._now())
        windows = queries.fold_profiles(self._store, chosen.select(["run", "step"]), width=WINDOW)
        with self._store.transaction() as cursor:
            if not self._unchanged(run, due):
                return
            self._write(cursor, chosen, rows)
            self._write_profiles(cursor, chosen, windows)
            # Not before: a sequence of another step may have been joined with one of them a moment ago.
            self._forget(cursor, chosen, queries.fold_rollouts_due(self._store, run=run, steps=steps.tolist()))
            self._store.rewritten.note([run])
        report.steps += len(steps)
        report.again += len(again)
        report.sequences += sum(row["sequences"] for row in due)
        report.batches += 1

    def _unchanged(self, run: str, due: list[Mapping[str, Any]]) -> bool:
        """Whether the steps are as they were when they were looked up; data that came since have left a newer
        revision."""
        revisions = {row["step"]: row["revision"] for row in due}
        current = queries.fold_revisions(self._store, run=run, steps=list(revisions)).to_pylist()
        return {row["step"]: row["revision"] for row in current} == revisions

    def _write(self, cursor: duckdb.DuckDBPyConnection, chosen: pa.Table, rows: Mapping[str, pa.Table]) -> None:
        keys = chosen.select(["run", "step"])
        for name, table in rows.items():
            self._store.execute(cursor, "forget_steps", keys, table=name)
            self._store.execute(cursor, "append", table, table=name)
        self._store.execute(cursor, "fold_sample", chosen, worst=WORST, chance=CHANCE)
        self._store.execute(cursor, "fold_joins", keys)

    def _write_profiles(self, cursor: duckdb.DuckDBPyConnection, chosen: pa.Table, windows: pa.Table) -> None:
        self._store.execute(cursor, "fold_forget_windows", windows)
        self._store.execute(cursor, "append", windows, table="folded_profiles")
        self._store.execute(cursor, "fold_profiled", chosen.select(["run", "step"]))

    def _forget(self, cursor: duckdb.DuckDBPyConnection, chosen: pa.Table, rollouts: pa.Table) -> None:
        for name in ("fold_rollouts", "fold_forget_rollouts"):
            self._store.execute(cursor, name, rollouts)
        keys = chosen.select(["run", "step"])
        self._store.execute(cursor, "fold_forget_parts", keys)
        for table in _GOING:
            self._store.execute(cursor, "forget_steps", keys, table=table)


def folded_rows(store: Store, run: str, steps: NDArray[np.int64], now: datetime) -> dict[str, pa.Table]:
    """Rows of the tables `folded_steps`, `folded_pairs` and `folded_spans` that these steps, ascending, become."""
    tables = step_tables(store, pa.table({"run": [run] * len(steps), "step": steps, "place": steps}))
    sums = step_sums(steps, tables, to_be_kept=True)
    evaluate(sums)  # every metric names the sums that it needs
    products = queries.fold_products(store, run=run, steps=steps.tolist())
    return {
        "folded_steps": _step_rows(run, steps, sums.groups.ledger, tables, now),
        "folded_pairs": _pair_rows(run, steps, {p: s for p, s in sums.pairs.items() if s.recorded}, products),
        "folded_spans": tables.spans.drop_columns("sequence"),
    }


def _step_rows(
    run: str, steps: NDArray[np.int64], ledger: Ledger | None, tables: StepTables, now: datetime
) -> pa.Table:
    after = ledger.after if ledger is not None else {}
    return pa.table(
        {
            "run": pa.repeat(run, len(steps)),
            "step": steps,
            "time": newest(steps, tables),
            "sums": _maps(after, np.ones(len(steps), np.bool_)),
            "folded_at": pa.array([now] * len(steps), pa.timestamp("us", "UTC")),
        }
    )


def _pair_rows(run: str, steps: NDArray[np.int64], pairs: Mapping[str, PairSums], products: pa.Table) -> pa.Table:
    tables = [_rows_of_pair(run, steps, pair, sums) for pair, sums in pairs.items()]
    if not tables:
        return _no_pairs()
    rows = pa.concat_tables(tables)
    place = {key: at for at, key in enumerate(_keys(products))}
    matching = products.take(pa.array([place[key] for key in _keys(rows)], pa.int64()))
    for name in _PRODUCTS:
        rows = rows.append_column(name, matching[name])
    return rows


def _keys(table: pa.Table) -> list[tuple[int, str]]:
    return list(zip(table["step"].to_pylist(), table["pair"].to_pylist(), strict=True))


def _rows_of_pair(run: str, steps: NDArray[np.int64], pair: str, sums: PairSums) -> pa.Table:
    present = sums.measured
    ledger = sums.sequences.ledger
    after: Mapping[str, Floats] = {} if ledger is None else ledger.after
    columns = {c.name: _column(sums.tokens[c.name][present], c.dtype) for c in COLUMN_SPECS}
    return pa.table(
        {
            "run": pa.repeat(run, int(present.sum())),
            "step": steps[present],
            "pair": pa.repeat(pair, int(present.sum())),
            "sequences": after["count"][present].astype(np.int64),
            **columns,
            "sums": _maps({name: values for name, values in after.items() if name not in columns}, present),
        }
    )


def _column(values: Floats, kind: np.dtype[np.generic]) -> pa.Array:
    """Sums as they are stored; one that is not known, as what was recorded before it existed has none, is null."""
    unknown = np.isnan(values)
    return pa.array(np.where(unknown, 0, values).astype(kind), mask=unknown)


def _no_pairs() -> pa.Table:
    columns = {c.name: pa.from_numpy_dtype(c.dtype) for c in COLUMN_SPECS} | dict.fromkeys(_PRODUCTS, pa.float64())
    keys = {"run": pa.string(), "step": pa.int64(), "pair": pa.string(), "sequences": pa.int64()}
    return pa.schema({**keys, **columns, "sums": pa.map_(pa.string(), pa.float64())}).empty_table()


def _maps(sums: Mapping[str, Floats], rows: NDArray[np.bool_]) -> pa.Array:
    """Sums [G] by name → one map per chosen row; what is unknown is left out."""
    values = [
        [(name, float(column[row])) for name, column in sums.items() if not np.isnan(column[row])]
        for row in np.flatnonzero(rows)
    ]
    return pa.array(values, pa.map_(pa.string(), pa.float64()))


def _batches(due: pa.Table) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Steps of one run, as many as one transaction may take."""
    rows = sorted(due.to_pylist(), key=lambda row: (row["run"], row["step"]))
    for run, own in groupby(rows, key=lambda row: str(row["run"])):
        batch: list[Mapping[str, Any]] = []
        size = 0
        for row in own:
            if batch and (len(batch) >= STEPS_PER_BATCH or size + row["sequences"] > SEQUENCES_PER_BATCH):
                yield run, batch
                batch, size = [], 0
            batch.append(row)
            size += row["sequences"]
        yield run, batch
