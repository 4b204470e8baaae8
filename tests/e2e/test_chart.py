"""The linked chart in a real browser: what a link restores, what pointer and keys do, what the files hold, and runs too long to send whole."""

from __future__ import annotations

import csv
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dashboard_process import Watched, dashboard, drag
from playwright.sync_api import Page, expect
from recorded_home import ingest_recorded
from synthetic_run import SyntheticRun

from logprobe.app.dashboard.charts.downsample import MAX_POINTS
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import connect

pytestmark = pytest.mark.browser

LONG_STEPS = 2_100
VIEW = "steps=300%3A500&x=tokens&smooth=11&linear=backend.k3_kl&log=backend.kl&hide=update"
CHART = """() => { const plot = document.querySelector(".lp-plot"), full = plot._fullLayout;
  const lines = plot.data.filter((each) => each.meta.row === "y2" && each.meta.line !== undefined);
  return { range: full.xaxis.range.map(Number), title: full.xaxis.title.text, scales: [full.yaxis2.type, full.yaxis3.type],
    lines: lines.map((each) => [each.meta.role, each.meta.smooth ?? 0]), steps: Array.from(lines[0].x) } }"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home with a recorded run that grows from step 465 on, and a run too long to be sent whole; its dashboard's address."""
    home = tmp_path_factory.mktemp("chart") / "home"
    ingest_recorded(home, "late-growth")  # the oldest run of the home: what comes later is newer
    with Recorder(home, "long") as recorder:
        record_long(recorder)
    with Recorder(home, "short") as recorder:
        SyntheticRun(recorder, full=False).record(12)
    ingest_recorded(home)
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield home, url


def record_long(recorder: Recorder) -> None:
    """Steps with a few tokens each, and a gap in between."""
    rng = np.random.default_rng(5)
    for step in range(LONG_STEPS):
        rollout = -rng.exponential(1.0, (2, 4)).astype(np.float32)
        known = {} if 1000 <= step < 1010 else {"rollout_logprobs": rollout}
        recorder.training(
            step=step, sample_ids=[f"{step}-{index}" for index in range(2)], token_ids=np.ones((2, 4), dtype=np.int64),
            trainer_logprobs=np.minimum(rollout + rng.normal(0, 0.02, (2, 4)), -1e-9).astype(np.float32),
            mask=np.ones((2, 4), dtype=bool), **known,
        )  # fmt: skip
        if step % 100 == 0:
            assert recorder.flush(120)


@pytest.fixture
def address(served: tuple[Path, str]) -> str:
    return served[1]


def opened(seen: Watched, address: str, query: str) -> Page:
    seen.page.goto(f"{address}/?{query}")
    seen.page.wait_for_selector(".lp-plot .trace", state="attached")
    return seen.page


def in_address(page: Page, *parts: str, absent: str = "nothing-of-the-kind") -> None:
    """Waits until the address has `parts`, and not `absent`."""
    page.wait_for_function(
        "([parts, absent]) => parts.every((part) => location.search.includes(part)) && !location.search.includes(absent)",
        arg=[list(parts), absent],
    )


def choose(page: Page, label: str, words: str) -> None:
    """Chooses in one of Streamlit's selection boxes."""
    page.get_by_label(label).click()
    page.get_by_role("option", name=words, exact=True).click()


def test_a_link_restores_the_view(seen: Watched, served: tuple[Path, str], artifacts: Path) -> None:
    page = opened(seen, served[1], f"run=late-growth&{VIEW}")
    first = page.evaluate(CHART)
    assert first["title"] == "tokens trained on"
    assert first["scales"] == ["linear", "log"]
    assert [role for role, _ in first["lines"]] == ["backend", "backend", "total", "total"]
    assert {smooth for _, smooth in first["lines"]} == {0, 11}
    with connect(served[0]) as reader:
        rows = reader.read("app_steps", run="late-growth", since=0)
    trained = np.cumsum(rows["tokens"].to_numpy())
    assert first["range"] == pytest.approx([trained[300], trained[500]], rel=0.01)
    expect(page.get_by_label("smoothing")).to_have_value("median of 11")
    expect(page.get_by_role("button", name="update")).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".lp-cursor")).to_have_text("steps 300 – 500")
    seen.shot(artifacts, "chart-link")
    page.reload()
    page.wait_for_selector(".lp-plot .trace", state="attached")
    assert page.evaluate(CHART) == first
    in_address(page, *VIEW.split("&"))


def test_what_is_chosen_is_drawn_and_in_the_address(seen: Watched, served: tuple[Path, str]) -> None:
    page = opened(seen, served[1], "run=late-growth")
    expect(page.locator(".lp-verdict")).to_contain_text("since step")
    choose(page, "x axis", "over steps since the onset")
    in_address(page, "x=onset")
    page.wait_for_function(f"() => ({CHART})().title === 'steps since the onset'")
    assert page.evaluate("() => document.querySelector('.lp-plot').layout.annotations.map((words) => words.x)") == [0]
    choose(page, "smoothing", "median of 25")
    in_address(page, "x=onset", "smooth=25")
    page.wait_for_function(f"() => ({CHART})().lines.some(([, smooth]) => smooth === 25)")
    page.get_by_role("button", name="K3, y axis: log, switch").click()
    in_address(page, "linear=backend.k3_kl")
    page.get_by_role("button", name="K3, y axis: linear, switch").wait_for()
    page.get_by_role("button", name="total", exact=True).click()
    page.wait_for_function(f"() => ({CHART})().lines.every(([role]) => role !== 'total')")
    in_vain = opened(seen, served[1], "run=short&x=onset")  # too short to know, so there is no such axis
    expect(in_vain.locator(".lp-tools .lp-note")).to_contain_text(
        "not over steps since the onset: the diagnosis has found no onset"
    )
    assert in_vain.evaluate(CHART)["title"] == "step"


