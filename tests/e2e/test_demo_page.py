"""`make demo` as a newcomer meets it: recorded runs, and one that is trained live and rescued, in a real browser."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from dashboard_process import Watched, command, drag
from playwright.sync_api import Browser, expect
from processes import connected, eventually

from logprobe.app.demo.show import SHOWN, TRAINED
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]

FIRST_CHART_SECONDS = 400  # a busy machine is no fault; how long it takes is measured, not asserted
LAST_STEP = """() => { const plot = document.querySelector(".lp-plot"); if (!plot || !plot.data) return null;
  const trace = plot._fullData.find(({ name }) => name === "backend"); return trace ? trace.x[trace.x.length - 1] : null }"""
LIVE = 210  # the step with which the live run begins to grow
END = 519  # its last step
BESIDE = "?run=rescue&page=compare&baseline=rescue-without"
RANGE = "() => document.querySelector('.lp-plot')._fullLayout.xaxis.range.map(Number)"


def test_the_demo_shows_a_run_that_is_rescued_and_ends_cleanly_on_ctrl_c(
    browser: Browser, artifacts: Path, tmp_path: Path
) -> None:
    """From the first chart to the correction that the trainer acknowledges, in a home of the demo's own: LOGPROBE_HOME names the user's."""
    home, real = tmp_path / "logprobe-demo", tmp_path / "real"
    names = {*SHOWN, TRAINED}
    started = time.monotonic()  # as somebody who types the command has it, and opens the address at once
    elsewhere = {"LOGPROBE_HOME": str(real), "XDG_DATA_HOME": str(tmp_path)}
    with command("demo", "--port", "0", "--speed", "12", **elsewhere) as (address, process, lines):
        seen = Watched(browser, address)
        page = seen.page
        page.goto(address)
        page.wait_for_function(LAST_STEP, timeout=FIRST_CHART_SECONDS * 1000)
        expect(page.get_by_role("combobox", name="run", exact=True)).to_have_value(TRAINED)
        (artifacts / "first-chart-seconds.txt").write_text(f"{time.monotonic() - started:.1f}\n")
        page.wait_for_function(f"() => ({LAST_STEP})() >= {LIVE}", timeout=400_000)  # what was before is computed first
        seen.shot(artifacts, "demo")

        drag(page, ".lp-plot", 0.2, 0.6)
        expect(page.get_by_role("button", name="reset zoom")).to_be_enabled()
        zoomed, last = page.evaluate(RANGE), page.evaluate(LAST_STEP)
        for _ in range(3):
            if last == END:  # a busy page shows the rest at once
                break
            page.wait_for_function(f"() => ({LAST_STEP})() > {last}", timeout=240_000)
            last = page.evaluate(LAST_STEP)
            assert page.evaluate(RANGE) == zoomed

        page.get_by_role("combobox", name="run", exact=True).click()
        expect(page.get_by_role("option")).to_have_count(len(names))
        assert set(page.get_by_role("option").all_inner_texts()) == names
        page.keyboard.press("Escape")
        with connected(home) as reader:
            told = eventually(lambda: acknowledged(reader, TRAINED), "the correction is acknowledged", seconds=240)
        assert [entry for entry in told if entry[0] != "refused"][:2] == [
            ("switched_on", "critical_growth"),
            ("acknowledged", "applied"),
        ]
        seen.shot(artifacts, "demo-corrected")
        page.goto(f"{address.split('?')[0]}{BESIDE}")
        page.wait_for_selector("text=final: rescue-without", timeout=240_000)
        seen.shot(artifacts, "demo-beside-its-twin")
        assert seen.complaints == []
        seen.close()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
    eventually(lambda: not any(child.is_running() for child in children), "none of its processes is left")
    assert Home(home).owner() is None
    assert not real.exists()
    text = "".join(lines)
    assert "Traceback" not in text
    assert text.splitlines()[-1] == f"logprobe: stopped; its home stays: logprobe show rescue --home {home}"


def acknowledged(reader: FlightReader, run: str) -> list[tuple[str, str]]:
    """What the controller did in the run, each with its reason; empty until the trainer has acknowledged something."""
    rows = reader.query("SELECT name, reason FROM controller_actions WHERE run = $run ORDER BY number", {"run": run})
    told = [(row["name"], row["reason"]) for row in rows.to_pylist()]
    return told if "acknowledged" in dict(told) else []
