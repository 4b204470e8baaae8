"""The dashboard on a run of 1,000 steps × 1,000 series, live and in a real browser: first chart, refresh, what the servers pay.

A real `logprobe up`; the run is recorded, ingested and computed as every run is (`wide_run.py`), and goes on being recorded while
pages look at it. Browser and servers share the machine's cores, so times are those of a person who looks at a dashboard on the very
machine that serves it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figure import Figure
from playwright.sync_api import Browser, sync_playwright

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import connect

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
import wide_run
from dashboard_process import chromium, dashboard
from timed_page import TimedPage, cpu_seconds, server_of

VISITS = 7
STEPS = 15
TOGETHER = 4
FIRST_CHART_S, REFRESH_S, CPU_S = 2.0, 0.2, 0.15
POLL_S = 2.0  # how often a page of a live run asks for news
WIDE = f"{wide_run.STEPS:,} steps × {wide_run.SERIES:,} series"


@dataclass(frozen=True)
class Live:
    """What it took to follow `STEPS` new steps, in seconds.

    Attributes:
        refresh: per step and page, from asking for news until the step was drawn.
        latency: per step and page, from the flush of the step until it was drawn.
        app_cpu: of the dashboard's process, per time that a page asked.
        service_cpu: of the service's process, per step.
    """

    refresh: Sequence[float]
    latency: Sequence[float]
    app_cpu: float
    service_cpu: float


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        points = wide_run.make(home)
        if points < wide_run.STEPS * wide_run.SERIES:
            raise RuntimeError(f"only {points} points are stored")
        with dashboard("up", "--home", str(home), "--port", "0") as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            visits = [visit(browser, address) for _ in range(1 + VISITS)]
            alone, together = follow(browser, address, home)
            browser.close()
    return [*first_charts(visits), *refreshes(alone, together), *costs(alone, together)]


def visit(browser: Browser, address: str) -> float:
    """Seconds until a browser that was never here shows the chart."""
    page = TimedPage(browser, f"{address}/?run={wide_run.RUN}")
    seconds = page.first_chart()
    page.close()
    return seconds


def follow(browser: Browser, address: str, home: Path) -> tuple[Live, Live]:
    """A live run as one page sees it, and as several do at once."""
    app = server_of(address)
    with connect(home) as reader:
        service = int(reader.status()["pid"])
    with Recorder(home, wide_run.RUN, component="trainer") as recorder:
        run = wide_run.WideRun(recorder, first_step=wide_run.STEPS)
        pages: list[TimedPage] = []
        found = []
        for number in (1, TOGETHER):
            while len(pages) < number:
                pages.append(TimedPage(browser, f"{address}/?run={wide_run.RUN}"))
                pages[-1].first_chart()
            settle(pages, run)
            found.append(watch(pages, run, app, service))
    return found[0], found[1]


def settle(pages: Sequence[TimedPage], run: wide_run.WideRun) -> None:
    """The run counts as live, and every page follows it."""
    for _ in range(2):
        step = run.record(1)
        for page in pages:
            page.drawn(step)


def watch(pages: Sequence[TimedPage], run: wide_run.WideRun, app: int, service: int) -> Live:
    """One new step after the other, each once all pages have drawn the one before."""
    rng = np.random.default_rng(5)
    before = cpu_seconds(app), cpu_seconds(service), sum(page.asked() for page in pages)
    refresh, latency = [], []
    for _ in range(STEPS):
        time.sleep(float(rng.uniform(0, 1)))  # no step with the pages' clock
        step, flushed = run.record(1), time.time()
        for page in pages:
            drawn, waited = page.drawn(step)
            refresh.append(waited)
            latency.append(drawn - flushed)
    after = cpu_seconds(app), cpu_seconds(service), sum(page.asked() for page in pages)
    spent_app, spent_service, asked = (late - early for late, early in zip(after, before, strict=True))
    return Live(refresh, latency, spent_app / asked, spent_service / STEPS)


def first_charts(visits: Sequence[float]) -> list[Figure]:
    """The first visit of all apart: it finds a server that has drawn nothing yet."""
    cold, warm = visits[0], float(np.median(visits[1:]))
    note = f"{WIDE}; a new browser context each, nothing cached"
    return [
        Figure("dashboard: first chart, p50", warm, "s", f"≤ {FIRST_CHART_S:g} s", warm <= FIRST_CHART_S, note=note),
        Figure("dashboard: first chart after start", cold, "s", baseline="p50", baseline_value=warm, note="server cold, too"),
    ]  # fmt: skip


def refreshes(alone: Live, together: Live) -> list[Figure]:
    """From asking to drawn, and from the flush of a step to drawn."""
    p50, p95 = np.percentile(alone.refresh, [50, 95])
    many50, many95 = np.percentile(together.refresh, [50, 95])
    beside = {"unit": "s", "baseline": "one page", "note": f"all {TOGETHER} pages redraw the same step on this machine"}
    return [
        Figure("dashboard: refresh, p50", float(p50), "s", f"≤ {REFRESH_S:g} s", bool(p50 <= REFRESH_S),
               note="from the page's question to the new step on its chart"),
        Figure("dashboard: refresh, p95", float(p95), "s"),
        Figure(f"dashboard: refresh of {TOGETHER} pages, p50", float(many50), baseline_value=float(p50), **beside),
        Figure(f"dashboard: refresh of {TOGETHER} pages, p95", float(many95), target=f"≤ {POLL_S:g} s",
               met=bool(many95 <= POLL_S), baseline_value=float(p95), **beside),
        Figure("dashboard: step flushed to drawn, p50", float(np.median(alone.latency)), "s", baseline="polling interval",
               baseline_value=POLL_S, note="ingest and metrics are part of it"),
    ]  # fmt: skip


def costs(alone: Live, together: Live) -> list[Figure]:
    """Processor time of both servers."""
    met = max(alone.app_cpu, together.app_cpu) <= CPU_S
    return [
        Figure("dashboard: server CPU per refresh", alone.app_cpu, "s", f"≤ {CPU_S:g} s", met, note="the dashboard's process"),
        Figure(f"dashboard: server CPU per refresh, {TOGETHER} pages", together.app_cpu, "s", baseline="one page",
               baseline_value=alone.app_cpu),
        Figure(f"service: CPU per step, {TOGETHER} pages", together.service_cpu, "s", baseline="one page",
               baseline_value=alone.service_cpu, note="ingest, metrics, diagnosis, alerts and the pages' questions"),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in measure():
        print(figure)
