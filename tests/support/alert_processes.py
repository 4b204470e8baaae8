"""What runs, and is killed, in the processes of ``alerts/rules/test_watch_killed.py``."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import numpy as np

from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.service.service import Service
from logprobe.monitor.store.store import Store

RUN = "waves"
THRESHOLDS = tuple(
    Threshold.model_validate({"name": name, "metric": "logprob_abs_diff_mean", "above": above, "steps": steps, "severity": severity})
    for name, above, steps, severity in (("high", 0.5, 2, "warning"), ("very-high", 1.5, 1, "critical"))
)  # fmt: skip


def gap(step: int) -> float:
    """|t − r| of every token of a step: low, high and very high in turns."""
    return (0.1, 0.1, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 0.1, 0.1)[step % 10]


def record(recorder: Recorder, step: int) -> None:
    """One step, whole and durable when this returns."""
    rollout = np.full((2, 8), -3.0, np.float32)
    recorder.training(
        step=step,
        sample_ids=[f"{step}-{i}" for i in range(2)],
        token_ids=np.ones((2, 8), np.int32),
        rollout_logprobs=rollout,
        trainer_logprobs=rollout + np.float32(gap(step)),
        mask=np.ones((2, 8), bool),
    )
    assert recorder.flush(120)


def serve(home: Path) -> None:
    """The monitor service with its alerts, until it is killed."""

    def part(store: Store, stopping: threading.Event) -> Part:
        watch = Watch(store, lambda: THRESHOLDS, stopping, quiet=timedelta(seconds=0.2))
        return Part(jobs=[Job("alerts", 0.1, watch.run_once)])

    Service(Home(home), parts=[part]).run()
