"""The dashboard in a real browser: first chart of a short and a long run, a live run's refresh, many runs, and a long sequence.

Two real `logprobe up`, one of a few runs and one of 2,000. Runs are recorded and computed as every run is; the long one and the many
are stored rows again (`copied_runs.py`). Browser and servers share the machine's cores, so times are those of a person who looks at a
dashboard on the very machine that serves it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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

STEPS, TIMES, RUNS, TOKENS = 300, 34, 2000, 32_768
VISITS, NEWS = 7, 15
SCALARS = 50
AT_ONCE = 50  # steps between two flushes: what a Recorder holds is bounded
START_S, REST_S = 900.0, 5.0
QUIET = 0.2  # cores: what a service without new records may take
LISTED_S = 1.0
FIRST_CHART_S, LONG_CHART_S, REFRESH_S, LONG_REFRESH_S, RUNS_S, STRIP_S, CPU_S = 1.6, 1.8, 0.3, 0.4, 2.0, 1.5, 0.12


@dataclass(frozen=True)
class Live:
    """Seconds that `NEWS` new steps took: from the page's question to the step on its chart, from the step's flush to it,
    and of the dashboard's processor per question."""

    refresh: Sequence[float]
    latency: Sequence[float]
    cpu: float


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        homes = few, many = Path(folder) / "few", Path(folder) / "many"
        fill(few, many)
        addresses = [
            stack.enter_context(dashboard("up", "--home", str(home), "--port", "0", seconds=START_S)) for home in homes
        ]
        for home, address in zip(homes, addresses, strict=True):
            rest(home, address)
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        ways: Sequence[Callable[[], float]] = (
            lambda: first_chart(browser, f"{addresses[0]}/?run=short"),
            lambda: first_chart(browser, f"{addresses[0]}/?run=long"),
            lambda: first_sight(browser, f"{addresses[1]}/runs", "[data-testid=stDataFrame] canvas"),
            lambda: first_sight(browser, f"{addresses[0]}/tokens?run=sequences", ".lp-strip [role=option]"),
        )
        visits = np.array([[visit() for visit in ways] for _ in range(1 + VISITS)])
        live = [
            follow(browser, addresses[0], few, run, steps) for run, steps in (("short", STEPS), ("long", STEPS * TIMES))
        ]
        browser.close()
        listed = [min(list_runs(home) for _ in range(3)) for home in homes]
    return [*first_views(visits), *refreshes(*live), listing(*listed)]


def fill(few: Path, many: Path) -> None:
    """A home of a short run, a long one and one of long sequences; and a home of many runs."""
    record(few, "short", STEPS)
    with Recorder(few, "sequences") as recorder:
        rng = np.random.default_rng(3)
        rollout = -rng.exponential(1.0, (4, TOKENS))
        recorder.training(
            step=0, sample_ids=list("abcd"), token_ids=rng.integers(0, 1000, (4, TOKENS)), rollout_logprobs=rollout,
            trainer_logprobs=rollout - 0.01, mask=np.ones((4, TOKENS), bool), weight_version="0",
        )  # fmt: skip
    record(many, "base", 20)
    with Store.open(Home(few)) as store:
        copied_runs.as_longer_run(store, "short", "long", STEPS, TIMES)
    with Store.open(Home(many)) as store:
        copied_runs.as_other_runs(store, "base", "run-{:04d}", RUNS - 1)


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


def list_runs(home: Path) -> float:
    """Seconds of `logprobe runs`, from its start to its end."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "logprobe.app.cli", "runs", "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=START_S)
    return time.perf_counter() - begun


def first_chart(browser: Browser, address: str) -> float:
    """Seconds until a browser that was never here shows the chart."""
    page = TimedPage(browser, address)
    seconds = page.first_chart()
    page.close()
    return seconds


def first_sight(browser: Browser, address: str, selector: str) -> float:
    """Seconds until a browser that was never here shows an element."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector(selector, timeout=120_000)
    seconds = time.perf_counter() - begun
    context.close()
    return seconds


def follow(browser: Browser, address: str, home: Path, run: str, steps: int) -> Live:
    """One new step of a run after the other, each once the page has drawn the one before."""
    app, rng = server_of(address), np.random.default_rng(5)
    refresh, latency = [], []
    with Recorder(home, run) as recorder:
        synthetic = SyntheticRun(recorder, onset=steps)
        synthetic.next_step = steps
        page = TimedPage(browser, f"{address}/?run={run}")
        page.first_chart()
        for at in range(-2, NEWS):  # the run has to count as live, and the page has to follow it
            if at == 0:
                before = cpu_seconds(app), page.asked()
            time.sleep(float(rng.uniform(0, 1)))  # no step with the page's clock
            synthetic.record(1)
            flushed = time.time()
            drawn, waited = page.drawn(synthetic.next_step - 1)
            if at >= 0:
                refresh.append(waited)
                latency.append(drawn - flushed)
        spent = (cpu_seconds(app) - before[0]) / (page.asked() - before[1])
        page.close()
    return Live(refresh, latency, spent)


def first_views(visits: np.ndarray) -> list[Figure]:
    """Medians; of each page the first visit apart: it finds a server that has drawn nothing of it yet."""
    names = (f"first chart, {STEPS} steps", f"first chart, {STEPS * TIMES:,} steps", f"page of {RUNS:,} runs", f"strip of a sequence of {TOKENS:,} tokens")  # fmt: skip
    note = f"p50 of {VISITS} visits in turns, a new browser context each; the first visit took {{:.2f}} s"
    return [
        Figure(f"dashboard: {name}", seconds, "s", f"≤ {most:g} s", bool(seconds <= most), note=note.format(cold))
        for name, seconds, most, cold in zip(
            names, np.median(visits[1:], axis=0), (FIRST_CHART_S, LONG_CHART_S, RUNS_S, STRIP_S), visits[0], strict=True
        )
    ]


def refreshes(short: Live, long: Live) -> list[Figure]:
    """What new steps cost."""
    found = []
    for live, steps, most in ((short, STEPS, REFRESH_S), (long, STEPS * TIMES, LONG_REFRESH_S)):
        name, (p50, p95) = f"dashboard: {{}}, {steps:,} steps", np.percentile(live.refresh, [50, 95])
        found += [
            Figure(
                name.format("refresh"), float(p50), "s", f"≤ {most:g} s", bool(p50 <= most), note=f"p95 {p95:.2f} s"
            ),
            Figure(name.format("step flushed to drawn"), float(np.median(live.latency)), "s"),
            Figure(name.format("processor per refresh"), live.cpu, "s", f"≤ {CPU_S:g} s", live.cpu <= CPU_S),
        ]
    return found


def listing(few: float, many: float) -> Figure:
    """`logprobe runs`, the best of each home."""
    return Figure(f"`logprobe runs`, {RUNS:,} runs", many, "s", f"≤ {LISTED_S:g} s", many <= LISTED_S, "few runs", few)
