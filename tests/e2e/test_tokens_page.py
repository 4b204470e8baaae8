"""The Tokens page in a real browser: from a step to a token and what a correction does to it, with the keyboard alone as well."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dashboard_process import Watched, dashboard
from odd_tokens import LENGTH, REDUCED, RUN, make_home
from playwright.sync_api import Page, Route, WebSocket, expect
from recorded_home import SAMPLE_DATA, take_in

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.store.store import Store

pytestmark = pytest.mark.browser

MIS_STEP = 724  # of late-growth-mis: corrected, and eight answers with a log-prob of exactly 0 that cannot be


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a home with a corrected run and one in which everything is odd."""
    home = tmp_path_factory.mktemp("tokens") / "home"
    make_home(home)
    ingest_steps(home, "late-growth-mis", [*range(590, 610), *range(MIS_STEP - 4, MIS_STEP + 2)])
    with dashboard("up", "--home", str(home), "--port", "0") as url:
        yield url


def ingest_steps(home: Path, name: str, steps: list[int]) -> None:
    """Some steps of a shipped run, both sides of them."""
    recorded, writer = RecordedRun(SAMPLE_DATA / name), SpoolWriter(home, name, "replay")
    training, step, rollout = (recorded.table(kind) for kind in ("training", "step", "rollout"))
    training = training.filter(pc.is_in(training["step"], pa.array(steps)))
    writer.write("training", training)
    writer.write("step", step.filter(pc.is_in(step["step"], pa.array(steps))))
    writer.write("rollout", rollout.filter(pc.is_in(rollout["sample_id"], training["sample_id"].combine_chunks())))
    with Store.open(Home(home)) as store:
        take_in(store)


def opened(page: Page, address: str, run: str, **asked: object) -> None:
    """Opens the page, and waits for a painted strip."""
    named = "".join(f"&{name}={quote(str(value))}" for name, value in asked.items())
    page.goto(f"{address}/?page=tokens&run={quote(run)}{named}")
    page.wait_for_selector(".lp-tk-strip[data-sample]")


def in_address(page: Page, name: str) -> str | None:
    return page.evaluate("(name) => new URLSearchParams(location.search).get(name)", name)


def told(page: Page) -> dict[str, str]:
    """What is shown beside the strip about the token that is selected."""
    return dict(
        page.evaluate(
            "[...document.querySelectorAll('.lp-tk-inspector dt')].map((dt) => [dt.textContent, dt.nextSibling.textContent])"
        )
    )


def test_from_a_step_to_a_broken_token_and_what_the_correction_did(
    seen: Watched, address: str, artifacts: Path
) -> None:
    page = seen.page
    opened(page, address, "late-growth-mis", step=MIS_STEP)
    first = page.locator(".lp-tk-sequence").first
    expect(first).to_contain_text("1 broken")  # before all that only add to K3
    token = told(page)
    assert token["state"].startswith("broken: the rollout log-prob is exactly 0")
    assert (token["rollout r"], token["trainer t"], token["ρ"]) == ("0", "−2.0596", "–")
    assert token["applied in this step"] == token["MIS (preset mis: 0.5 to 2)"] == "dropped: broken log-prob"
    expect(page.locator(".lp-tk-worst")).to_contain_text("Worst tokens, broken ones first")
    expect(page.locator(".lp-tk-facts")).to_contain_text("left out of every value1 broken")
    seen.shot(artifacts, "tokens", whole=True)

    strip = page.locator(".lp-tk-strip")
    strip.focus()
    page.keyboard.press("Home")
    assert strip.get_attribute("aria-valuenow") == "0"
    page.keyboard.press("ArrowRight")
    assert told(page)["position"].startswith("1,")
    assert in_address(page, "token") == "1"
    page.locator(".lp-tk-go").first.click()
    assert told(page)["state"].startswith("broken")
    strip.press("n")
    assert told(page)["state"] == "trained on"
    strip.press("N")
    assert told(page)["state"].startswith("broken")
    assert told(page)["position"].partition(",")[0] in (strip.get_attribute("aria-valuetext") or "")


