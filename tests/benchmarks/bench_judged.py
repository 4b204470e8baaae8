"""From a step being recorded to its run being judged as of it, with every live run armed: 1, 20 and 200 of them, quiet and loaded.

A real service beside ended runs; live runs have a history that sets their baseline, and some of them begin to grow, so that the verdict
changes and waits for a diagnosis. A step is late when it was judged after more than two seconds and more than ten newer steps: the
promise of `logprobe.monitor.judgement`. The load is four busy loops for each core, of lower priority, as data loaders have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import copied_runs
import numpy as np
from figure import Figure
from processes import connected, end, start_service
from training_calls import rows

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import SECONDS, STEPS, read
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

CASES = (
    (1, 0.35, 1),
    (20, 1.0, 4),
    (200, 5.0, 10),
)  # live runs, seconds of a step, of how many runs one begins to grow
SECONDS_EACH = 45.0
HISTORY, RISEN = 240, 19  # steps before; so many of the last ones are high, which is one or two short of growth
ENDED = 3
RECORDED, COPIES = "live-recorded", "live-{:03d}"
SHAPE = (32, 16)
LOOPS, NICE = 4, 5  # busy loops for each core
LOOK = 0.2  # seconds between two looks


@dataclass
class Run:
    """A live run: when each of its steps was recorded and seen to be judged (monotonic seconds)."""

    name: str
    recorder: Recorder
    grows_at: float = 2.0  # as a part of the time
    recorded: dict[int, float] = field(default_factory=dict)
    judged: dict[int, tuple[float, int]] = field(default_factory=dict)  # and how many newer steps there were


def measure() -> list[Figure]:
    """For each number of runs, quiet and loaded: p50 and p99 of the delay, and the share of late steps."""
    figures = []
    for runs, pace, one_in in CASES:
        for loaded in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                figures += case(Path(folder) / "home", runs, pace, one_in, loaded=loaded)
    return figures


def case(home: Path, count: int, pace: float, one_in: int, *, loaded: bool) -> list[Figure]:
    fill(home, count)
    (home / "logprobe.yaml").write_text("correction: {mode: armed}\n")
    with ExitStack() as stack:
        service = start_service(home)
        stack.callback(end, service)
        reader = stack.enter_context(connected(home))
        names = [RECORDED, *map(COPIES.format, range(count - 1))]
        runs = [Run(name, stack.enter_context(Recorder(home, name))) for name in names]
        for at in range(0, count, one_in):
            runs[at].grows_at = at / count
        stack.enter_context(load(LOOPS * (os.cpu_count() or 1) if loaded else 0))
        follow(runs, reader, pace)
        average = os.getloadavg()[0]
    waits = np.array([run.judged[step][0] - at for run in runs for step, at in run.recorded.items()])
    newer = np.array([run.judged[step][1] for run in runs for step in run.recorded])
    p50, p99 = np.percentile(waits, [50, 99])
    late = 100 * float(np.mean((waits > SECONDS) & (newer > STEPS)))
    words = f"{count} live runs, {'loaded' if loaded else 'quiet'}"
    note = f"{len(waits)} steps, {pace:g} s each, {len(runs[::one_in])} runs begin to grow; load {average:.0f}"
    return [
        Figure(f"step → judged, p50, {words}", float(p50), "s", note=note),
        Figure(f"step → judged, p99, {words}", float(p99), "s"),
        Figure(f"late steps, {words}", late, "%"),
    ]


def fill(home: Path, count: int) -> None:
    """Live runs up to now, ended ones beside them; all of them judged."""
    with Recorder(home, RECORDED) as recorder:
        for step in range(HISTORY):
            record(recorder, step, high=step >= HISTORY - RISEN)
        assert recorder.flush(120)
    with Store.open(Home(home)) as store:
        pipeline = Pipeline(store, threading.Event())
        pipeline.ingest(lambda _: None)
        pipeline.diagnose()
        copied_runs.as_other_runs(store, RECORDED, "ended-{}", ENDED)
        if count > 1:
            copied_runs.as_other_runs(store, RECORDED, COPIES, count - 1)


def record(recorder: Recorder, step: int, *, high: bool) -> None:
    recorder.training(**rows(step, SHAPE, spread=0.02 * (3**0.5 if high else 1)))


def follow(runs: list[Run], reader: FlightReader, pace: float) -> None:
    """Records at the pace, the runs one after the other, until the time is over and everything is judged; looks on meanwhile."""
    begun = time.monotonic()
    recorder = threading.Thread(target=play, args=(runs, pace, begun))
    recorder.start()
    while recorder.is_alive() or any(len(run.judged) < len(run.recorded) for run in runs):
        look(runs, reader)
        if time.monotonic() - begun > 20 * SECONDS_EACH:
            raise RuntimeError("some steps were never judged")
        time.sleep(LOOK)
    recorder.join()


def play(runs: list[Run], pace: float, begun: float) -> None:
    turn = 0
    while (now := time.monotonic()) - begun < SECONDS_EACH:
        run = runs[turn % len(runs)]
        step = HISTORY + turn // len(runs)
        time.sleep(max(0.0, begun + turn * pace / len(runs) - now))
        record(run.recorder, step, high=now - begun >= run.grows_at * SECONDS_EACH)
        run.recorded[step] = time.monotonic()
        turn += 1


def look(runs: list[Run], reader: FlightReader) -> None:
    known = read(reader, [run.name for run in runs], datetime.now(UTC))
    now = time.monotonic()
    for run in runs:
        judged = known[run.name].step
        newest = max(run.recorded, default=0)
        for step in [step for step in list(run.recorded) if step not in run.judged]:
            if judged is not None and judged >= step:
                run.judged[step] = (now, newest - step)


@contextmanager
def load(loops: int) -> Iterator[None]:
    """Busy loops of lower priority."""
    command = ["nice", "-n", str(NICE), sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
