"""A second in which nothing happens costs next to nothing: what was read once is read again only once it may be another."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from segments import spool, trained

from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

OF_STEPS = {"alert_steps", "alert_pulse", "judgements"}
COSTLY = OF_STEPS | {"alert_load", "alert_told"}
THRESHOLDS = (Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 1}),)


class Watched:
    """A store that remembers which costly queries it was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[str] = []

    def read(self, name: str, *incoming: pa.Table, **params: Any) -> pa.Table:
        self.asked += {name} & COSTLY
        return self._store.read(name, *incoming, **params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def bring(store: Store, pipeline: Pipeline, step: int) -> None:
    spool(store.home.path, training=[trained(f"{step}", step)])
    pipeline.ingest(lambda _: None)


def test_what_may_be_another_is_read_once_for_all_runs_and_nothing_without_news(home: Path, store: Store) -> None:
    """A small statement takes milliseconds, whatever it reads: so many per run would be most of what the service does."""
    pipeline, watched = Pipeline(store, threading.Event()), Watched(store)
    watch = Watch(watched, lambda: THRESHOLDS, threading.Event(), quiet=timedelta(0))  # type: ignore[arg-type]

    def tick() -> tuple[Any, list[str]]:
        watched.asked.clear()
        return watch.run_once().get("steps"), sorted(watched.asked)

    for step, (runs, asked) in enumerate(((["a"], COSTLY), (["a"], OF_STEPS), (["a", "b", "c"], COSTLY))):
        for run in runs:
            spool(home, run, training=[trained(f"{step}", step)])
        pipeline.ingest(lambda _: None)
        assert tick() == (len(runs), sorted(asked))
        assert tick()[1] == []


def test_a_step_that_may_still_receive_data_is_asked_about_later(home: Path, store: Store) -> None:
    pipeline, watched = Pipeline(store, threading.Event()), Watched(store)
    later = [timedelta(hours=1)]
    watch = Watch(
        watched,  # type: ignore[arg-type]
        lambda: THRESHOLDS,
        threading.Event(),
        clock=lambda: datetime.now(UTC) + later[0],
        quiet=timedelta(minutes=10),
    )

    def tick(after: timedelta) -> tuple[int, bool]:
        watched.asked.clear()
        later[0] = after
        return watch.run_once()["steps"], "alert_steps" in watched.asked

    bring(store, pipeline, 0)
    assert tick(timedelta(0)) == (0, True)  # the first: no step was seen
    assert tick(timedelta(hours=1)) == (1, True)
    bring(store, pipeline, 1)
    assert tick(timedelta(0)) == (0, False)
    bring(store, pipeline, 2)
    assert tick(timedelta(0)) == (0, True)
    assert tick(timedelta(hours=1)) == (2, True)


def test_of_a_run_that_only_time_can_change_looks_are_seconds_apart(home: Path, store: Store) -> None:
    pipeline = Pipeline(store, threading.Event())
    now = [datetime.now(UTC)]
    watch = Watch(store, lambda: THRESHOLDS, threading.Event(), clock=lambda: now[0], quiet=timedelta(0))

    def looks(seconds: float) -> int:
        now[0] += timedelta(seconds=seconds)
        return int(str(watch.run_once()["runs"]))

    bring(store, pipeline, 0)
    assert looks(1) == 1
    assert looks(0.1) == 1  # what it wrote is news
    assert [looks(1) for _ in range(6)] == [0, 0, 1, 0, 0, 1]
    assert looks(-3600) == 1  # the clock was set back
    assert [looks(1) for _ in range(3)] == [0, 0, 1]
    bring(store, pipeline, 1)
    assert looks(0.1) == 1
    with store.transaction():
        pass
    assert looks(0.1) == 0, "what was written was of another run"