def test_a_link_opens_the_same_token_and_steps_are_walked_by_keys(seen: Watched, address: str) -> None:
    page = seen.page
    opened(page, address, "late-growth-mis", step=600, pair="total", token=2)
    sample = page.locator(".lp-tk-sequence").nth(2).locator(".lp-name").inner_text()
    page.locator(".lp-tk-sequence").nth(2).click()
    page.wait_for_selector(f".lp-tk-strip[data-sample='{sample}']")
    page.locator(".lp-tk-strip").press("End")
    link, before = page.evaluate("location.href"), told(page)
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(f".lp-tk-strip[data-sample='{sample}']")
    assert told(page) == before
    assert page.locator(".lp-choice [aria-pressed=true]").first.inner_text() == "total"

    page.locator(".lp-tk-chooser").press("ArrowRight")
    page.wait_for_url("**step=601**")
    expect(page.get_by_label("step", exact=True)).to_have_value("601")
    page.wait_for_function("(old) => document.querySelector('.lp-tk-strip').dataset.sample !== old", arg=sample)
    assert in_address(page, "sequence") != sample
    page.get_by_role("button", name="previous step").click()
    page.wait_for_url("**step=600**")
    for asked, opens in (("595", "595"), ("9,999", str(MIS_STEP + 1))):  # one that is not there: the nearest
        page.get_by_label("step", exact=True).fill(asked)
        page.get_by_label("step", exact=True).press("Enter")
        page.wait_for_url(f"**step={opens}**")
        expect(page.get_by_label("step", exact=True)).to_have_value(opens)


def test_text_of_tokens_names_and_tags_stays_text(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    page.add_init_script("globalThis.alert = () => { throw new Error('markup was run'); };")
    opened(page, address, RUN)
    assert in_address(page, "step") == "3"  # the first of the steps with broken tokens whose tokens are kept
    strip = page.locator(".lp-tk-strip")
    strip.focus()
    page.keyboard.press("Home")
    pieces = []
    for _ in range(10):
        pieces.append(told(page)["token"].partition("\u00a0")[0].strip())
        page.keyboard.press("ArrowRight")
    assert pieces[:3] == ["<script>alert(1)</script>", "<img␣src=x␣onerror=alert(1)>", "⟨U+202E⟩gnp.exe"]
    assert pieces[3:8] == ["⟨00⟩⟨1B⟩[31m", "⟨U+200B⟩", "⏎", "␣␣", "the"]
    expect(page.locator(".lp-tk-sequences")).to_contain_text("<img src=x onerror=alert(1)> 3")
    expect(page.locator(".lp-tk-facts")).to_contain_text("<svg onload=alert(1)>⟨U+202E⟩")
    assert page.locator("[onerror], [onload], .lp-tokens script, .lp-tokens img").count() == 0
    assert "\u202e" not in page.locator(".lp-tokens").inner_text()
    names = page.locator(".lp-tk-worst tbody tr.lp-tone-critical td:nth-child(3)").all_inner_texts()
    assert [re.sub(r"^broken: the | log-prob.*", "", name) for name in names] == [
        "rollout",
        "trainer",
        "trainer",
        *["rollout"] * 3,
    ]
    seen.shot(artifacts, "tokens-broken", whole=True)


@pytest.mark.parametrize("seen", [{"dark": True}], indirect=True, ids=["dark"])
def test_tool_output_turns_and_new_weights_are_marked(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    opened(page, address, RUN, step=4, sequence="tools 4", token=0)
    assert told(page)["state"] == "before the first token that is trained on: prompt or context"
    for sign in ("masked", "turn", "new weights"):
        expect(page.locator(".lp-tk-legend")).to_contain_text(sign)
    page.locator(".lp-tk-strip").press("End")
    assert told(page)["weights"] == "engine 5, trainer 5"
    expect(page.locator(".lp-tk-facts")).to_contain_text("the tokens under the mask match the engine's")
    page.locator(".lp-tk-strip").hover(position={"x": 10, "y": 8})
    assert told(page)["position"].startswith("0,")
    seen.shot(artifacts, "tokens-dark", whole=True)


@pytest.mark.parametrize("seen", [{"width": 390, "height": 844}], indirect=True, ids=["390"])
def test_what_is_not_there_is_said_and_what_is_left_is_shown(seen: Watched, address: str, artifacts: Path) -> None:
    page = seen.page
    opened(page, address, RUN, step=4, sequence="other tokens 4")
    expect(page.locator(".lp-tk-facts")).to_contain_text(
        "the engine's tokens differ from the trainer's: nothing is compared"
    )
    assert "no rollout or trainer log-prob was recorded" in told(page)["state"]
    assert (told(page)["rollout r"], told(page)["ρ"]) == ("not recorded", "–")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, "tokens-390", whole=True)
    page.goto(f"{address}/?page=tokens&run={quote(RUN)}&step=0")  # taken by retention
    expect(page.locator(".lp-tk-notes")).to_contain_text("kept for 0 of 5 sequences: 5 were removed")
    expect(page.locator(".lp-tk-facts")).to_contain_text("share of the step's K3")
    expect(page.locator(".lp-tk-strip")).to_be_hidden()
    page.goto(f"{address}/?page=tokens&run={quote(REDUCED)}")
    expect(page.locator(".lp-tk-notes")).to_contain_text("4 were recorded as statistics only")
    seen.shot(artifacts, "tokens-390-gone", whole=True)


def test_the_file_has_every_token_and_no_formula(seen: Watched, address: str) -> None:
    page = seen.page
    opened(page, address, RUN, step=3)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert re.fullmatch(r"[\w.-]+\.csv", download.value.suggested_filename)
    content = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(content.splitlines()))
    assert len(rows) == LENGTH
    assert [row["rollout_logprob"] for row in rows[20:26]][:1] == ["NaN"]
    assert (rows[21]["trainer_logprob"], rows[22]["trainer_logprob"], rows[23]["rollout_logprob"]) == (
        "inf",
        "-inf",
        "-9999",
    )
    assert all(row["log_ratio"] == row["k3"] == "" for row in rows[20:26])
    d = float(rows[0]["trainer_logprob"]) - float(rows[0]["rollout_logprob"])
    assert float(rows[0]["log_ratio"]) == pytest.approx(d, abs=1e-6)
    formulas = [row["text"] for row in rows if "SUM" in row["text"]]
    assert formulas
    assert all(text.startswith("'=") for text in formulas)


