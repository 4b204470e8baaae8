"""The work of a service on a store, done at once, for tests."""

from __future__ import annotations

import threading
from datetime import timedelta

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
    pipeline.join()
    pipeline.compute_steps()
    pipeline.profile()
    return pipeline.delays.document()


def fold(store: Store, *, protected: int = KEPT) -> FoldReport:
    return Folder(store, StoreBudget(0), quiet=timedelta(0), protected=protected).run_once()


def recompute(store: Store) -> None:
    with store.transaction() as cursor:
        cursor.execute("INSERT INTO dirty_steps (run, step) SELECT run, step FROM step_summaries")
    pipeline = Pipeline(store, threading.Event())
    pipeline.compute_steps()
    pipeline.profile()
