"""The pages that say what is wrong and what to do, on recorded runs, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched, confirm, dashboard
from playwright.sync_api import expect
from recorded_home import ingest_control, ingest_recorded

from logprobe.app.dashboard.page_table import BY_PATH

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a home with a run that is broken from its first step on, one that drifts away, and one that was corrected."""
    home = tmp_path_factory.mktemp("pages") / "home"
    ingest_recorded(home, "late-growth-mis", "v1-initial", "late-growth")
    ingest_control(home, "late-growth-mis")
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield url


def test_verdict_first_then_the_page_that_explains_it(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?run=late-growth")
    banner = page.locator(".lp-verdict")
    expect(banner).to_contain_text("Critical")
    expect(banner).to_contain_text("× its baseline of")
    expect(banner).to_contain_text("objective: sampling policy and trained policy have drifted apart")
    expect(banner).to_contain_text("staleness, 100% of K3")  # that it grew says nothing that the lag does not
    page.wait_for_selector(".lp-plot .trace", state="attached")
    top = page.evaluate(
        "['.lp-verdict', '.lp-tiles', '.lp-plot'].map((s) => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert top == sorted(top)
    expect(page.locator(".lp-heading").first).to_contain_text("baseline")
    seen.shot(artifacts, "overview-verdict", whole=True)
    page.locator(".lp-verdict a", has_text="Diagnosis").click()
    page.wait_for_url("**page=diagnosis**")
    assert "run=late-growth" in page.url
    expect(page.locator("table[aria-label=objective]")).to_contain_text("staleness")
    page.go_back()
    page.wait_for_selector(".lp-tiles")


@pytest.mark.parametrize(
    "seen", [{}, {"dark": True, "width": 390, "height": 844}], indirect=True, ids=["light", "dark 390"]
)
def test_each_page_introduces_itself_until_it_is_dismissed(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = seen.page
    page.goto(f"{address}/?run=late-growth")
    page.wait_for_selector(".lp-tiles")
    introduction = page.get_by_role("complementary", name="about Overview")
    expect(introduction).to_contain_text(BY_PATH[""].about)
    seen.shot(artifacts, f"introduction-{request.node.callspec.id}", whole=True)
    introduction.get_by_role("button", name="Got it").click()
    expect(introduction).to_have_count(0)
    page.reload()
    page.wait_for_selector(".lp-tiles")
    expect(introduction).to_have_count(0)  # never again
    page.get_by_role("button", name="about this page").click()
    expect(page.get_by_role("dialog", name="Overview")).to_contain_text(BY_PATH[""].about)
    page.keyboard.press("Escape")
    page.locator(".lp-tabs a", has_text="Tokens").click()
    expect(page.get_by_role("complementary", name="about Tokens")).to_contain_text(BY_PATH["tokens"].about)


def test_a_tile_leads_to_the_formula_of_its_metric(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?run=late-growth&steps=400:500")
    page.locator(".lp-tile[data-metric='backend.k3_kl'] a").click()
    page.wait_for_url("**page=mismatch**metric=backend.k3_kl**")
    assert "steps=400" in page.url
    expect(page.locator("[aria-label='chosen metric']")).to_contain_text("mean(ρ − 1 − d)")


@pytest.mark.parametrize("seen", [{"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["dark", "390"])
def test_evidence_by_layer(seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest) -> None:
    page = seen.page
    page.goto(f"{address}/?page=diagnosis&run=v1-initial")  # a link opens the same view
    semantic = page.locator("table[aria-label=semantic]")
    expect(semantic).to_contain_text("raw logprobs")
    expect(semantic).to_contain_text("--logprobs-mode processed_logprobs")
    expect(page.locator(".lp-tabs [aria-current]")).to_have_text("Diagnosis")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, f"diagnosis-{request.node.callspec.id}", whole=True)


def test_a_finding_is_accepted_and_taken_back_from_the_page(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=diagnosis&run=v1-initial")
    semantic, standing = (page.locator(f"table[aria-label={name}]") for name in ("semantic", "accepted"))
    line = semantic.locator("tbody tr", has_text="raw logprobs").first
    page.get_by_role("button", name="Accept").first.click()
    expect(page.get_by_test_id("stForm")).to_contain_text("still vetoes a correction")
    page.get_by_role("button", name="Cancel").click()
    confirm(page, "Accept", {"because": "an ablation of <b>ours</b>", "up to a K3 of": "0.5", "your name": "Ada"})
    expect(standing).to_contain_text("an ablation of <b>ours</b>")
    expect(line).to_have_count(0)  # the next diagnosis goes by it
    page.get_by_test_id("stExpander").get_by_text("no action").click()
    expect(page.locator("table[aria-label='needs no action']")).to_contain_text("accepted: an ablation of")
    seen.shot(artifacts, "diagnosis-accepted", whole=True)
    confirm(page, "Withdraw")
    expect(standing).to_have_count(0)


def test_an_alert_is_acknowledged_from_the_page_and_names_stay_text(
    seen: Watched, address: str, artifacts: Path
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth")
    firing = page.locator("table[aria-label=firing] tbody tr")
    line = firing.filter(has_text="judgement").first  # others may begin to fire above it
    expect(line).to_contain_text("judgement")
    seen.shot(artifacts, "alerts", whole=True)
    page.get_by_role("button", name="Acknowledge").first.click()
    page.get_by_role("button", name="Cancel").click()  # nothing is done before it is confirmed
    expect(line).to_contain_text("nobody")
    confirm(page, "Acknowledge", {"your name": "<b onmouseover=alert(1)>Ada</b>", "reason": "looking at it"})
    expect(line).to_contain_text("<b onmouseover=alert(1)>Ada</b>")
    assert page.locator("[onmouseover]").count() == 0

    confirm(page, "Silence", {"reason": "known", "for (": "a while"})
    expect(page.locator(".lp-tone-critical[role=status]")).to_contain_text("a while")  # refused, and why
    confirm(page, "Silence", {"reason": "known"})
    expect(page.locator("table[aria-label=silences]")).to_contain_text("judgement")


def test_the_kill_switch_is_asked_for_twice_and_audited(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=actions&run=late-growth")
    report = page.get_by_test_id("stMain")
    expect(report).to_contain_text("phase")
    confirm(page, "Preview")
    expect(report).to_contain_text("tokens masked")
    page.get_by_role("button", name="Kill switch").click()
    expect(page.get_by_test_id("stForm")).to_contain_text("No correction from the next step on")
    page.get_by_role("button", name="Cancel").click()
    confirm(page, "Kill switch", {"your name": "Ada"})
    expect(report).to_contain_text("The kill switch is set")
    expect(page.get_by_role("button", name="Switch on")).to_be_disabled()
    audited = page.locator("table[aria-label=audit] tbody tr", has_text="kill switch set")
    expect(audited.first).to_contain_text("kill switch set: no correction is applied, by Ada")
    seen.shot(artifacts, "actions", whole=True)
    confirm(page, "Release the kill switch")
    expect(page.get_by_role("button", name="Kill switch", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    "seen", [{}, {"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["light", "dark", "390"]
)
def test_what_a_correction_did_over_the_steps_and_in_numbers(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=actions&run=late-growth-mis")
    expect(page.locator(".lp-heading")).to_have_count(4)
    page.wait_for_selector(".lp-plot .trace", state="attached")
    layout = page.evaluate("() => document.querySelector('.lp-plot').layout")
    assert any(shape["type"] == "rect" for shape in layout["shapes"])
    assert any(shape["type"] == "line" and shape["x0"] == 524 for shape in layout["shapes"])
    effect = page.locator("table[aria-label=effect]")
    expect(effect.locator("tr", has_text="share of the tokens masked")).to_contain_text("no correction")
    expect(effect.locator("tr", has_text="reward")).to_contain_text("no significant change")
    expect(page.locator("table[aria-label=audit] tbody tr", has_text="acknowledged")).to_contain_text("the trainer")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, f"actions-trend-{request.node.callspec.id}", whole=True)
    page.get_by_role("link", name="Chart of these steps").click()
    page.wait_for_url("**steps=474*574**")  # the colon may be quoted
    page.wait_for_selector(".lp-tiles")
