"""The Data page of a home with a truncated file and little room for raw tokens, in a real browser; and its SQL box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from dashboard_process import Watched, dashboard
from playwright.sync_api import Locator, Page, expect
from recorded_home import SAMPLE_DATA, ingest_recorded

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.recorded import RecordedRun

pytestmark = pytest.mark.browser

RUN = "faults/nonfinite_logprobs"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs lie."""
    return tmp_path_factory.mktemp("data") / "home"


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """The dashboard of a home with two runs, a segment that was cut short, and a limit that leaves room for one of the runs."""
    ingest_recorded(home, "v1-initial", before_step=40)
    cut = SpoolWriter(home, RUN, "cut<i id=markup>").write("step", RecordedRun(SAMPLE_DATA / RUN).table("step")).path
    cut.write_bytes(cut.read_bytes()[:200])
    ingest_recorded(home, RUN)
    with dashboard("up", "--home", str(home), "--port", "0", "--keep-gib", str(256 / 2**20), "--read-only") as url:
        yield url


def said(page: Page) -> Locator:
    """What the box says of the last query."""
    return page.locator("section[aria-label=SQL] p[role=status]")


@pytest.mark.parametrize(
    "seen", [{}, {"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["light", "dark", "390"]
)
def test_the_account_of_a_home(seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest) -> None:
    page = seen.page
    page.goto(f"{address}/?page=data&run={quote(RUN)}")
    runs = page.locator("table[aria-label=runs]")
    expect(runs.locator("tbody tr")).to_have_count(2)
    expect(runs).to_contain_text("1 file quarantined")
    expect(page.locator("section[aria-label=run]")).to_contain_text("non-finite")
    expect(page.locator("table[aria-label=lacks]")).to_contain_text("non-finite")
    expect(page.locator("table[aria-label=collectors]")).to_contain_text("watching this engine")
    quarantine = page.locator("table[aria-label=quarantine]")
    expect(quarantine).to_contain_text("truncated: the file is incomplete")
    expect(quarantine).to_contain_text("cut<i id=markup>")
    assert page.locator("#markup").count() == 0
    kept = page.locator("section[aria-label=retention]")
    expect(kept).to_contain_text("256 KiB for the home; oldest removed first")
    expect(kept).to_contain_text("0 of 2,560 sequences; 2,560 removed by the limits")
    expect(page.locator("table[aria-label=jobs]")).to_contain_text("ingest")
    expect(page.locator("section[aria-label=installed]")).to_contain_text("duckdb")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    page.get_by_role("button", name="Quarantine").click()
    expect(quarantine).to_be_in_viewport()
    seen.shot(artifacts, f"data-{request.node.callspec.id}", whole=True)


def test_a_query_from_a_link_waits_until_it_was_read(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    sql = "SELECT '<b id=markup>x</b>' AS text, range AS n, NULL AS nothing FROM range(5000)"
    page.goto(f"{address}/?page=data&run=v1-initial&sql={quote(sql)}")
    box = page.locator("#lp-sql")
    expect(box).to_have_value(sql)
    expect(page.locator("#lp-sql-hint")).to_contain_text("nothing has run")
    expect(box).to_be_in_viewport()
    page.locator("table[aria-label=jobs]").wait_for()  # the page is there, and has been drawn
    assert page.locator(".lp-sql-table").count() == 0
    box.press("Control+Enter")
    expect(said(page)).to_contain_text("the first 1,000 rows; there are more, 3 columns")
    expect(page.locator(".lp-sql-table tbody tr")).to_have_count(1000)
    expect(page.locator(".lp-sql-table tbody tr").first).to_contain_text("<b id=markup>x</b>")
    assert page.locator("#markup").count() == 0
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("text,n,nothing", "<b id=markup>x</b>,999,", 1001)
    seen.shot(artifacts, "data-sql")


def test_what_is_refused_says_why_and_what_is_typed_stays(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=data&run=v1-initial")
    page.get_by_role("button", name="Newest steps").click()
    box = page.locator("#lp-sql")
    expect(box).to_have_value(re.compile("run = 'v1-initial'"))
    page.locator("summary", has_text="Views, tables").click()
    page.locator("summary", has=page.locator("b", has_text="runs").first).first.click()
    box.fill("DROP TABLE segments")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(said(page)).to_contain_text("DROP is refused: this store is read-only here")
    expect(page).to_have_url(re.compile("sql=DROP"))
    box.fill("SELECT 1 AS typed_while_news_arrives")
    jobs = page.locator("table[aria-label=jobs]")
    before = jobs.inner_text()
    expect(jobs).not_to_have_text(before, use_inner_text=True)  # the page went on
    assert box.input_value() == "SELECT 1 AS typed_while_news_arrives"


def test_a_query_without_end_is_stopped(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=data&run=v1-initial&sql={quote(ENDLESS)}")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(said(page)).to_contain_text("Running for")
    page.get_by_role("button", name="Stop").click()
    expect(said(page)).to_contain_text("the query was stopped")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()


def test_a_link_with_a_hidden_copy_writes_nothing(seen: Watched, address: str, home: Path) -> None:
    page = seen.page
    hidden = (
        "EXPLAIN ANALYZE /* /* */ SELECT 1 -- */ COPY (SELECT 1 AS forged) TO '{}' (FORMAT parquet, OVERWRITE true)"
    )
    page.goto(f"{address}/?page=data&run=v1-initial&sql={quote(hidden.format(home / 'raw' / 'forged.parquet'))}")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(said(page)).to_contain_text("COPY is refused: this store is read-only here")
    assert not (home / "raw" / "forged.parquet").exists()
