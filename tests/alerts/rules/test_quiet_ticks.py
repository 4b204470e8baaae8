"""A second in which nothing happens costs next to nothing: what was read once is read again only once it may be another."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from recorded_home import take_in
from segments import RUN, records, trained

from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.job import Evaluator
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

OF_STEPS = {"alert_steps", "alert_pulse", "growth_states", "growth_values"}
COSTLY = OF_STEPS | {"controller_read", "alert_diagnoses", "alert_load"}


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


def test_without_news_neither_steps_nor_the_present_are_read_again(home: Path, store: Store) -> None:
    spool, watched = SpoolWriter(home, RUN, "w"), Watched(store)
    book = rule_file.load()

    def bring(step: int) -> None:
        spool.write("training", records("training", trained(f"{step}", step)))
        take_in(store)

    def tick() -> set[str]:
        watched.asked.clear()
        evaluator.run_once()
        return set(watched.asked)

    evaluator = Evaluator(watched, lambda: book, threading.Event(), quiet=timedelta(0))  # type: ignore[arg-type]
    for step, asked in ((0, COSTLY), (1, OF_STEPS)):
        bring(step)
        assert tick() == asked
        assert tick() == set()
    Pipeline(store, threading.Event()).diagnose()
    assert tick() == {"alert_diagnoses"}
    assert store.read("alert_runs")["cursor"].to_pylist() == [1]


def test_many_runs_are_asked_about_together(home: Path, store: Store) -> None:
    """A small statement takes milliseconds, whatever it reads: so many per run would be most of what the service does."""
    watched = Watched(store)
    evaluator = Evaluator(watched, rule_file.load, threading.Event(), quiet=timedelta(0))  # type: ignore[arg-type]
    asked = []
    for step, runs in enumerate((["a"], ["a", "b", "c"])):
        for run in runs:
            SpoolWriter(home, run, f"w{step}").write("training", records("training", trained(f"{step}", step)))
        take_in(store)
        watched.asked.clear()
        assert evaluator.run_once()["steps"] == len(runs)
        asked.append(sorted(watched.asked))
    assert asked == [sorted(COSTLY), sorted(COSTLY)]
    cursors = {row["run"]: row["cursor"] for row in store.read("alert_runs").to_pylist()}
    assert cursors == {"a": 1, "b": 1, "c": 1}
