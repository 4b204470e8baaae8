"""Freezing of steps, the oldest first, to keep the store within its size budget.

The store keeps 4 to 5 kB per step: its metrics, and the sums over its sequences that judgements need. Freezing removes
the row of each sequence, its statistics, and the step's profile. The kept data is written to an archive file first
(`tiers.replace`), so a new index has the same numbers. Late records of a frozen step are ignored, unless a later
attempt trains the step again.

Steps are frozen when the store exceeds its budget, in the order of their last computation. The newest `PROTECTED_STEPS`
of a run and steps that still receive data are never frozen.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor import queries
from logprobe.monitor.store.budgets import GIB, KEEP_STORE_GIB
from logprobe.monitor.store.store import Store

PROTECTED_STEPS: Final = 64
QUIET: Final = timedelta(minutes=2)  # as long as an engine's records are waited for, see macro_runs_on_their_way
_DAY: Final = timedelta(days=1)
_GROWTH_PAUSE: Final = timedelta(minutes=10)  # between two sizes that are remembered
STEPS_PER_BATCH: Final = 1024
SEQUENCES_PER_BATCH: Final = 50_000  # ingest waits while a batch is written
_LOW_WATER: Final = 0.9  # of the budget: frozen down to it, so that a store at its limit is not frozen all the time
_REST: Final = 1.0  # times as long as a batch took
_CHECKPOINT_ATTEMPTS, _PAUSE = 20, 0.25  # seconds


@dataclass(frozen=True, slots=True)
class StoreBudget:
    """Limit of the store in bytes, None for no limit. It covers used blocks of the file and the write-ahead log."""

    max_bytes: int | None = int(KEEP_STORE_GIB * GIB)

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a negative limit."""
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ConfigurationError(f"the store's budget is {self.max_bytes} bytes; use 0 or more")


@dataclass(slots=True)
class FreezeReport:
    """Result of one run. `bytes`: bytes in use. `over`: true if they exceed the budget. `problem`: reason for the
    excess.

    `growth`: bytes added per day, or None if unknown.
    """

    steps: int = 0
    sequences: int = 0
    bytes: int = 0
    free_bytes: int = 0
    max_bytes: int | None = None
    over: bool = False
    growth: float | None = None
    problem: str | None = None
    seconds: float = 0.0


class Freezer:
    """Enforcement of the store's budget. One per store, used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        budget: StoreBudget | None = None,
        stopping: threading.Event | None = None,
        *,
        protected: int = PROTECTED_STEPS,
        quiet: timedelta = QUIET,
    ) -> None:
        """Set up the freezing. `stopping`: event that ends work after the current batch."""
        self._store = store
        self._budget = budget or StoreBudget()
        self._stopping = stopping or threading.Event()
        self._now = store.time.now
        self._protected = protected
        self._quiet = quiet
        self._sizes: deque[tuple[datetime, int]] = deque(maxlen=_DAY // _GROWTH_PAUSE)

    def run_once(self) -> FreezeReport:
        """Freeze old steps until the store is well below its budget.

        Raises:
            StoreError: a write failed. The next run retries the remaining steps.
            QueryError: the store could not be read.
        """
        started = time.perf_counter()
        report = FreezeReport(max_bytes=self._budget.max_bytes)
        self._measure(report)
        exceeded = self._is_exceeded(report)
        if exceeded and self._tidy():  # what an earlier run has deleted may have become free only now
            self._measure(report)
            exceeded = self._is_exceeded(report)
        nothing_left = False
        while exceeded and not self._stopping.is_set():
            due = self._due()
            nothing_left = not due.num_rows
            for run, steps in _batches(due):
                begun = time.perf_counter()
                self._freeze(run, steps, report)
                # Ingest has its turn: a thread that takes the store again at once keeps all others waiting.
                if self._stopping.wait(_REST * (time.perf_counter() - begun)):
                    break
            if nothing_left or not self._tidy():  # else what is in use is not known
                break
            self._measure(report)
            exceeded = report.bytes > _LOW_WATER * (self._budget.max_bytes or 0)
        report.over = self._is_exceeded(report)
        report.growth = self._growth(report.bytes)
        if report.over and nothing_left:
            report.problem = (
                f"the store holds {report.bytes / GIB:.2f} GiB, its budget is "
                f"{(self._budget.max_bytes or 0) / GIB:.2f}, and every step that can be frozen already is; raise "
                "keep_store_gib in the settings"
            )
        report.seconds = time.perf_counter() - started
        return report

    def _is_exceeded(self, report: FreezeReport) -> bool:
        return self._budget.max_bytes is not None and report.bytes > self._budget.max_bytes

    def _growth(self, size: int) -> float | None:
        """Return the bytes added per day, over the last day or since the process started. Return None in its first
        minutes."""
        now = self._now()
        if not self._sizes or now - self._sizes[-1][0] >= _GROWTH_PAUSE:
            self._sizes.append((now, size))
        since, first = self._sizes[0]
        return None if now - since < _GROWTH_PAUSE else (size - first) / ((now - since) / _DAY)

    def _due(self) -> pa.Table:
        return queries.freeze_due(
            self._store,
            deleted=[tombstone.run for tombstone in self._store.archive.tombstones.all()],
            protected=self._protected,
            quiet_since=(self._now() - self._quiet).isoformat(),
            most=STEPS_PER_BATCH,
        )

    def _measure(self, report: FreezeReport) -> None:
        row = queries.freeze_size(self._store).to_pylist()[0]
        log = self._store.home.database.with_name(f"{self._store.home.database.name}.wal")
        report.bytes = row["bytes"] + (log.stat().st_size if log.exists() else 0)
        report.free_bytes = row["free_bytes"]

    def _tidy(self) -> bool:
        """Return whether the blocks of deleted rows were freed. DuckDB refuses while another thread works."""
        for _ in range(_CHECKPOINT_ATTEMPTS):
            with suppress(StoreError):
                if self._store.checkpoint():
                    return True
            self._stopping.wait(_PAUSE)
        return False

    def _freeze(self, run: str, due: list[Mapping[str, Any]], report: FreezeReport) -> None:
        """Freeze one batch if its steps have not changed since they were selected."""
        if self._store.archive.freeze(run, {row["step"]: row["revision"] for row in due}):
            report.steps += len(due)
            report.sequences += sum(row["sequences"] for row in due)


def _batches(due: pa.Table) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield batches of steps of one run, each small enough for one transaction."""
    rows = sorted(due.to_pylist(), key=lambda row: (row["run"], row["step"]))
    for run, own in groupby(rows, key=lambda row: str(row["run"])):
        batch: list[Mapping[str, Any]] = []
        size = 0
        for row in own:
            if batch and size + row["sequences"] > SEQUENCES_PER_BATCH:
                yield run, batch
                batch, size = [], 0
            batch.append(row)
            size += row["sequences"]
        yield run, batch
