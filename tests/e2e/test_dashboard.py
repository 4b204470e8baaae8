"""Promises of the dashboard that only a real browser can keep, on the real service, while a run is being recorded."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from dashboard_process import Watched, dashboard, drag, opened
from playwright.sync_api import Browser, Page, expect
from synthetic_run import SyntheticRun

from logprobe.app.text.numbers import number
from logprobe.collectors.errors import HomeBusyError, ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

pytestmark = pytest.mark.browser

MARKUP = "<b onmouseover=alert(1)>bold</b>"
# Of the first line: a band of what is usual may be drawn below it.
STATE = """() => { const { _fullLayout: full, _fullData: drawn } = document.querySelector(".lp-plot"); const trace = drawn.find(({ name }) => name === "backend");
  return { range: full.xaxis.range.map(Number), points: trace.y.length, last: trace.x[trace.x.length - 1] } }"""

# The heart of the page looks every 250 ms whether it has to ask for news; with `beat` it does so now, and has waited long.
HEART = """const { setInterval: repeat } = window, now = performance.now.bind(performance);
  let ahead = 0;
  performance.now = () => now() + ahead;
  window.setInterval = (look, every, ...more) => {
    if (every === 250) window.beat = () => { ahead = 11_000; look(); ahead = 0; };
    return repeat(look, every, ...more);
  };"""
ZOOM_IN = """Plotly.relayout(document.querySelector(".lp-plot"), { "xaxis.range": [2.6, 9.4] })"""
ZOOM_OUT = """document.querySelector(".lp-frame").dispatchEvent(new KeyboardEvent("keydown", { key: "0" }))"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home with an ended run whose name is markup, and a run that goes on; and the address of its dashboard."""
    home = tmp_path_factory.mktemp("live") / "home"
    with Recorder(home, MARKUP) as recorder:
        SyntheticRun(recorder, full=False).record(12)
    with dashboard("up", "--home", str(home), "--port", "0") as address, Recorder(home, "synthetic-live") as recorder:
        run = SyntheticRun(recorder)
        run.record(40)
        with recording(run):
            yield home, address


@contextmanager
def recording(run: SyntheticRun) -> Iterator[None]:
    """A step a second in the background."""
    stop = threading.Event()

    def record() -> None:
        while not stop.wait(1.0):
            run.record(1)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(90)


@contextmanager
def watched(browser: Browser, address: str, **options: Any) -> Iterator[Watched]:
    """A page that must come through without a complaint."""
    page = Watched(browser, address, **options)
    try:
        yield page
        assert page.complaints == []
    finally:
        page.close()


@pytest.fixture(scope="module")
def overview(browser: Browser, live: tuple[Path, str]) -> Iterator[Watched]:
    """The Overview of the run that goes on, opened once: each test leaves it as it found it."""
    with watched(browser, live[1]) as seen:
        seen.page.goto(f"{live[1]}/?run=synthetic-live")
        wait_for_chart(seen.page, 20)
        yield seen


def wait_for_chart(page: Page, points: int = 1) -> dict[str, Any]:
    """Waits until the first line of the first row has so many points."""
    # In one go: between two looks the chart may be drawn again.
    known = f"() => {{ try {{ const state = ({STATE})(); return state.points >= {points} && state }} catch {{ return false }} }}"
    state: dict[str, Any] = page.wait_for_function(known).json_value()
    return state


def test_charts_grow_and_keep_the_zoom(overview: Watched, artifacts: Path) -> None:
    page = overview.page
    before = wait_for_chart(page, 20)
    page.evaluate("document.querySelector('.lp-plot').dataset.mounted = 'once'")
    drag(page, ".lp-plot", 0.3, 0.6)
    expect(page.get_by_role("button", name="reset zoom")).to_be_enabled()
    page.wait_for_function(f"() => ({STATE})().range[0] > {before['range'][0]}")
    zoomed = page.evaluate(STATE)
    first, last = map(int, parse_qs(urlsplit(page.url).query)["steps"][0].split(":"))
    assert zoomed["range"] == [first - 0.5, last + 0.5]  # as the address has it, at once
    newest = wait_for_chart(page, zoomed["points"] + 1)
    assert newest["range"] == zoomed["range"]
    assert newest["range"][1] < newest["last"]
    assert page.locator(".lp-plot").get_attribute("data-mounted") == "once"  # redrawn, never rebuilt
    page.reload()  # the link opens the same view
    wait_for_chart(page)
    assert page.evaluate(STATE)["range"] == newest["range"]
    page.get_by_role("button", name="reset zoom").click()
    page.wait_for_function(f"() => ({STATE})().range[1] > {newest['last']}")
    overview.shot(artifacts, "overview-light")
    assert sum("plotly-basic.min.js" in url for url in overview.requests) <= 2  # once a visit


