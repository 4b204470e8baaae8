"""Coverage of a run in which nothing but the trainer's model generates: not measured, which is told once, and is no failure."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from recorded_home import take_in
from segments import RUN, records, sampled, trained

from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.job import Evaluator
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.store.store import Store

BOOK = rule_file.load()


class Run:
    """Twelve steps of a trainer that passes no log-probs of an engine."""

    def __init__(self, home: Path, store: Store) -> None:
        self.store = store
        self._spool = SpoolWriter(home, RUN, "w")

    def config(self, kind: str, **document: object) -> None:
        row = {"kind": kind, "fingerprint": "f" * 16, "document": json.dumps(document)}
        self._spool.write("config", records("config", row))

    def rollout(self) -> None:
        self._spool.write("rollout", records("rollout", sampled("somebody")))

    def alerts(self) -> list[str]:
        """Rules that were told of, of a run that has trained for a quarter of an hour."""
        for step in range(12):
            self._spool.write("training", records("training", trained(f"{step}/0", step, received=False)))
        take_in(self.store)
        rows = self.store.query("SELECT max(computed_at) AS at FROM step_summaries").to_pylist()
        for minutes in (3, 4):
            now = rows[0]["at"] + timedelta(minutes=minutes)
            Evaluator(self.store, lambda: BOOK, threading.Event(), clock=lambda now=now: now).run_once()
        told = self.store.query("SELECT DISTINCT rule FROM notifications").to_pylist()
        about_records = {"coverage-low", "gap-unmeasured", "nonfinite-tokens", "plugin-missing"}
        return sorted(about_records & {row["rule"] for row in told})


@pytest.fixture
def run(home: Path, store: Store) -> Run:
    return Run(home, store)


def test_nothing_says_that_there_is_an_engine(run: Run) -> None:
    assert run.alerts() == ["plugin-missing"]
    told = run.store.query("SELECT DISTINCT severity FROM notifications WHERE rule = 'plugin-missing'").to_pylist()
    assert told == [{"severity": "warning"}]


def test_a_trainer_that_says_it_uses_none(run: Run) -> None:
    run.config("trainer_config", framework="trl", use_vllm=False)
    assert run.alerts() == ["plugin-missing"]


@pytest.mark.parametrize("document", [{"framework": "trl", "use_vllm": True}, {"framework": "verl"}])
def test_a_trainer_whose_engine_is_silent(run: Run, document: dict[str, object]) -> None:
    run.config("trainer_config", **document)
    assert run.alerts() == ["coverage-low", "plugin-missing"]


def test_an_engine_that_started_and_records_nothing(run: Run) -> None:
    run.config("engine_config", dtype="bfloat16")
    assert run.alerts() == ["coverage-low", "plugin-missing"]


def test_an_engine_whose_records_are_of_nothing_that_is_trained(run: Run) -> None:
    run.rollout()
    assert run.alerts() == ["coverage-low"]
