"""What size costs a reader: the first chart of a run of 100,000 steps, and in a home of 1,000 runs, over that of 1,000 steps in a home of its own.

Two real `logprobe up`, visited in turns by a real browser once their services have nothing left to do. The run of 1,000 steps is recorded, ingested,
computed, profiled and diagnosed as every run is; the long one and the many are its stored rows again (`copied_runs.py`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import copied_runs
import numpy as np
from figure import Figure
from playwright.sync_api import Browser, sync_playwright

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from dashboard_process import chromium, dashboard
from synthetic_run import SyntheticRun
from timed_page import TimedPage, cpu_seconds, server_of

STEPS, TIMES, RUNS = 1000, 100, 1000
SWEEP_STEPS = 20  # of each of the many runs
SCALARS = 50
VISITS = 7
MOST, RUNS_S = 1.5, 1.0
START_S, REST_S = 900.0, 5.0
QUIET = 0.2  # cores: what a service without new records may take
AT_ONCE = 50  # steps between two flushes: what a Recorder holds is bounded


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        small, large = Path(folder) / "small", Path(folder) / "large"
        make(small, large)
        addresses = [
            stack.enter_context(dashboard("up", "--home", str(home), "--port", "0", seconds=START_S))
            for home in (small, large)
        ]
        for home, address in zip((small, large), addresses, strict=True):
            rest(home, address)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        pages = [f"{addresses[0]}/?run=short", f"{addresses[1]}/?run=short", f"{addresses[1]}/?run=long"]
        visits = np.array([[visit(browser, page) for page in pages] for _ in range(1 + VISITS)])
        browser.close()
        listed = np.array([[list_runs(home) for home in (small, large)] for _ in range(3)])
    return [*first_charts(visits), listing(listed)]


def make(small: Path, large: Path) -> None:
    """A home of one run, and one that has the long run and many short ones beside it."""
    record(small, "short", STEPS)
    shutil.copytree(small, large)
    record(large, "run-base", SWEEP_STEPS)
    with Store.open(Home(large)) as store:
        copied_runs.as_longer_run(store, "short", "long", STEPS, TIMES)
        copied_runs.as_other_runs(store, "run-base", "run-{:04d}", RUNS - 3)


def record(home: Path, run: str, steps: int) -> None:
    """A run in the store of `home`, with all that follows from it but alerts."""
    rng = np.random.default_rng(1)
    with Recorder(home, run) as recorder:
        synthetic = SyntheticRun(recorder, onset=steps)
        for step in range(steps):
            recorder.step(step, {f"layer_{number}/grad_norm": rng.lognormal() for number in range(SCALARS)})
            if step % AT_ONCE == AT_ONCE - 1 or step == steps - 1:
                synthetic.record(step + 1 - synthetic.next_step)
    with Store.open(Home(home)) as store:
        pipeline = Pipeline(store, threading.Event())
        pipeline.ingest(lambda _: None)
        pipeline.profile()
        pipeline.diagnose()


def rest(home: Path, address: str) -> None:
    """Waits until a home's service and dashboard have nothing left to do."""
    with connect(home) as reader:
        processes = int(reader.status()["pid"]), server_of(address)
    deadline = time.monotonic() + START_S
    while True:
        before = sum(map(cpu_seconds, processes))
        time.sleep(REST_S)
        if sum(map(cpu_seconds, processes)) - before < QUIET * REST_S:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service of {home} is still at work after {START_S:g} s")


def visit(browser: Browser, address: str) -> float:
    """Seconds until a browser that was never here shows the chart."""
    page = TimedPage(browser, address)
    seconds = page.first_chart()
    page.close()
    return seconds


def list_runs(home: Path) -> float:
    """Seconds of `logprobe runs`, from its start to its end."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "logprobe.app.cli", "runs", "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=START_S)
    return time.perf_counter() - begun


def first_charts(visits: np.ndarray) -> list[Figure]:
    """Of each page the first visit apart: it finds a server that has drawn nothing of the run yet."""
    small, many, long = np.median(visits[1:], axis=0).tolist()
    note = f"p50 of {VISITS} visits in turns, a new browser context each; the first visit took {{:.2f}} s beside {visits[0, 0]:.2f} s"
    base = {"unit": "s", "target": f"≤ {MOST:g} ×", "baseline": f"{STEPS:,} steps", "baseline_value": small}
    return [
        Figure(f"first chart, {RUNS:,} runs", many, met=many <= MOST * small, note=note.format(visits[0, 1]), **base),
        Figure(f"first chart, {STEPS * TIMES:,} steps", long, met=long <= MOST * small, note=note.format(visits[0, 2]), **base),
    ]  # fmt: skip


def listing(seconds: np.ndarray) -> Figure:
    """`logprobe runs`, the best of each home."""
    one, many = seconds.min(axis=0).tolist()
    target = f"≤ {RUNS_S:g} s"
    return Figure(f"`logprobe runs`, {RUNS:,} runs", many, "s", target, many <= RUNS_S, "one run", one)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
