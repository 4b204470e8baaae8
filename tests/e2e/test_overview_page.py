"""The Overview in a real browser: its rows and tiles are chosen, it is paused, and people note what they did on it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from alert_homes import K3, put
from dashboard_process import PATIENCE, Watched, dashboard
from playwright.sync_api import Page, expect

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

pytestmark = pytest.mark.browser
RUN = "sweep/<b>#1"
ROWS = "article.lp-tile[data-metric]"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("overview") / "home"
    with Store.open(Home(home)) as store:
        put(
            store,
            RUN,
            {step: {K3: 1e-3 * (1 + step % 3), "backend.ess_seq": 0.5, "reward": 0.1 * step} for step in range(40)},
        )
    return home


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with dashboard("up", "--home", str(home), "--port", "0") as address:
        yield address


def asked(page: Page, name: str) -> str | None:
    return parse_qs(urlsplit(page.url).query).get(name, [None])[0]


def opened(seen: Watched, address: str, query: str = "") -> Page:
    seen.page.goto(f"{address}/?run=sweep%2F%3Cb%3E%231{query}")
    expect(seen.page.locator(".lp-plot .trace").first).to_be_attached()
    return seen.page


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Lets the browser go on until `condition` holds."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def quiet(page: Page, sent: list[int], seconds: int) -> bool:
    """Whether the page sends nothing for so long."""
    sent.clear()
    page.wait_for_timeout(seconds * 1000)
    return not sent


def test_rows_and_tiles_are_chosen_and_the_link_has_them(seen: Watched, address: str, artifacts: Path) -> None:
    page = opened(seen, address)
    page.get_by_role("button", name="metrics", exact=True).click()
    page.get_by_test_id("stPopoverBody").get_by_role("combobox").fill("ess_seq h")  # neither a shortcut nor a row
    expect(page.get_by_text("No results")).to_be_visible()
    assert asked(page, "pause") is None
    page.get_by_test_id("stPopoverBody").get_by_role("combobox").fill("ess_seq")
    page.get_by_role("option", name=re.compile(r"· ess_seq$")).click()
    page.wait_for_url(re.compile("charts="))
    expect(page.locator("article[data-metric='backend.ess_seq'] .lp-value")).to_contain_text("0.5")
    expect(page.locator(ROWS)).to_have_count(11)
    seen.shot(artifacts, "overview-metrics")
    page.goto(f"{page.url.split('?')[0]}?run=sweep%2F%3Cb%3E%231&charts=ess_seq,no-such,reward")
    expect(page.locator(ROWS)).to_have_count(2)
    expect(page.locator(".lp-heading h3")).to_have_text(["Reward", re.compile(r".+")])
    seen.shot(artifacts, "overview-two-metrics")
    page.get_by_role("button", name="metrics: 2").click()
    for _ in range(2):
        page.get_by_test_id("stPopoverBody").get_by_role("combobox").press("Backspace")
    page.wait_for_function("() => !location.search.includes('charts')")  # none: those of the overview
    expect(page.locator(ROWS)).to_have_count(10)


def test_only_rows_without_a_value_are_named(seen: Watched, address: str) -> None:
    seen.page.goto(f"{address}/?run=sweep%2F%3Cb%3E%231&charts=backend.kl")
    expect(seen.page.locator(".lp-absent")).to_contain_text("KL (k1): not measured")


def test_a_paused_page_asks_for_nothing_and_calls_nothing_live_or_healthy(
    seen: Watched, address: str, home: Path, artifacts: Path
) -> None:
    page = opened(seen, address)
    sent: list[int] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(1)))
    page.reload()
    expect(page.locator(".lp-plot .trace").first).to_be_attached()
    sent.clear()
    until(page, lambda: bool(sent))
    page.get_by_role("button", name="pause").click()
    expect(page.locator(".lp-paused")).to_contain_text(re.compile(r"Paused: as of \d\d:\d\d:\d\d UTC"))
    expect(page.locator(".lp-badge").first).to_have_text("paused")
    assert page.title().startswith("‖ ")
    assert "8d939a" in page.evaluate("document.querySelector('link[rel~=icon]').href")
    assert asked(page, "pause") == "1"
    until(page, lambda: quiet(page, sent, 5))  # an answer may have been on its way
    assert quiet(page, sent, 15)  # longer than any page waits between two looks
    assert page.locator(".lp-silent").count() == 0
    seen.shot(artifacts, "overview-paused")
    page.reload()
    expect(page.locator(".lp-paused")).to_be_visible()
    page.keyboard.press("h")
    expect(page.locator(".lp-paused")).to_have_count(0)
    page.wait_for_function("() => !location.search.includes('pause')")
    sent.clear()
    until(page, lambda: bool(sent))
