"""What the number of runs costs the page of all runs: its first view with 2,000 runs over that with ten, and a search as one types.

Two real `logprobe up`, visited in turns by a real browser. Runs have the rows that the step job leaves; no service has anything to do for them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import copied_runs
import numpy as np
from figure import Figure
from playwright.sync_api import Browser, sync_playwright

from logprobe.monitor.home import Home
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

sys.path += [
    str(Path(__file__).resolve().parent.parent / "support"),
    str(Path(__file__).resolve().parent.parent / "e2e"),
]
from alert_homes import K3, put
from bench_sizes import rest
from dashboard_process import chromium, dashboard

RUNS, FEW, STEPS, VISITS = 2000, 10, 20, 7
MOST, SEARCH = 1.5, 3.0
ROWS = ".lp-runs-table tr[data-run]"


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        homes = [fill(Path(folder) / str(runs), runs) for runs in (FEW, RUNS)]
        addresses = [
            stack.enter_context(dashboard("up", "--home", str(home), "--port", "0", seconds=900)) for home in homes
        ]
        for home, address in zip(homes, addresses, strict=True):
            rest(home, address)
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        visits = np.array([[visit(browser, address) for address in addresses] for _ in range(1 + VISITS)])[1:]
        browser.close()
    (few, search_few), (many, search) = np.median(visits, axis=0).tolist()
    note = f"p50 of {VISITS} visits in turns, {STEPS} steps each"
    return [
        Figure(f"first view, {RUNS:,} runs", many, "s", f"≤ {MOST:g} ×", many <= MOST * few, f"{FEW} runs", few, note),
        Figure(
            f"search, {RUNS:,} runs",
            search,
            "s",
            f"≤ {SEARCH:g} ×",
            search <= SEARCH * search_few,
            f"{FEW} runs",
            search_few,
            note,
        ),
    ]


def fill(home: Path, runs: int) -> Path:
    """A home of so many runs."""
    home.mkdir()
    with Store.open(Home(home)) as store:
        put(store, "base", {step: {K3: 1e-3, "weight_lag_mean": 1.0} for step in range(STEPS)})
        Turns(DiagnosisStage(store)).run_once()
        copied_runs.as_other_runs(store, "base", "run-{:04d}", runs - 1)
    return home


def visit(browser: Browser, address: str) -> tuple[float, float]:
    """Seconds until a browser that was never here shows rows; and until it shows the one that was searched for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector(ROWS)
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    page.get_by_role("searchbox", name="search runs").last.fill("run-0007")
    page.wait_for_function("(rows) => document.querySelectorAll(rows).length === 1", arg=ROWS)
    context.close()
    return first, time.perf_counter() - begun


if __name__ == "__main__":
    for figure in measure():
        print(figure)
