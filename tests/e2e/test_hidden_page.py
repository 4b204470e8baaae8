"""A page that nobody sees asks for nothing, and catches up once somebody looks again; a page without news is left as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Browser, Page, WebSocket
from synthetic_run import SyntheticRun

from logprobe.collectors.recorder.recorder import Recorder

pytestmark = pytest.mark.browser

SECONDS = 180  # a busy machine is no fault
LAST = "document.querySelector('.lp-plot')?.data?.find((trace) => trace.meta?.line !== undefined)?.x.at(-1)"
# A browser without windows never hides a page; what the page goes by is set, and told, as a hidden tab has it.
VISIBILITY = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

# Counts from now on how often anything of the chart is put into the page again.
COUNT_DRAWINGS = """() => {
  window.drawings = 0;
  window.watcher ??= new MutationObserver(() => { window.drawings += 1; });
  window.watcher.observe(document.querySelector(".lp-plot"), { childList: true, subtree: true, attributes: true });
}"""


class Session:
    """A page, and how often it has asked the server for anything."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.asked = 0
        self.watched = Watched(browser, address)
        self.page.on("websocket", self._listen)
        self.page.goto(f"{address}/?run=live")
        self.shows(0)

    @property
    def page(self) -> Page:
        return self.watched.page

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", self._count)

    def _count(self, _: str | bytes) -> None:
        self.asked += 1

    def shows(self, step: int) -> None:
        """Waits until the chart has that step."""
        self.page.wait_for_function(f"() => {LAST} >= {step}", timeout=SECONDS * 1000)

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets the browser go on until `condition` holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            self.page.wait_for_timeout(50)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SyntheticRun]]:
    """Address of a dashboard, and a run that goes on when it is told to."""
    home = tmp_path_factory.mktemp("hidden") / "home"
    with dashboard("up", "--home", str(home), "--port", "0") as address, Recorder(home, "live") as recorder:
        run = SyntheticRun(recorder)
        run.record(10)
        yield address, run


def test_a_hidden_page_asks_for_nothing(browser: Browser, live: tuple[str, SyntheticRun], artifacts: Path) -> None:
    address, run = live
    hidden, seen = Session(browser, address), Session(browser, address)
    hidden.page.evaluate(VISIBILITY, True)
    run.record(1)
    seen.shows(run.next_step - 1)

    def silent() -> bool:
        """Whether it asks for nothing while the other page does: what it had asked for before may be on its way."""
        asked, before = hidden.asked, seen.asked
        seen.until(lambda: seen.asked >= before + 3)
        return hidden.asked == asked

    seen.until(silent)
    asked, before = hidden.asked, seen.asked
    run.record(1)
    seen.until(lambda: seen.asked >= before + 3)
    seen.shows(run.next_step - 1)
    assert hidden.asked == asked
    assert hidden.page.evaluate(LAST) < run.next_step - 1

    hidden.page.evaluate(VISIBILITY, False)
    hidden.shows(run.next_step - 1)  # without a reload
    assert hidden.asked > asked
    for session in (hidden, seen):
        assert session.watched.complaints == []
        session.watched.close()


def test_without_news_nothing_is_drawn_again(browser: Browser, live: tuple[str, SyntheticRun]) -> None:
    address, run = live
    session = Session(browser, address)
    run.record(1)
    session.shows(run.next_step - 1)

    def answered_without_drawing() -> bool:
        session.page.evaluate(COUNT_DRAWINGS)
        asked = session.asked
        session.until(lambda: session.asked >= asked + 3)
        return session.page.evaluate("window.drawings") == 0

    session.until(answered_without_drawing)  # at first there is news: a diagnosis comes some seconds after the step
    assert session.watched.complaints == []
    session.watched.close()