def test_files_hold_what_is_shown(seen: Watched, served: tuple[Path, str], tmp_path: Path) -> None:
    home, address = served
    page = opened(seen, address, "run=late-growth&steps=300%3A500&hide=update&smooth=25")
    with page.expect_download() as caught:
        page.get_by_role("button", name="CSV").click()
    assert caught.value.suggested_filename == "late-growth-steps-300-500.csv"
    caught.value.save_as(tmp_path / "chart.csv")
    rows = list(csv.DictReader((tmp_path / "chart.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(300, 501))
    metrics = list(rows[0])[4:]
    assert "backend.k3_kl" in metrics
    assert not any(metric.startswith("update.") for metric in metrics)
    with connect(home) as reader:
        points = reader.read("app_points", run="late-growth", since=0, metrics=metrics).to_pylist()
    stored = {(point["step"], point["metric"]): point["value"] for point in points}
    for row, metric in itertools.product(rows, metrics):
        value = stored.get((int(row["step"]), metric))
        assert row[metric] == "" if value is None else float(row[metric]) == value
    with page.expect_download() as caught:
        page.get_by_role("button", name="PNG").click()
    caught.value.save_as(tmp_path / "chart.png")
    content = (tmp_path / "chart.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height > 1500) == (2400, True)
    assert len(content) > 50_000  # there is something on it


def test_everything_by_keyboard(seen: Watched, served: tuple[Path, str]) -> None:
    page = opened(seen, served[1], "run=late-growth")
    page.locator(".lp-frame").focus()
    page.keyboard.press("+")
    in_address(page, "steps=199%3A600")
    expect(page.locator(".lp-cursor")).to_have_text("steps 199 – 600")
    page.keyboard.press("-")
    in_address(page, absent="steps=")
    expect(page.locator(".lp-cursor")).to_be_empty()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".lp-cursor")).to_contain_text("step 0")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".lp-spoken")).to_contain_text("step 10 · weights 11. K3 backend")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".lp-cursor")).to_contain_text(
        "step 1 · weights 2 · learning_rate 1.00e-5 → 1.00e-4, until step 9"
    )


def test_marks_say_what_happened_and_a_double_click_shows_all(seen: Watched, served: tuple[Path, str]) -> None:
    page = opened(seen, served[1], "run=late-growth&steps=0%3A40")
    page.locator(".lp-plot .point:not([display=none])").first.hover(force=True)
    expect(page.locator(".lp-plot .hoverlayer")).to_contain_text("step 1: learning_rate")
    page.locator(".lp-plot").dblclick(position={"x": 400, "y": 120})
    in_address(page, absent="steps=")


def test_a_long_run_is_thinned_and_whole_where_one_looks(
    seen: Watched, served: tuple[Path, str], artifacts: Path, tmp_path: Path
) -> None:
    page = opened(seen, served[1], "run=long")
    counts = "() => document.querySelector('.lp-plot').data.map((each) => each.x.length)"
    assert max(page.evaluate(counts)) <= MAX_POINTS
    for axis, title in {"tokens": "tokens", "time": "since"}.items():
        choose(page, "x axis", f"over {axis}")
        page.wait_for_function(f"(title) => ({CHART})().title.includes(title)", arg=title)
        assert max(page.evaluate(counts)) <= MAX_POINTS
    choose(page, "x axis", "over steps")
    page.wait_for_function(f"() => ({CHART})().title === 'step'")
    drag(page, ".lp-plot", 0.3, 0.6)
    first, last = (int(part) for part in page.evaluate("new URLSearchParams(location.search).get('steps')").split(":"))
    assert last - first > 500
    # The ten steps without a value are one break
    page.wait_for_function(
        f"([first, last]) => ({CHART})().steps.filter((step) => step >= first && step <= last).length === last - first + 1 - (first < 1000 && last > 1009 ? 9 : 0)",
        arg=[first, last],
    )
    seen.shot(artifacts, "chart-long")
    choose(page, "smoothing", "median of 25")
    page.wait_for_function(f"() => ({CHART})().lines.some(([, smooth]) => smooth === 25)")
    assert max(page.evaluate(counts)) <= MAX_POINTS
    with page.expect_download() as caught:
        page.get_by_role("button", name="CSV").click()
    caught.value.save_as(tmp_path / "long.csv")
    rows = list(csv.DictReader((tmp_path / "long.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(first, last + 1))
    assert all((row["backend.k3_kl"] == "") == (1000 <= int(row["step"]) < 1010) for row in rows)
    page.get_by_role("button", name="reset zoom").click()
    in_address(page, absent="steps=")


@pytest.mark.parametrize("seen", [{"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["dark", "390"])
def test_dark_and_narrow(
    seen: Watched, served: tuple[Path, str], artifacts: Path, request: pytest.FixtureRequest
) -> None:
    page = opened(seen, served[1], f"run=late-growth&{VIEW}")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    page.locator(".lp-frame").focus()
    page.keyboard.press("End")
    seen.shot(artifacts, f"chart-{request.node.callspec.id}", whole=True)
