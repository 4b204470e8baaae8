"""The work of a service on a store, done at once, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from segments import RUN, spool

from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.memory import Memory
from logprobe.monitor.live.restoring import compute
from logprobe.monitor.live.tick import Live
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.service.status import StuckFile
from logprobe.monitor.store.freezing import Freezer, FreezeReport, StoreBudget
from logprobe.monitor.store.store import Store

KEPT = 4  # steps at the end that are not frozen
METRICS = "SELECT step, metric, value FROM step_metrics ORDER BY step, metric"


def bring_in(store: Store) -> list[StuckFile]:
    """Ingests what lies in the spool, and does everything that follows; → what waits there to be read."""
    pipeline = Pipeline(store, threading.Event())
    pipeline.ingest(lambda _: None)
    pipeline.profile()
    return pipeline.delays.document()


def freeze(store: Store, *, protected: int = KEPT) -> FreezeReport:
    return Freezer(store, StoreBudget(0), quiet=timedelta(0), protected=protected).run_once()


def compute_again(store: Store, sql: str = "SELECT run, step FROM step_summaries ORDER BY ALL") -> None:
    """Computes steps once more from what the tables have."""
    steps = [(row["run"], row["step"]) for row in store.query(sql).to_pylist()]
    compute(store, Live(Memory(store)), steps)
    store.rewritten.note({run for run, _ in steps})


def recompute(store: Store) -> None:
    compute_again(store)
    Pipeline(store, threading.Event()).profile()


class Fed:
    """A store into which a test brings records, as many at a time as it likes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ingester = Ingester(store)

    def feed(self, run: str = RUN, writer: str = "w", **kinds: Iterable[dict[str, Any]]) -> None:
        """Rows by record kind."""
        spool(self.store.home.path, run, writer, **kinds)
        self.ingester.run_once()

    def restart(self) -> None:
        """Another service: nothing is in memory."""
        self.ingester = Ingester(self.store)

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        return self.store.query(sql, list(values)).to_pylist()
