"""A correction that a trainer states with its step becomes metrics of that step: exact over ranks and micro-batches, else null."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_home import take_in

from logprobe.collectors import Recorder
from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

RUN = "run"
MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.8, is_upper=1.2)


def parts() -> list[Correction]:
    """Corrections of three micro-batches of different sizes."""
    rng = np.random.default_rng(0)
    found = []
    for rows in (1, 4, 9):
        rollout = -rng.exponential(1.0, (rows, 6)) - 0.01
        trainer = np.minimum(rollout + 0.3 * rng.standard_normal(rollout.shape), -1e-3)
        found.append(correct(MIS, torch.tensor(rollout), torch.tensor(trainer)))
    return found


def measured(home: Path) -> tuple[dict[int, dict[str, float | None]], list[Any]]:
    """Metrics by step, and the corrections as stored."""
    with Store.open(Home(home)) as store:
        take_in(store)
        rows = store.query(
            "SELECT step, metric, value FROM step_metrics WHERE metric IN ('is_weight_mean', 'clipped_frac')"
        )
        values: dict[int, dict[str, float | None]] = {}
        for row in rows.to_pylist():
            values.setdefault(row["step"], {})[row["metric"]] = row["value"]
        stated = store.query("SELECT correction FROM step_records ORDER BY step, rank, time").to_pylist()
    return values, [row["correction"] for row in stated]


def test_ranks_and_micro_batches_add_up_to_the_step(home: Path) -> None:
    first, second, third = corrections = parts()
    with Recorder(home, RUN, rank=0) as zero, Recorder(home, RUN, rank=1) as one:
        assert zero.step(1, loss=0.5, correction=first)
        assert zero.step(1, correction=second)
        assert one.step(1, correction=third)
        assert zero.step(2, loss=0.5)
        assert zero.step(3, correction="TIS")
        assert zero.step(4, correction={"kind": "TIS", "report": {"tokens": "many"}})
        assert zero.step(5, correction=correct(MIS, np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2))))
    values, stated = measured(home)
    whole = type(first.report).merge(*(correction.report for correction in corrections))
    assert values[1] == pytest.approx({name: whole[name] for name in ("is_weight_mean", "clipped_frac")})
    assert 0 < values[1]["clipped_frac"] < 1
    for step in (2, 3, 4, 5):
        assert values[step] == {"is_weight_mean": None, "clipped_frac": None}
    assert json.loads(stated[0]) == first.deferred()()


def test_the_report_is_read_in_the_recorders_thread(home: Path) -> None:
    readers: list[str] = []

    class Watched(Correction):
        def deferred(self) -> Any:
            read = super().deferred()
            return lambda: readers.append(threading.current_thread().name) or read()

    (found, *_) = parts()
    watched = Watched(found.weights, found.mask, found.report, found.denominator_mask, found.config)
    with Recorder(home, RUN) as recorder:
        assert recorder.step(1, correction=watched)
        assert recorder.flush()
    assert len(readers) == 1
    assert readers[0] != threading.current_thread().name


def test_a_correction_that_cannot_be_read_costs_the_host_nothing(home: Path) -> None:
    class Unreadable:
        def deferred(self) -> Any:
            raise RuntimeError("no device")

    with Recorder(home, RUN) as recorder:
        assert not recorder.step(1, loss=1.0, correction=Unreadable())
        assert recorder.step(2, loss=1.0)
        assert recorder.flush()
