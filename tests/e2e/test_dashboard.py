"""The dashboard in a real browser, on the real service, while a run is being recorded."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from dashboard_process import Watched, dashboard, drag
from playwright.sync_api import Browser, Page, Route, expect
from synthetic_run import SyntheticRun

from logprobe.app.text.numbers import number
from logprobe.collectors.errors import HomeBusyError, ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

pytestmark = pytest.mark.browser

MARKUP = "<b onmouseover=alert(1)>bold</b>"
FIRST_CHART_SECONDS = 180  # a busy machine is no fault
STATE = """() => { const plot = document.querySelector(".lp-plot"); const full = plot._fullLayout;
  const trace = plot.data.find((each) => each.meta && each.meta.row === "y2" && each.meta.line === 0);
  return { range: full.xaxis.range.map(Number), points: trace.y.length, last: trace.x[trace.x.length - 1] } }"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home with an ended run, one whose name is markup, and a run that goes on; and the address of its dashboard."""
    home = tmp_path_factory.mktemp("live") / "home"
    for name in ("synthetic-ended", MARKUP):
        with Recorder(home, name) as recorder:
            SyntheticRun(recorder, full=False).record(12)
    with dashboard("up", "--home", str(home), "--port", "0") as address, Recorder(home, "synthetic-live") as recorder:
        run = SyntheticRun(recorder)
        run.record(40)
        with recording(run):
            yield home, address


@contextmanager
def recording(run: SyntheticRun) -> Iterator[None]:
    """Two steps a second in the background."""
    stop = threading.Event()

    def record() -> None:
        while not stop.wait(0.5):
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


def wait_for_chart(page: Page, points: int = 1) -> dict[str, Any]:
    """Waits until the first line of the first row has so many points."""
    # In one go: between two looks the chart may be drawn again.
    known = f"() => {{ try {{ const state = ({STATE})(); return state.points >= {points} && state }} catch {{ return false }} }}"
    return page.wait_for_function(known).json_value()


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


def test_charts_appear_grow_and_keep_the_zoom(browser: Browser, live: tuple[Path, str], artifacts: Path) -> None:
    _, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"{address}/?run=synthetic-live")
        page.wait_for_selector(".lp-plot .trace", state="attached", timeout=FIRST_CHART_SECONDS * 1000)
        before = wait_for_chart(page, 20)
        expect(page.locator(".lp-facts .lp-badge")).to_have_text("live")
        page.evaluate("document.querySelector('.lp-plot').dataset.mounted = 'once'")
        page.wait_for_function(
            f"() => document.querySelector('.lp-facts').innerText.includes(`step ${{({STATE})().last}}`)"
        )

        drag(page, ".lp-plot", 0.3, 0.6)
        expect(page.get_by_role("button", name="reset zoom")).to_be_visible()
        zoomed = page.evaluate(STATE)
        assert zoomed["range"][0] > before["range"][0]
        assert zoomed["range"][1] < before["range"][1]
        newest = zoomed
        for _ in range(3):
            newest = wait_for_chart(page, newest["points"] + 1)
            assert newest["range"] == zoomed["range"]
        assert newest["last"] > before["last"]
        assert page.locator(".lp-plot").get_attribute("data-mounted") == "once"  # redrawn, never rebuilt

        page.locator(".lp-plot").hover(position={"x": 400, "y": 100})
        expect(page.locator(".lp-cursor")).to_contain_text("step ")
        seen.shot(artifacts, "overview-zoomed")
        page.get_by_role("button", name="reset zoom").click()
        page.wait_for_function(f"() => ({STATE})().range[0] < {zoomed['range'][0]}")
        page.mouse.move(2, 2)
        assert wait_for_chart(page)["range"][1] > newest["last"]
        seen.shot(artifacts, "overview-light")
        assert sum("plotly-basic.min.js" in url for url in seen.requests) == 1


def test_a_chart_that_could_not_be_loaded_comes_with_the_next_step(browser: Browser, live: tuple[Path, str]) -> None:
    _, address = live
    seen = Watched(browser, address)
    page = seen.page
    away = threading.Event()
    away.set()

    def answer(route: Route) -> None:
        """Nothing, until the failure was seen; at its first address nothing after that either."""
        if away.is_set() or route.request.url.endswith(".js"):
            route.abort()
        else:
            route.continue_()

    page.route(re.compile(r"/plotly-basic\.min\.js"), answer)
    page.goto(f"{address}/?run=synthetic-live")
    expect(page.locator(".lp-wait")).to_contain_text("The charts could not be drawn")
    away.clear()
    wait_for_chart(page)
    expect(page.locator(".lp-wait")).to_be_hidden()
    seen.close()


