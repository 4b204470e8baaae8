"""What the service costs with many runs, in processor time: small steps of many runs at once, and runs that go on.

The jobs of the service run in this process, in turn and at the service's intervals; no other process's load is in the figures. Records are
made beforehand, and moved into the spool when they are due.
"""

from __future__ import annotations

import heapq
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from figure import Figure

from logprobe.alerts.controller.job import controller_part
from logprobe.alerts.rules.acceptance import acceptance_part
from logprobe.alerts.rules.watch import alerts_part
from logprobe.alerts.sending.actions import delivery_part
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.service.service import INGEST_MOST_REST, INGEST_REST, INGEST_SECONDS
from logprobe.monitor.store.store import Store

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from synthetic_run import SyntheticRun

RUNS, MOST_RUNS = 64, 256
SCALARS = 50
PERIOD = 10.0  # seconds from one step of a run to its next
WARM_UP, SECONDS = 120.0, 60.0  # after the first, diagnoses have had what they may have at once
AGES = 10  # runs begin one after the other, so many steps apart: what is done every few steps is spread evenly
MANY = 60, 6  # runs, steps of each
DERIVE_SECONDS = 5.0
PARTS = (acceptance_part, alerts_part(), controller_part, delivery_part)

Segments = list[list[Path]]  # of each step
Coming = Sequence[tuple[float, Path, Path, list[Path]]]  # when, from where, to which home, which segments


def measure() -> list[Figure]:
    """All figures of this module."""
    runs, steps = MANY
    many, one = backlog(runs, steps), backlog(1, runs * steps)
    cores, most = live(RUNS), live(MOST_RUNS)
    note = f"{SCALARS} scalars and all metrics of 8 × 24 tokens each; jobs in turn, {SECONDS:g} s"
    return [
        Figure(f"service: {runs} runs of {steps} steps, per step", 1e3 * many, "ms", baseline="one run of as many steps",
               baseline_value=1e3 * one, note="ingest, join and metrics, in processor time"),
        Figure(f"service: {RUNS} runs, a step per {PERIOD:g} s", cores, "cores", "≤ 1", cores <= 1, note=note),
        Figure(f"service: {MOST_RUNS} runs, a step per {PERIOD:g} s", most, "cores", baseline=f"{RUNS} runs", baseline_value=cores, note=note),
    ]  # fmt: skip


def backlog(runs: int, steps: int) -> float:
    """Processor time per step, in seconds, of what waits in the spool."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Home(folder)) as store:
        for number in range(runs):
            record(Path(folder), f"run-{number}", steps)
        pipeline = Pipeline(store, threading.Event())
        begun = time.process_time()
        ingest(pipeline)
        return (time.process_time() - begun) / (runs * steps)


def ingest(pipeline: Pipeline) -> dict[str, Any]:
    """As the service does it."""

    def follow_up(_: object) -> None:
        pipeline.diagnose()

    return pipeline.ingest(follow_up)


def record(home: Path, run: str, steps: int) -> Segments:
    """A run in the spool of `home`; → the segments that each step brought."""
    rng, found, segments = np.random.default_rng(1), set(), []
    with Recorder(home, run) as recorder:
        synthetic = SyntheticRun(recorder, onset=1000)
        for step in range(steps):
            recorder.step(step, {f"layer_{number}/grad_norm": rng.lognormal() for number in range(SCALARS)})
            synthetic.record(1)
            new = set((home / "spool" / run).glob("*/[!.]*")) - found
            segments.append(sorted(new))
            found |= new
    return segments


def bring(coming: Coming) -> None:
    """Moves records into the spools of homes when they are due."""
    begun = time.monotonic()
    for due, stage, home, segments in coming:
        time.sleep(max(0.0, begun + due - time.monotonic()))
        for segment in segments:
            place = home / segment.relative_to(stage)
            place.parent.mkdir(parents=True, exist_ok=True)
            segment.rename(place)


@dataclass(order=True)
class Due:
    """A job, and when it runs next, in seconds since the beginning."""

    at: float
    name: str
    seconds: float
    work: Callable[[], object] = field(compare=False)


def live(runs: int) -> float:
    """Cores that runs take which bring a step per `PERIOD`."""
    with tempfile.TemporaryDirectory() as stage, tempfile.TemporaryDirectory() as folder:
        number = int((WARM_UP + SECONDS) / PERIOD) + 1
        recorded = [record(Path(stage), f"run-{run:02d}", number - run % AGES) for run in range(runs)]
        coming = sorted(
            ((step + run % AGES) * PERIOD + run * PERIOD / runs, run, segments)
            for run, steps in enumerate(recorded)
            for step, segments in enumerate(steps)
        )
        with jobs(Path(folder)) as due:
            run_until(WARM_UP, due, coming, Path(stage), Path(folder))
            begun = time.process_time()
            run_until(WARM_UP + SECONDS, due, coming, Path(stage), Path(folder))
            return (time.process_time() - begun) / SECONDS


@contextmanager
def jobs(home: Path) -> Iterator[list[Due]]:
    """The service's jobs that runs cost."""
    stopping = threading.Event()
    with Store.open(Home(home)) as store:
        pipeline = Pipeline(store, stopping, paced=True)
        parts = [make(store, stopping) for make in PARTS]
        due = [Due(0.0, job.name, job.seconds, job.run_now) for part in parts for job in part.jobs]
        look = Job("ingest", INGEST_SECONDS, lambda: ingest(pipeline), rest=INGEST_REST, most_rest=INGEST_MOST_REST)
        due.append(Due(0.0, look.name, look.seconds, look.run))
        derived = (
            (pipeline.profile, DERIVE_SECONDS),
            (pipeline.diagnose, DERIVE_SECONDS),
            (pipeline.retain, SECONDS),
        )  # once a minute
        due += [Due(0.0, work.__name__, seconds, work) for work, seconds in derived]
        yield due
        for part in parts:
            part.close()
        if look.account().failures:
            raise RuntimeError(f"ingest failed: {look.account().last_error}")


def run_until(end: float, due: list[Due], coming: list[tuple[float, int, list[Path]]], stage: Path, home: Path) -> None:
    """Runs jobs in the order in which they are due, no sooner than they are."""
    heapq.heapify(due)
    begun = time.monotonic() - due[0].at
    while due[0].at < end:
        job = heapq.heappop(due)
        time.sleep(max(0.0, begun + job.at - time.monotonic()))
        while coming and coming[0][0] <= job.at:
            for segment in coming.pop(0)[-1]:
                place = home / segment.relative_to(stage)
                place.parent.mkdir(parents=True, exist_ok=True)
                segment.rename(place)
        job.work()
        heapq.heappush(due, Due(job.at + job.seconds, job.name, job.seconds, job.work))
