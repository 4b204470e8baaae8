"""`make demo` as a newcomer meets it: the shipped recorded runs, replayed live, in a real browser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Browser

from logprobe.app.demo import find_runs

pytestmark = pytest.mark.browser

FIRST_CHART_SECONDS = 60  # a busy machine is no fault; how long it takes is measured, not asserted
LAST_STEP = """() => { const plot = document.querySelector(".lp-plot"); if (!plot || !plot.data) return null;
  const trace = plot.data.find((each) => each.meta); return trace ? trace.x[trace.x.length - 1] : null }"""
RANGE = "() => document.querySelector('.lp-plot')._fullLayout.xaxis.range.map(Number)"


def test_the_demo_shows_recorded_runs_growing(browser: Browser, repository: Path, artifacts: Path) -> None:
    names = [recorded.run for recorded in find_runs(repository / "sample_data", None)]
    started = time.monotonic()  # as somebody who types the command has it, and opens the address at once
    with dashboard("demo", "--port", "0", "--speed", "2") as address:
        seen = Watched(browser, address)
        page = seen.page
        page.goto(address)
        page.wait_for_function(LAST_STEP, timeout=FIRST_CHART_SECONDS * 1000)
        (artifacts / "first-chart-seconds.txt").write_text(f"{time.monotonic() - started:.1f}\n")
        page.wait_for_function(f"() => ({LAST_STEP})() >= 20")
        seen.shot(artifacts, "demo")

        box = page.locator(".lp-plot").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 200, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 600, box["y"] + 100, steps=4)
        page.mouse.up()
        page.wait_for_selector(".lp-reset:visible")
        zoomed, last = page.evaluate(RANGE), page.evaluate(LAST_STEP)
        for _ in range(3):
            page.wait_for_function(f"() => ({LAST_STEP})() > {last}")
            last = page.evaluate(LAST_STEP)
            assert page.evaluate(RANGE) == zoomed

        page.click(".lp-pick")
        assert set(page.locator(".lp-option .lp-name").all_inner_texts()) == set(names)
        page.keyboard.press("Escape")
        assert seen.complaints == []
        seen.close()