def test_the_address_names_the_run_and_names_stay_text(
    browser: Browser, live: tuple[Path, str], artifacts: Path
) -> None:
    _, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"{address}/?run=synthetic-ended")
        wait_for_chart(page)
        expect(page.locator(".lp-pick .lp-name")).to_have_text("synthetic-ended")
        expect(page.locator(".lp-facts .lp-badge")).to_have_text("ended")
        expect(page.locator(".lp-absent")).to_contain_text("Weight lag: not measured, needs")
        expect(
            page.locator("[data-metric=entropy] .lp-note, [data-metric=weight_lag_mean] .lp-note").first
        ).to_contain_text("not measured")

        page.click(".lp-pick")
        options = page.locator(".lp-option")
        expect(options.locator(".lp-name")).to_have_text(["synthetic-live", MARKUP, "synthetic-ended"])  # newest first
        seen.shot(artifacts, "run-picker")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        expect(page.locator(".lp-pick .lp-name")).to_have_text(MARKUP)
        page.wait_for_url("**run=%3Cb*")
        page.reload()
        expect(page.locator(".lp-pick .lp-name")).to_have_text(MARKUP)
        assert page.locator(".lp-bar b[onmouseover]").count() == 0


def test_numbers_read_the_same_in_python_and_in_the_browser(browser: Browser, live: tuple[Path, str]) -> None:
    _, address = live
    values = [
        0,
        1,
        -1,
        1.2345e-4,
        9.996e-4,
        1e-3,
        0.0012345,
        0.5,
        0.98,
        0.9912345,
        0.99999,
        1.005,
        12.345,
        999.4,
        1234.5,
        99_999.4,
        1.5e7,
        -3.3e-9,
    ]
    with watched(browser, address) as seen:
        seen.page.goto(f"{address}/?run=synthetic-live")
        wait_for_chart(seen.page)
        seen.page.wait_for_url("**run=synthetic-live")  # what is shown can be linked to
        module = next(url for url in seen.requests if url.endswith("/format.js"))
        shown = seen.page.evaluate(
            "async ([module, values]) => { const { number } = await import(module); return values.map(number) }",
            [module, values],
        )
    assert shown == [number(value) for value in values]


@pytest.mark.parametrize(
    ("name", "options"), [("overview-dark", {"dark": True}), ("overview-390", {"width": 390, "height": 844})]
)
def test_dark_and_narrow(
    browser: Browser, live: tuple[Path, str], artifacts: Path, name: str, options: dict[str, Any]
) -> None:
    _, address = live
    with watched(browser, address, **options) as seen:
        seen.page.goto(f"{address}/?run=synthetic-live")
        wait_for_chart(seen.page, 20)
        assert seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
        label = seen.page.locator(".lp-stage").get_attribute("aria-label")
        assert label is not None
        assert "Metrics of run synthetic-live over " in label  # after the verdict, once there is one
        seen.shot(artifacts, name, whole=True)


def test_the_service_goes_away_and_comes_back(browser: Browser, live: tuple[Path, str], artifacts: Path) -> None:
    path, address = live
    home = Home(path)
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"{address}/?run=synthetic-live")
        wait_for_chart(page, 20)
        with killed_service(home):
            expect(page.locator(".lp-notice")).to_contain_text("The monitor service is not responding for ")
            expect(page.locator(".lp-facts .lp-badge")).to_have_text("service away")
            before = page.evaluate(STATE)["points"]
            assert before >= 20  # the last values stay
            seen.shot(artifacts, "service-away")
        expect(page.locator(".lp-facts .lp-badge")).to_have_text("live", timeout=180_000)
        expect(page.locator(".lp-notice")).to_have_count(0)
        wait_for_chart(page, before + 1)  # what was recorded meanwhile is there, too


def test_a_service_that_hangs_is_seen_within_15_seconds(browser: Browser, live: tuple[Path, str]) -> None:
    home, address = live
    with watched(browser, address) as seen:
        page = seen.page
        page.goto(f"{address}/?run=synthetic-live")
        wait_for_chart(page)
        with connect(home) as reader:
            pid = reader.status()["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            expect(page.locator(".lp-silent")).to_contain_text("No answer for 1", timeout=15_000)
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(page.locator(".lp-silent")).to_have_count(0)


def test_an_empty_home_says_how_to_begin(browser: Browser, home: Path, artifacts: Path) -> None:
    with dashboard("up", "--home", str(home), "--port", "0") as address, watched(browser, address) as seen:
        page = seen.page
        page.goto(address)
        expect(page.get_by_text("No runs yet")).to_be_visible()
        expect(page.locator("[data-testid=stCode]")).to_contain_text(f'Recorder("{home}", "my-run")')
        seen.shot(artifacts, "empty")
        with Recorder(home, "first") as recorder:
            SyntheticRun(recorder, full=False).record(3)
            wait_for_chart(page, 3)  # without a reload
        expect(page.get_by_text("No runs yet")).to_have_count(0)
