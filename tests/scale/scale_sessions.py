"""Ten browser sessions look at fifty runs that are recorded at the same time, through one service: nothing lost, nothing doubled, all drawn."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from dashboard_process import dashboard
from playwright.sync_api import Browser, Page, sync_playwright
from processes import eventually
from timed_page import server_of

from logprobe.monitor.reader import FlightReader, connect

PROCESSES, RUNS_EACH, STEPS, SESSIONS = 5, 10, 12, 10
LONG = 600.0
PAGES = ("mismatch", "tokens", "runs", "diagnosis", "alerts", "correction", "data", "compare")
_DRAWN = """(step) => document.querySelector(".lp-plot")?._fullData?.some((trace) => trace.name === "backend" && trace.x[trace.x.length - 1] >= step)"""


def test_ten_sessions_and_fifty_runs(tmp_path, chromium):
    home = tmp_path / "home"
    with ExitStack() as stack:
        address = stack.enter_context(dashboard("up", "--home", str(home), "--port", "0", seconds=LONG))
        begun = time.monotonic()
        recording = [start(home, process * RUNS_EACH) for process in range(PROCESSES)]
        reader = stack.enter_context(connect(home))
        eventually(lambda: len(names(reader)) == PROCESSES * RUNS_EACH, "all runs are known", LONG)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        complaints: list[str] = []
        pages = [opened(browser, f"{address}/?run=run-{number * 5:02d}", complaints) for number in range(SESSIONS)]
        for page in pages:
            page.wait_for_function(_DRAWN, arg=0, timeout=LONG * 1000)
        first_drawn = time.monotonic() - begun
        sent = {name: count for process in recording for name, count in finished(process).items()}
        eventually(lambda: computed(reader) == PROCESSES * RUNS_EACH * STEPS, "every step is computed", LONG)
        all_computed = time.monotonic() - begun
        for page in pages:
            page.wait_for_function(_DRAWN, arg=STEPS - 1, timeout=LONG * 1000)
        all_drawn = time.monotonic() - begun
        for number, page in enumerate(pages):
            walk(page, address, number)
        assert counts(reader) == {name: (count, count) for name, count in sent.items()}
        assert len(sent) == PROCESSES * RUNS_EACH
        memory = {"service": rss(int(reader.status()["pid"])), "dashboard": rss(server_of(address))}
        assert complaints == []
        browser.close()
    print(
        f"\n10 sessions, 50 runs: all charts {first_drawn:.0f} s, all steps {all_computed:.0f} s, all drawn {all_drawn:.0f} s after the start; MiB {memory}"
    )


def start(home: Path, first: int) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("many_runs_program.py")
    command = [sys.executable, str(program), str(home), str(first), str(RUNS_EACH), str(STEPS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, int]:
    out, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0
    return dict(json.loads(out))


def names(reader: FlightReader) -> list[str]:
    return reader.read("app_runs")["run"].to_pylist()


def computed(reader: FlightReader) -> int:
    sql = "SELECT count(DISTINCT (run, step)) AS n FROM metrics WHERE metric = 'backend.k3_kl' AND value IS NOT NULL"
    return reader.query(sql)["n"][0].as_py()


def counts(reader: FlightReader) -> dict[str, tuple[int, int]]:
    sql = "SELECT run, count(*) AS n, count(DISTINCT sample_id) AS ids FROM sequences GROUP BY run"
    return {row["run"]: (row["n"], row["ids"]) for row in reader.query(sql).to_pylist()}


def opened(browser: Browser, address: str, complaints: list[str]) -> Page:
    page = browser.new_context().new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(address, wait_until="commit", timeout=LONG * 1000)
    return page


def walk(page: Page, address: str, number: int) -> None:
    """Another page of the same session's run: it comes up, and holds no traceback."""
    name = PAGES[number % len(PAGES)]
    page.goto(
        f"{address}/?page={name}&run=run-{number * 5:02d}&baseline=run-01", wait_until="commit", timeout=LONG * 1000
    )
    drawn = ".lp-plot .trace, .lp-strip, .lp-table, .lp-hint, [data-testid=stDataFrame]"
    page.wait_for_selector(drawn, state="attached", timeout=LONG * 1000)
    assert page.locator("[data-testid=stException]").count() == 0


def rss(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss >> 20
