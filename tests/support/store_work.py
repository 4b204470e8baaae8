"""The work of a service on a store, done at once, for tests."""

from __future__ import annotations

import threading
from datetime import timedelta

from logprobe.monitor.live.restoring import compute
from logprobe.monitor.live.store import live_of
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
    compute(store, live_of(store), steps)
    store.rewritten.note({run for run, _ in steps})


def recompute(store: Store) -> None:
    compute_again(store)
    Pipeline(store, threading.Event()).profile()