def test_columns_travel_once_and_a_page_that_was_left_shows_them_again(seen: Watched, address: str) -> None:
    page = seen.page
    sent, received = [], []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(_bytes(frame)))
        socket.on("framereceived", lambda frame: received.append(_bytes(frame)))

    page.on("websocket", listen)
    opened(page, address, "late-growth-mis", step=600)
    before, travelled = told(page), sum(b'"rollout":' in frame for frame in received)
    # Once, but for a page that has waited so long that it asked for them.
    assert 1 <= travelled <= 1 + sum(b"strip" in frame for frame in sent)
    page.locator(".lp-tabs a", has_text="Diagnosis").click()
    page.wait_for_selector(".lp-report")
    page.locator(".lp-tabs a", has_text="Tokens").click()
    page.wait_for_selector(".lp-tk-strip[data-sample]")
    assert told(page) == before
    assert sum(b'"rollout":' in frame for frame in received) == travelled


def test_columns_that_were_lost_on_their_way_are_asked_for_again(seen: Watched, address: str) -> None:
    page = seen.page

    def forgetful(route: Route) -> None:
        """The page's module, which overlooks the columns the first time they come."""
        body = route.fetch().text()
        assert "if (given.columns) {" in body
        body = body.replace("if (given.columns) {", "if (given.columns && globalThis.received++) {")
        route.fulfill(content_type="text/javascript", body=body)

    page.add_init_script("globalThis.received = 0;")
    page.route("**/tokens.js", forgetful)
    opened(page, address, "late-growth-mis", step=602)
    assert page.evaluate("globalThis.received") >= 2
    assert told(page)["state"] == "trained on"


def _bytes(frame: bytes | str) -> bytes:
    return frame if isinstance(frame, bytes) else frame.encode()


def test_a_step_that_is_not_there_is_said(seen: Watched, address: str) -> None:
    page = seen.page
    opened(page, address, "late-growth-mis", step=99999)
    expect(page.locator(".lp-tk-notes")).to_contain_text("Step 99999 is not among the steps of this run; showing step")
