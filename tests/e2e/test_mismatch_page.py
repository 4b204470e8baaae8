"""The Mismatch page of recorded runs in a real browser: all metrics, density, profiles and slices, live and as a link."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Locator, Page, expect
from recorded_home import ingest_recorded
from segments import records, trained

from logprobe.collectors.spool.segments import SpoolWriter

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
OVERFLOW = "document.querySelector('[data-testid=stMain]').scrollWidth > innerWidth"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that grows, and one whose tags were written by somebody who means harm and whose pair `update` was never recorded."""
    folder = tmp_path_factory.mktemp("mismatch") / "home"
    ingest_recorded(folder, "raw-growth")
    rows = [
        trained(f"{step}-{at}", step, 6, tags=[("team", HOSTILE if at % 2 else "fine")])
        for step in range(12)
        for at in range(8)
    ]
    SpoolWriter(folder, "tagged", "w").write("training", records("training", *rows))
    pulled = [
        trained(f"{step}-{at}", step, 6, reference_logprobs=[-0.4 - i for i in range(6)])
        for step in range(4)
        for at in range(4)
    ]
    SpoolWriter(folder, "pulled", "w").write("training", records("training", *pulled))
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield url


def metric_row(page: Page, key: str) -> Locator:
    return page.locator(".lp-metrics-table tr", has=page.locator(f"button[data-key={key}]"))


