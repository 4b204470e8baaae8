"""All runs at a glance in a real browser: the worst first, searched as one types, grouped; and the run picker beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_homes import K3, put
from dashboard_process import Watched, dashboard
from playwright.sync_api import Browser, expect
from processes import logprobe, service

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

STEPS = 30
# One run is far too high; an alert says so.
RULES = "alerts:\n  defaults: false\n  rules:\n  - {name: too-high, severity: critical, metric: k3_kl, when: {kind: threshold, above: 0.1}}\n"
NAMES = (*(f"sweep-lr/seed-{seed}" for seed in range(1, 61)), "<b>bold", "baseline")
BAD = "sweep-lr/seed-37"


def fill(home: Path, names: tuple[str, ...] = NAMES, bad: str = BAD) -> None:
    """Runs as the step job leaves them."""
    (home / "logprobe.yaml").write_text(RULES, encoding="utf-8")
    with Store.open(Home(home)) as store:
        for name in names:
            put(store, name, {step: {K3: 1e-3 * (1 + step % 3) * (500 if name == bad else 1)} for step in range(STEPS)})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("many") / "home"
    home.mkdir()
    fill(home)
    with dashboard("up", "--home", str(home), "--port", "0") as address:
        yield address


def names_of(seen: Watched) -> list[str]:
    return seen.page.locator(".lp-runs-table .lp-name").all_inner_texts()


def test_two_runs_or_more_land_on_the_worst_first(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(address)
    page.wait_for_url("**page=runs**")
    rows = page.locator(".lp-runs-table tr[data-run]")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("too-high")
    expect(rows.first.locator(".lp-name")).to_have_text(BAD)
    expect(rows.first.locator(".lp-runs-spark")).to_be_visible()
    assert page.title() == "✕ Runs · logprobe"
    seen.shot(artifacts, "runs")
    page.get_by_role("button", name="12 more").click()
    expect(rows).to_have_count(len(NAMES))
    page.reload()
    expect(rows).to_have_count(len(NAMES))


def test_searched_as_one_types_and_the_link_shows_the_same(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(address)
    search = page.get_by_role("searchbox", name="search runs").last
    search.press_sequentially("seed-3", delay=20)
    expect(page.locator(".lp-runs-table .lp-name")).to_have_count(11)
    assert names_of(seen)[0] == BAD
    assert set(names_of(seen)[1:]) == {f"sweep-lr/seed-{seed}" for seed in (3, *range(30, 40))} - {BAD}
    expect(search).to_be_focused()
    page.wait_for_url("**q=seed-3**")
    page.reload()
    expect(page.locator(".lp-runs-table .lp-name")).to_have_count(11)
    search.fill("too-high")
    expect(page.locator(".lp-runs-table .lp-name")).to_have_text([BAD])
    search.fill("no such run")
    expect(page.locator(".lp-runs")).to_contain_text("none fits")


def test_groups_filters_and_the_way_to_a_run_and_back(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=runs")
    page.get_by_label("groups").select_option("prefix")
    expect(page.locator(".lp-runs-group th").first).to_contain_text("sweep-lr/seed 60 runs")
    seen.shot(artifacts, "runs-grouped")
    page.get_by_label("severity").select_option("critical")
    expect(page.locator(".lp-runs-table .lp-name")).to_have_text([BAD])
    page.get_by_role("link", name=BAD).click()
    expect(page.locator(".lp-pick .lp-name")).to_have_text(BAD)
    expect(page.locator(".lp-verdict b").first).to_have_text("Critical")
    expect(page).to_have_title(f"✕ {BAD} · Overview · logprobe")  # the bar is drawn on its own
    expect(page.locator("link[rel~=icon]").first).to_have_attribute("href", re.compile("d55e00"))
    page.go_back()
    expect(page.locator(".lp-runs-table .lp-name")).to_have_text([BAD])


def test_typing_in_the_run_picker_searches_and_fires_no_shortcut(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?run={BAD}")
    expect(page.locator(".lp-pick .lp-name")).to_have_text(BAD)
    page.wait_for_selector(".lp-plot")
    page.click(".lp-pick")
    page.keyboard.type("seed2 gd5j+", delay=30)
    expect(page.locator(".lp-search").first).to_have_value("seed2 gd5j+")
    assert "page=" not in page.url
    assert "smooth" not in page.url
    page.locator(".lp-search").first.fill("seed-6")
    expect(page.locator(".lp-option .lp-name")).to_have_text(["sweep-lr/seed-6", "sweep-lr/seed-60"])
    seen.shot(artifacts, "picker-search")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("s")  # on an option, too
    assert "smooth" not in page.url
    page.keyboard.press("Enter")
    expect(page.locator(".lp-pick .lp-name")).to_have_text("sweep-lr/seed-6")


@pytest.mark.parametrize("seen", [{"width": 390, "height": 844, "dark": True}], indirect=True)
def test_dark_and_narrow(seen: Watched, address: str, artifacts: Path) -> None:
    seen.page.goto(address)
    expect(seen.page.locator(".lp-runs-table tr[data-run]")).to_have_count(50)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.shot(artifacts, "runs-390-dark")


def test_runs_of_several_homes_are_one_list_and_one_that_cannot_be_read_says_so(
    browser: Browser, tmp_path: Path, artifacts: Path
) -> None:
    homes = {name: tmp_path / name for name in "abc"}
    for name, run in (("a", "mine"), ("b", "theirs")):
        homes[name].mkdir()
        fill(homes[name], (run,), "theirs")
    homes["c"].mkdir()
    also = ("--also", str(homes["b"]), "--also", str(homes["c"]))
    theirs = f"{homes['b'].resolve()}:theirs"
    with service(homes["b"]), dashboard("up", "--home", str(homes["a"]), "--port", "0", *also) as address:
        seen = Watched(browser, address)
        page = seen.page
        page.goto(address)
        expect(page.locator(".lp-runs-table .lp-name")).to_have_text([theirs, "mine"], timeout=60_000)
        expect(page.locator(".lp-runs-table tr[data-run]").first).to_contain_text("too-high", timeout=60_000)
        expect(page.locator(".lp-runs .lp-note")).to_contain_text(str(homes["c"].resolve()))
        expect(page.locator(".lp-runs-table .lp-runs-spark")).to_have_count(2)
        seen.shot(artifacts, "runs-of-homes")
        page.get_by_role("link", name=theirs).click()
        page.wait_for_url("**page=compare**")
        expect(page.locator("body")).to_contain_text(theirs)
        listed = logprobe("runs", "--home", homes["a"], *also, "--json", code=1)
        assert {(each["run"], each["where"]) for each in json.loads(listed.stdout)} == {
            ("mine", str(homes["a"].resolve())),
            ("theirs", str(homes["b"].resolve())),
        }
        assert str(homes["c"].resolve()) in listed.stderr
        assert seen.complaints == []
        seen.close()
