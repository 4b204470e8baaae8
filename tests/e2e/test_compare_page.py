"""The Compare page, and parity on the Diagnosis page, on the three recorded runs of the migration, in a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Page, expect
from recorded_home import ingest_recorded

pytestmark = pytest.mark.browser

LINES = ("#475463", "#0072b2", "#d55e00")  # of the baseline and both runs
# Size of a picture, and how many of its pixels have each of the colours.
PIXELS = """async ([data, ...colors]) => {
  const image = new Image(); image.src = `data:image/png;base64,${data}`; await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const pen = canvas.getContext("2d"); pen.drawImage(image, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map(); for (const each of pixels) counts.set(each, (counts.get(each) ?? 0) + 1);
  const value = (hex) => (0xff000000 | parseInt(hex.slice(5, 7) + hex.slice(3, 5) + hex.slice(1, 3), 16)) >>> 0;
  return [image.width, image.height, colors.map((hex) => counts.get(value(hex)) ?? 0)] }"""
BOTH = "/?page=compare&run=v1-initial&baseline=v0-reference&runs=v1-initial,v1-fixed"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("compare") / "home"
    ingest_recorded(home, "v0-reference", "v1-initial", "v1-fixed")
    other = shutil.copytree(home, home.parent / "other")
    with dashboard("up", "--home", str(home), "--port", "0", "--also", str(other)) as url:
        yield url


def outcomes(page: Page, *words: str) -> None:
    expect(page.locator(".lp-cmp-outcome")).to_contain_text(list(words))


def opened(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector(".lp-small-charts svg[role=img]")


def test_a_link_opens_the_story_of_the_migration(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    opened(page, address + BOTH + "&steps=100:200")
    outcomes(page, "worse in K3", "the same in 13 of 13 metrics")
    top = page.evaluate(
        "['.lp-cmp-outcome', '.lp-cmp-matrix', '.lp-small-charts'].map((s) => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert top == sorted(top)
    expect(page.locator(".lp-compare .lp-cursor")).to_have_text("100 – 200")
    reward = page.locator("table[aria-label=verdicts] tr", has_text="reward")
    expect(reward.locator("td")).to_contain_text(["worse", "same"])
    expect(page.locator("table[aria-label=configuration] tbody tr").first).to_contain_text("engine.logprobs_mode")
    seen.shot(artifacts, "compare-zoomed", whole=True)
    page.get_by_role("button", name="reset zoom").click()
    page.wait_for_url(lambda url: "steps=" not in url)


def test_a_run_of_another_home_is_a_baseline(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=compare&run=v1-initial")
    page.locator(".lp-compare .lp-button", has_text="/other:v0-reference").click()
    outcomes_of = page.locator(".lp-cmp-outcome")
    expect(outcomes_of).to_contain_text(["worse in K3"])
    expect(outcomes_of).to_contain_text(["/other:v0-reference"])


def test_a_zoom_is_drawn_by_hand_and_outlives_what_is_chosen_next(seen: Watched, address: str) -> None:
    page = seen.page
    opened(page, address + BOTH)
    chart = page.locator(".lp-small-charts svg[role=img]").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url("**steps=**")
    shown = page.locator(".lp-compare .lp-cursor")
    page.mouse.move(5, 5)
    expect(shown).to_contain_text(" – ")
    before = shown.inner_text()
    page.get_by_role("button", name="|Δ log-prob|, mean (backend)").click()  # one chart more
    expect(page.locator(".lp-small-charts figure")).to_have_count(7)
    expect(shown).to_have_text(before)
    page.wait_for_url("**metric=**")


def test_choosing_a_baseline_is_the_first_thing_to_do(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=compare&run=v1-initial")
    expect(page.locator(".lp-compare")).to_contain_text("Choose a baseline")
    expect(page.locator(".lp-compare")).to_contain_text("logprobe compare RUN…")  # for runs from elsewhere
    page.locator(".lp-compare .lp-button", has_text=re.compile("^v0-reference$")).click()
    outcomes_of = page.locator(".lp-cmp-outcome")
    expect(outcomes_of).to_contain_text(["worse in K3"])
    page.get_by_label("add a run").select_option("v1-fixed")
    expect(outcomes_of).to_have_count(2)
    page.get_by_label("align by since onset").click()
    expect(page.locator(".lp-compare p.lp-tone-warning")).to_contain_text("has no onset to align by")
    page.get_by_label("align by tokens").click()
    expect(outcomes_of.first).to_contain_text("at 0 tokens")


def test_report_document_values_and_picture_are_downloads(
    seen: Watched, address: str, tmp_path: Path, artifacts: Path
) -> None:
    page = seen.page
    opened(page, address + BOTH)
    for name, kind in (("HTML", "html"), ("JSON", "json"), ("CSV", "csv"), ("PNG", "png")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"download {name}").click()
        assert waiting.value.suggested_filename == f"comparison-with-v0-reference.{kind}"
        waiting.value.save_as(tmp_path / kind)
    assert "<script" not in (tmp_path / "html").read_text()
    document = json.loads((tmp_path / "json").read_text())
    assert [run["metrics"][0]["verdict"] for run in document["runs"]] == ["worse", "same"]
    with (tmp_path / "csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("v0-reference", "v1-initial", "v1-fixed")
    assert [[int(row["step"]) for row in rows if row["run"] == name] for name in names] == [list(range(300))] * 3
    assert page.locator(".lp-small-charts h3").count() == len(rows[0]) - 2
    picture = (tmp_path / "png").read_bytes()
    (artifacts / "compare-picture.png").write_bytes(picture)
    width, height, counts = page.evaluate(PIXELS, [b64encode(picture).decode(), *LINES, "#ffffff"])
    assert (width, height) == (2608, 1224)  # twice three by two charts
    assert min(counts) > 2000
    assert counts[-1] > 0.8 * width * height


@pytest.mark.parametrize("seen", [{"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["dark", "390"])
def test_readable_in_the_dark_and_on_a_phone(
    seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest
) -> None:
    opened(seen.page, address + BOTH.replace(",v1-fixed", "") + "&metric=<img src=x onerror=alert(1)>,reward")
    expect(seen.page.locator(".lp-compare")).to_contain_text("There is no metric <img src=x onerror=alert(1)>")
    assert seen.page.locator(".lp-compare img").count() == 0
    assert seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, f"compare-{request.node.callspec.id}", whole=True)


def test_parity_with_the_recipe_then_with_a_reference(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=diagnosis&run=v1-initial")
    broken = page.locator("table[aria-label=requirements]")
    expect(broken).to_contain_text("--logprobs-mode processed_logprobs")
    expect(broken).to_contain_text("unset: default of vLLM")
    page.get_by_label("reference").select_option("v0-reference")
    expect(page.locator("table[aria-label=trends]")).to_contain_text("leaves")
    expect(page.locator("table[aria-label='differing settings'] tbody tr").first).to_contain_text(
        "engine.logprobs_mode"
    )
    page.wait_for_url("**reference=v0-reference**")
    seen.shot(artifacts, "diagnosis-parity", whole=True)
    page.get_by_role("link", name="compare their trends").click()
    expect(page.locator(".lp-cmp-outcome")).to_contain_text(["worse in K3"])
