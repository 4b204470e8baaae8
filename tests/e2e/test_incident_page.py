"""The page of incidents in a real browser: from the list to the postmortem; by a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import expect
from recorded_home import ingest_recorded

RUN = "faults/temperature_mismatch"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("incidents") / "home"
    ingest_recorded(folder, RUN)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with dashboard("up", "--home", str(home), "--port", "0") as address:
        yield address


@pytest.mark.parametrize("seen", [{}, {"dark": True}, {"width": 390}], indirect=True, ids=["light", "dark", "phone"])
def test_from_the_list_to_the_postmortem(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=incidents")
    page.get_by_role("link", name=f"{RUN}#1").click()
    expect(page.locator(".lp-verdict")).to_contain_text("temperature=1.0")
    document = page.locator(".lp-document")
    expect(document.locator("dl")).to_contain_text("none: the first step recorded is concerned")
    expect(document.get_by_role("heading", name="What changed in the 50 steps before")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    seen.shot(artifacts, f"incident-{request.node.callspec.id}", whole=True)
    page.get_by_role("link", name="All incidents").click()
    expect(page.get_by_role("link", name=f"{RUN}#1")).to_be_visible()
    page.goto(f"{address}/?page=incidents&incident=nothing")
    expect(page.locator(".lp-report")).to_contain_text("There is no incident 'nothing'")
