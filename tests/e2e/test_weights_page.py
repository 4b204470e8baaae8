"""The Weights page on recorded runs, in a real browser: lag by engine, the timeline, and what a switch of weights does to tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import expect
from recorded_home import ingest_recorded
from segments import records

from logprobe.collectors.spool.segments import SpoolWriter

pytestmark = pytest.mark.browser

SWITCH, ENGINES = "faults/inflight_stale_kv", "faults/replica_divergence"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a home with updates that kept requests in flight, and with two engines and a third that stopped at once."""
    home = tmp_path_factory.mktemp("weights") / "home"
    lost = {"version": "0", "source": "engine", "replica": "<b id=markup>lost</b>", "step": None}
    SpoolWriter(home, ENGINES, "lost").write("weights", records("weights", lost))
    ingest_recorded(home, SWITCH, ENGINES)
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield url


def test_a_switch_of_weights_is_seen_in_the_tokens_and_explained(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=weights&run={SWITCH}")
    patterns = page.locator("table[aria-label=patterns]")
    expect(patterns).to_contain_text("Suggests that the KV cache of the old weights")
    expect(page.locator(".lp-tone-critical", has_text="first tokens of new weights")).to_be_visible()
    switch = page.locator("section[aria-label='Around a weight switch']")
    expect(switch).to_contain_text("± 2 standard errors")
    points = page.locator(".lp-chart").filter(has=page.get_by_role("img", name="Around a weight switch: 33 points"))
    expect(points.locator(".point")).to_have_count(33)  # 16 before, 16 after, and the first of the new ones
    points.locator(".lp-frame").focus()
    page.keyboard.press("End")
    expect(points.locator(".lp-spoken")).to_contain_text("16 after:")
    expect(page.locator("table[aria-label=cached] tbody tr")).to_have_count(4)
    expect(page.get_by_role("img", name="K3 by weight version")).to_have_count(1)
    page.wait_for_selector(".lp-plot .trace", state="attached")
    expect(page.locator(".lp-heading h3").first).to_have_text("Weight lagversions")
    seen.shot(artifacts, "weights-switch", whole=True)


@pytest.mark.parametrize("seen", [{"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["dark", "390"])
def test_an_engine_that_stopped_is_said_first_and_marked(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=weights&run={ENGINES}")
    status = page.locator("section[aria-label=status]")
    expect(status).to_contain_text("engine <b id=markup>lost</b> stopped updating at version 0")
    assert page.locator("#markup").count() == 0  # text stays text
    lanes = page.locator(".lp-chart").first
    expect(lanes.locator(".ytick")).to_have_count(4)
    expect(lanes.locator(".ytick").nth(0)).to_contain_text("trainer")
    expect(lanes.locator(".ytick").nth(1)).to_contain_text("16 behind")
    expect(lanes.locator(".lp-kinds")).to_contain_text("no update since")
    lanes.locator(".lp-frame").focus()
    page.keyboard.press("End")
    expect(lanes.locator(".lp-spoken")).to_contain_text("version 16 · of step 15")
    expect(lanes.locator(".lp-spoken")).to_contain_text("prefix cache cleared")
    expect(page.locator("table[aria-label=lanes] tbody tr")).to_have_count(4)
    expect(page.locator("table[aria-label=lanes]")).to_contain_text("stopped updating")
    page.wait_for_selector(".lp-plot .trace", state="attached")
    expect(page.locator(".lp-legend", has_text="engine right")).to_have_count(1)
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, f"weights-{request.node.callspec.id}", whole=True)


def test_a_link_opens_the_same_steps(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=weights&run={ENGINES}&steps=3:6")
    expect(page.locator("section[aria-label=timeline]")).to_contain_text("versions of steps 3–6")
    page.locator(".lp-frame").first.focus()
    page.keyboard.press("Home")
    expect(page.locator(".lp-spoken").first).to_contain_text("version 4 · of step 3")
    expect(page.get_by_role("img", name="K3 by weight version: 4 points")).to_have_count(1)
    assert "steps=3:6" in page.url.replace("%3A", ":")