def test_a_zoom_is_heard_in_the_moment_in_which_the_page_asks_for_news(
    browser: Browser, live: tuple[Path, str]
) -> None:
    _, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.add_init_script(HEART)
        page.goto(f"{address}/?run={quote(MARKUP, safe='')}")  # an ended run: no news draws the page again
        wait_for_chart(page, 12)
        page.wait_for_function("() => window.beat")
        for both in (f"window.beat(); {ZOOM_OUT}", f"{ZOOM_OUT}; window.beat()"):
            page.evaluate(ZOOM_IN)
            page.wait_for_function("() => location.search.includes('steps=3')")
            expect(page.get_by_role("button", name="reset zoom")).to_be_enabled()
            page.evaluate(f"() => {{ {both} }}")
            page.wait_for_function("() => !location.search.includes('steps')")
            expect(page.get_by_role("button", name="reset zoom")).to_be_disabled()


def test_a_row_of_the_runs_opens_one_whose_values_keys_read_and_links_of_messages_lead_on(
    browser: Browser, live: tuple[Path, str]
) -> None:
    home, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(address)  # several runs: they are listed
        page.wait_for_url("**/runs*")
        table = page.get_by_test_id("stDataFrame")
        expect(table).to_be_visible()
        table.click(position={"x": 200, "y": 52})
        page.wait_for_url("**/?run=*")
        wait_for_chart(page)
        page.goto(f"{address}/?page=correction&run=synthetic-live")
        page.wait_for_url("**/correction?run=synthetic-live*")
        expect(page.get_by_text("Kill switch").first).to_be_visible()
        page.goto(f"{address}/?run={quote(MARKUP, safe='')}")
        wait_for_chart(page, 12)
        frame = page.locator(".lp-frame").first
        assert "Metrics of run <b" in (frame.get_attribute("aria-label") or "")
        frame.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".lp-said").first).to_contain_text("step 1")
        with connect(home) as reader:
            sql = "SELECT value AS k3 FROM metrics WHERE run = $run AND step = 1 AND metric = 'backend.k3_kl'"
            (k3,) = reader.query(sql, {"run": MARKUP})["k3"].to_pylist()
        expect(page.locator(".lp-heading").first).to_contain_text(number(k3))
        assert page.locator("b[onmouseover]").count() == 0  # a name stays text


def test_what_is_typed_and_opened_survives_news(browser: Browser, live: tuple[Path, str]) -> None:
    _, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"{address}/correction?run=synthetic-live")
        form = opened(page, "Arm")
        form.get_by_label("your name").fill("ada")
        before = page.locator(".lp-bar").inner_text()
        page.wait_for_function("(before) => document.querySelector('.lp-bar').innerText !== before", arg=before)
        page.wait_for_timeout(4000)  # longer than a page waits for news
        expect(form.get_by_label("your name")).to_be_focused()
        expect(form.get_by_label("your name")).to_have_value("ada")
        form.get_by_role("button", name="Arm").click()  # while there is news every second
        expect(page.locator("table[aria-label=audit]")).to_contain_text("ada")


def test_a_service_that_is_killed_or_hangs_is_named_within_15_seconds(
    overview: Watched, live: tuple[Path, str], artifacts: Path
) -> None:
    path, page = live[0], overview.page
    before = wait_for_chart(page, 20)["points"]
    with killed_service(Home(path)):
        expect(page.locator(".lp-bar")).to_contain_text("The monitor service is not responding", timeout=15_000)
        assert page.evaluate(STATE)["points"] >= 20  # the last values stay
        overview.shot(artifacts, "service-away")
    expect(page.locator(".lp-bar")).not_to_contain_text("not responding")
    wait_for_chart(page, before + 1)  # what was recorded meanwhile is there, too
    with connect(path) as reader:
        pid = reader.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(page.locator(".lp-silent")).to_contain_text("No answer for 1", timeout=20_000)
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(page.locator(".lp-silent")).to_be_hidden()


@contextmanager
def killed_service(home: Home) -> Iterator[None]:
    """The service is gone, and its successor has to wait for as long as the block takes."""
    deadline = time.monotonic() + 120
    while True:
        # Or a successor that was faster than this test.
        with suppress(ServiceUnavailableError), connect(home) as reader:
            os.kill(reader.status()["pid"], signal.SIGKILL)
        try:
            lock = home.lock()
            break
        except HomeBusyError:  # it takes the kernel a moment to bury a process
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with lock:
        yield


def test_a_hidden_page_asks_for_nothing(overview: Watched) -> None:
    page = overview.page
    wait_for_chart(page)
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.wait_for_timeout(1000)
    before = overview.sent
    page.wait_for_timeout(4000)  # twice as long as a visible page waits
    assert overview.sent == before
    page.evaluate("Object.defineProperty(document, 'hidden', { value: false, configurable: true })")
    wait_for_chart(page, page.evaluate(STATE)["points"] + 1)
    assert overview.sent > before


def test_dark_and_narrow(overview: Watched, artifacts: Path) -> None:
    page = overview.page
    page.emulate_media(color_scheme="dark")
    page.reload()
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        wait_for_chart(page, 20)
        page.wait_for_function("() => document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
        overview.shot(artifacts, f"overview-{width}", whole=True)
