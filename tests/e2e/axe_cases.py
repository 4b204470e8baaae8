"""Every page, light and dark, before axe-core: contrast, names, roles, headings. `make campaign NAME=axe`; findings also go to `.artifacts`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Page, expect
from recorded_home import ingest_control, ingest_recorded

from logprobe.app.dashboard.page_table import PAGES

pytestmark = pytest.mark.browser

AXE: Final = Path(__file__).resolve().parents[1] / "browser" / "node_modules" / "axe-core" / "axe.min.js"
RUNS: Final = ("v1-initial", "late-growth", "late-growth-mis")
# What shows that a page is drawn.
DRAWN: Final = {
    "runs": "[data-testid=stDataFrame]", "": ".lp-plot .trace", "diagnosis": "table[aria-label=requirements]", "mismatch": ".lp-plot .trace",
    "tokens": ".lp-strip", "compare": "table[aria-label=onsets]", "alerts": "table[aria-label=thresholds], .lp-hint", "correction": "table[aria-label=audit], .lp-hint",
    "data": "[data-testid=stDataFrame]",
}  # fmt: skip
LOOK: Final = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .map(({ id, help, nodes }) => ({ id, help, nodes: nodes.map(({ target, failureSummary, html }) => ({ target: String(target), failureSummary, html })) }))"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a home with a run that is broken, one that drifts away and one that was corrected."""
    home = tmp_path_factory.mktemp("axe") / "home"
    ingest_recorded(home, *RUNS)
    ingest_control(home, "late-growth-mis")
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield url


def acknowledging(page: Page) -> None:
    page.get_by_test_id("stPopover").get_by_role("button", name="Acknowledge").first.click()
    expect(page.get_by_test_id("stPopoverBody").get_by_label("your name")).to_be_visible()


def incident(page: Page) -> None:
    opened = quote(f"{RUNS[0]}#1")
    page.goto(page.url.partition("/alerts")[0] + f"/?page=alerts&list=incidents&run={RUNS[0]}&incident={opened}")
    expect(page.locator(".lp dl", has_text="last good step")).to_be_visible()


STATES: Final[Mapping[str, tuple[str, Callable[[Page], None]]]] = {
    "acknowledging": ("alerts", acknowledging),
    "incident": ("alerts", incident),
}


@pytest.mark.parametrize("seen", [{}, {"dark": True}], indirect=True, ids=["light", "dark"])
def test_axe_finds_nothing(seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest) -> None:
    findings: dict[str, Any] = {}
    scheme = request.node.callspec.id
    for name, (path, do) in ({each.path or "overview": (each.path, None) for each in PAGES} | STATES).items():
        for run in RUNS if do is None and path not in {"runs", "data"} else RUNS[1:2]:
            baseline = next(each for each in reversed(RUNS) if each != run)
            open_page(seen.page, f"{address}/{path}?run={run}&baseline={baseline}", path)
            if do is not None:
                do(seen.page)
            seen.shot(artifacts, f"axe-{scheme}-{name}-{run}".replace(" ", "-"), whole=do is None)
            seen.page.evaluate(AXE.read_text(encoding="utf-8"))
            if broken := seen.page.evaluate(LOOK):
                findings[f"{name}, {run}"] = broken
    (artifacts / f"axe-{scheme}.json").write_text(json.dumps(findings, indent=1))
    assert {page: [each["id"] for each in broken] for page, broken in findings.items()} == {}


def open_page(page: Page, address: str, path: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector(DRAWN[path], state="attached")
    page.wait_for_timeout(1500)  # what is below has to be drawn, too, or axe sees less of it