@pytest.mark.parametrize(
    "seen", [{}, {"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["light", "dark", "390"]
)
def test_everything_is_there_and_fits(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=raw-growth&mismatch.profile=ends&mismatch.by=environment")
    expect(page.locator(".lp-slices-table tbody tr")).to_have_count(3)
    expect(density(page)).to_be_visible()
    page.wait_for_selector(".lp-plot .trace", state="attached")
    expect(metric_row(page, "k3_kl").locator("b")).to_have_count(3)
    expect(page.locator(".lp-chart").nth(2).locator(".bars .point")).to_have_count(40)
    expect(page.locator(".lp-mark-worse")).to_have_text("worse than the rest")
    assert not page.evaluate(OVERFLOW)
    seen.shot(artifacts, f"mismatch-{request.node.callspec.id}", whole=True)


def test_a_metric_is_found_and_opens_its_chart_and_slices_sort(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=raw-growth&mismatch.by=environment")
    expect(page.locator(".lp-heading h3").first).to_contain_text("K3")
    page.get_by_role("searchbox", name="filter metrics").fill("effective sample")
    expect(page.locator(".lp-metrics-table tr[data-words]:visible")).to_have_count(2)
    page.get_by_role("button", name="Effective sample size (sequence)").click()
    expect(page.locator(".lp-heading h3").first).to_contain_text("Effective sample size (sequence)")
    expect(page.locator(".lp-chart").first.locator(".lp-readout")).to_have_count(3)
    page.wait_for_url(re.compile(r"metric=ess_seq"))
    page.reload()  # the link opens the same view
    expect(page.locator(".lp-heading h3").first).to_contain_text("Effective sample size (sequence)")
    expect(page.get_by_role("searchbox", name="filter metrics")).to_have_value("effective sample")
    expect(page.locator(".lp-metrics-table tr[data-words]:visible")).to_have_count(2)

    table = page.locator(".lp-slices-table")
    expect(table.locator("tbody tr")).to_have_count(3)
    table.get_by_role("button", name="share of K3").click()
    shares = [float(text.rstrip("%")) for text in table.locator("td[data-label='share of K3']").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    page.wait_for_url(re.compile(r"mismatch\.sort=-share"))
    page.locator(".lp-picker-columns summary").click()
    page.locator(".lp-picker-columns label", has_text=re.compile(r"^ρ, max$")).locator("input").check()
    expect(table.locator("th", has_text="ρ, max")).to_be_visible()
    page.locator(".lp-slices .lp-choice button", has_text="length").click()
    expect(table).to_have_attribute("aria-label", "slices by length")
    page.wait_for_url(re.compile(r"mismatch\.by=length"))


def density(page: Page) -> Locator:
    """The chart of the density of log-ratios."""
    return page.locator(".lp-chart").filter(has=page.get_by_role("img", name="Density of the log-ratio"))


def test_a_drag_over_the_density_zooms_the_whole_page(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=raw-growth&pair=total")
    expect(page.locator(".lp-slices-table")).to_be_visible()
    page.wait_for_selector(".lp-plot .trace", state="attached")  # nothing moves from here on
    heat = density(page)
    expect(heat.locator("image")).to_have_count(1)
    plot = heat.locator(".lp-plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.75, middle)
    expect(heat.locator(".lp-cursor")).to_contain_text(re.compile(r"steps? .* tokens · d: p1"))
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"steps=\d+%3A\d+|steps=\d+:\d+"))
    first, last = (int(each) for each in re.search(r"steps=(\d+)(?:%3A|:)(\d+)", page.url).groups())
    assert 25 <= first < last <= 75
    for panel in (".lp-metrics", "section[aria-label=profiles]", ".lp-slices"):
        expect(page.locator(panel)).to_contain_text(f"steps {first}–{last}")
    expect(page.locator(".lp-chart .lp-cursor").first).to_contain_text("steps ")  # the chart above zoomed as well
    heat.locator(".lp-frame").focus()
    page.keyboard.press("End")
    expect(heat.locator(".lp-spoken")).to_contain_text(f"step {last} ")
    page.keyboard.press("0")
    expect(page.locator("section[aria-label=profiles]")).to_contain_text("steps 0–139")
    box = page.get_by_label("x axis")
    box.scroll_into_view_if_needed()
    box.click()
    box.fill("over tokens")  # typed: after the zoom the open list did not come
    page.keyboard.press("Enter")
    expect(heat).to_contain_text("tokens trained on")


def test_small_charts_are_downloads(seen: Watched, address: str, tmp_path: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=raw-growth")
    page.wait_for_selector(".lp-plot .bars .point", state="attached")
    expect(density(page)).to_be_visible()
    tables, pictures = {}, []
    for panel in ("heatmap", "profiles"):
        with page.expect_download() as waiting:
            page.locator(f".st-key-{panel}-csv").get_by_role("button", name="CSV").click()
        tables[panel] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(tables[panel])
    for chart in (density(page), page.locator(".lp-chart").last):
        with page.expect_download() as waiting:
            chart.get_by_role("button", name="PNG").click()
        pictures.append(tmp_path / f"{len(pictures)}.png")
        waiting.value.save_as(pictures[-1])
    with tables["heatmap"].open(newline="") as file:
        bins = list(csv.DictReader(file))
    by_steps = {row["first step"]: int(row["tokens of these steps"]) for row in bins}
    assert sum(int(row["tokens"]) for row in bins) == sum(by_steps.values()) > 0
    with tables["profiles"].open(newline="") as file:
        shares = [float(row["share of tokens"]) for row in csv.DictReader(file) if row["profile"] == "Probability"]
    assert sum(shares) == pytest.approx(1)
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 5_000


def test_the_reference_policy_where_one_was_recorded(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=pulled&pair=reference")
    expect(metric_row(page, "kl").locator("td[data-label=reference] b")).to_have_text("−0.1")
    expect(page.locator(".lp-plot .bars .point").first).to_be_visible()
    expect(density(page)).to_be_visible()
    expect(page.locator(".lp-slices-table tbody tr")).to_have_count(1)
    seen.shot(artifacts, "mismatch-reference", whole=True)
    page.goto(f"{address}/?page=tokens&run=pulled&pair=reference")
    page.wait_for_selector(".lp-tk-strip[data-sample]")
    expect(page.locator(".lp-tk-inspector")).to_contain_text("reference−")
    expect(page.locator(".lp-tk-worst th", has_text="reference")).to_be_visible()
    expect(page.get_by_role("button", name="reference", exact=True)).to_have_attribute("aria-pressed", "true")
    seen.shot(artifacts, "tokens-reference", whole=True)
    page.goto(f"{address}/?page=tokens&run=tagged&pair=reference")
    page.wait_for_selector(".lp-tk-strip[data-sample]")
    expect(page.locator(".lp-tokens")).not_to_contain_text("reference")


def test_foreign_names_stay_text_what_is_missing_says_so_and_new_steps_take_nothing_away(
    seen: Watched, address: str, home: Path, artifacts: Path
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=mismatch&run=tagged&pair=update&mismatch.by=tag:team&mismatch.find=mean")
    expect(page.locator(".lp-slices-table tbody")).to_contain_text(HOSTILE)
    expect(page.locator(".lp-metrics-broken")).to_contain_text("update, total: not measured: record current_logprobs")
    expect(metric_row(page, "ratio_mean").locator("td[data-label=update] b")).to_have_text("–")
    expect(density(page).locator(".annotation")).to_contain_text("record current_logprobs")
    expect(page.locator("section[aria-label='Position in the sequence']")).to_contain_text("record current_logprobs")
    assert page.locator("img[src=x]").count() == 0
    seen.shot(artifacts, "mismatch-missing", whole=True)

    box = page.locator(".lp-metrics-box")
    expect(box).to_be_visible()
    page.evaluate("document.querySelector('.lp-metrics-box').scrollTop = 120")
    for step in (12, 13, 14):
        now = {"time": datetime.now(UTC), "tags": [("team", "fine")]}  # the run lives, and the page looks every 2 s
        rows = [trained(f"{step}-{at}", step, 6, **now) for at in range(8)]
        SpoolWriter(home, "tagged", f"later-{step}").write("training", records("training", *rows))
        expect(page.locator(".lp-bar")).to_contain_text(f"step {step}")
        expect(page.locator("section[aria-label=profiles]")).to_contain_text(f"steps 0–{step}")
    assert page.evaluate("document.querySelector('.lp-metrics-box').scrollTop") == 120
    expect(page.get_by_role("searchbox", name="filter metrics")).to_have_value("mean")
