"""From `Recorder.flush()` returning True to the step's metrics being readable through the service: what a person waits for.

A real service process; one flush per step, at moments spread over the service's polling interval. The reader asks without
pause, so its own resolution (a few milliseconds) is part of the figure. The baseline is the polling interval itself: what a
service would need that did nothing but look.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from figure import Figure
from processes import service_process
from training_calls import rows

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.service.service import INGEST_SECONDS

FLUSHES = 36
WARM_UP = 3
SEQUENCES, TOKENS = 64, 512
TARGET = 0.5
_VISIBLE = "SELECT value FROM step_metrics WHERE run = ? AND step = ? AND metric = 'backend.k3_kl'"


def measure() -> list[Figure]:
    """Median and 95th percentile over `FLUSHES` steps of 64 × 512 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with service_process(home) as (reader, _), Recorder(home, "latency", rank=0, flush_interval=60.0) as recorder:
            waits = [delay(recorder, reader, "latency", step) for step in range(WARM_UP + FLUSHES)][WARM_UP:]
    p50, p95 = np.percentile(waits, [50, 95])
    shared = {
        "unit": "s",
        "baseline": "polling interval",
        "baseline_value": INGEST_SECONDS,
        "note": f"{FLUSHES} flushes of {SEQUENCES} × {TOKENS} tokens",
    }
    return [
        Figure("flush to visible, p50", float(p50), target=f"≤ {TARGET:g} s", met=bool(p50 <= TARGET), **shared),
        Figure("flush to visible, p95", float(p95), **shared),
    ]


def delay(recorder: Recorder, reader: FlightReader, run: str, step: int) -> float:
    """Seconds from a step's flush to its K3, at a moment that has nothing to do with the service's clock."""
    time.sleep(float(np.random.default_rng(step).uniform(0, INGEST_SECONDS)))
    recorder.training(**rows(step, (SEQUENCES, TOKENS), vocabulary=50_000))
    if not recorder.flush():
        raise RuntimeError(f"nothing to measure: {recorder.health}")
    flushed = time.perf_counter()
    while not reader.query(_VISIBLE, [run, step]).num_rows:
        if time.perf_counter() - flushed > 60:
            raise RuntimeError(f"step {step} of {run} did not become visible: {reader.status()}")
    return time.perf_counter() - flushed
