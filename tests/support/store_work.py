"""The work of a service on a store, done at once, for tests."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from logprobe.monitor.live.store import Within
from logprobe.monitor.live.writing import write_stored
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.service.status import StuckFile
from logprobe.monitor.store.folding import Folder, FoldReport, StoreBudget
from logprobe.monitor.store.store import Store

KEPT = 4  # steps at the end that are not folded
METRICS = "SELECT step, metric, value FROM step_metrics ORDER BY step, metric"


def bring_in(store: Store) -> list[StuckFile]:
    """Ingests what lies in the spool, and does everything that follows; → what waits there to be read."""
    pipeline = Pipeline(store, threading.Event())
    pipeline.ingest(lambda _: None)
    pipeline.profile()
    return pipeline.delays.document()


def fold(store: Store, *, protected: int = KEPT) -> FoldReport:
    return Folder(store, StoreBudget(0), quiet=timedelta(0), protected=protected).run_once()


def compute_again(store: Store, sql: str = "SELECT run, step FROM step_summaries ORDER BY ALL") -> None:
    """Computes steps once more from what the tables have."""
    steps = [(row["run"], row["step"]) for row in store.query(sql).to_pylist()]
    with store.transaction() as cursor:
        write_stored(Within(store, cursor), steps, datetime.now(UTC))
        store.rewritten.note({run for run, _ in steps})


def recompute(store: Store) -> None:
    compute_again(store)
    Pipeline(store, threading.Event()).profile()
