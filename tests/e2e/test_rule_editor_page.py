"""Rules, snoozes and channels from the page: what is typed is checked, saved and in force; what is wrong is refused with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alert_notes import NOTE
from dashboard_process import Watched, dashboard
from dashboard_process import confirm as fill_in
from fake_slack import CHANNEL, TOKEN, FakeSlack
from playwright.sync_api import Locator, Page, expect
from processes import eventually
from recorded_home import ingest_recorded
from sending import Bench, bot

from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

pytestmark = pytest.mark.browser

OWN = """\
# ours
alerts:
  rules:
    # very large
    - name: very-large
      metric: k3_kl
      when: {kind: threshold, above: 5}   # nats
"""
BY_HAND = OWN.replace("very large\n", "very large, by hand\n")
CHANNELS = """\
channels:
  team: {{kind: slack_bot, channel: {channel}, token_env: TEAM_TOKEN, api_url: "{url}", settle: 0.2, timeout: 60, pictures: false, severities: [info]}}
"""
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def slack() -> Iterator[FakeSlack]:
    with FakeSlack(interval=0.0) as fake:
        yield fake


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, slack: FakeSlack) -> Path:
    """A home with a run that drifts away, a rule of its own, and a message that its channel refused."""
    folder = tmp_path_factory.mktemp("rules") / "home"
    ingest_recorded(folder, "late-growth")
    with Store.open(Home(folder)) as store:
        bench = Bench(store, bot(slack))
        slack.fail("chat.postMessage", "invalid_blocks")
        bench.enqueue(replace(NOTE, key="lost/firing", episode="lost", rule="gap-lost", run=MARKUP))
        bench.run()
    (folder / "logprobe.yaml").write_text(OWN + CHANNELS.format(channel=CHANNEL, url=slack.api_url))
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEAM_TOKEN", TOKEN)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)
        with dashboard("up", "--home", str(home), "--port", "0") as url:
            yield url


def overlay(home: Path) -> str:
    """The file of the editor."""
    return (home / "alerts.d" / "dashboard.yaml").read_text()


def confirm(page: Page, within: Locator, button: str, sure: str | None = None) -> None:
    """Presses a button, and the one of the form that it opens; the name is remembered from the first time on."""
    within.get_by_role("button", name=button, exact=True).click()
    if page.locator("input[name=by]").input_value() == "":
        page.locator("input[name=by]").fill("Ada")
    page.locator(".lp-sure", has_text=sure or button).click()


def test_a_rule_from_its_first_letter_to_its_end(seen: Watched, address: str, home: Path, artifacts: Path) -> None:
    """Each part begins where the one before it has ended."""
    _checked_while_it_is_typed_and_saved_when_it_is_good(seen, address, home, artifacts)
    _somebody_was_faster(seen, address, home)
    _disabled_enabled_and_given_back(seen, address, home)


def _checked_while_it_is_typed_and_saved_when_it_is_good(
    seen: Watched, address: str, home: Path, artifacts: Path
) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth&rule=very-large")  # a link opens the same rule
    editor = page.locator(".lp-rule-editor")
    text = editor.get_by_label("rule as text")
    expect(text).to_have_value("name: very-large\nmetric: k3_kl\nwhen: {kind: threshold, above: 5}   # nats\n")

    editor.locator("input[name=limit]").fill("0.05")  # the form writes the text
    expect(text).to_have_value(
        "name: very-large\nseverity: warning\nmetric: k3_kl\npair: backend\nwhen: {kind: threshold, above: 0.05}\n"
    )
    # And the text the form
    text.fill("name: very-large\nmetric: k3_kl\nfor: 5\nwhen: {kind: threshold, above: 0.12}\n")
    expect(editor.locator("input[name=for]")).to_have_value("5")

    # What is wrong with a field stands beside it, and `clear` keeps its distance from the limit.
    for name, value in (("clear", "0.06"), ("limit", "0.2"), ("window", "ten")):
        editor.locator(f"input[name={name}]").fill(value)
    expect(editor.locator("input[name=clear]")).to_have_value("0.1")
    expect(editor.locator(".lp-rule-field-window .lp-rule-field-wrong")).to_contain_text("valid integer")
    expect(editor.locator("input[name=window]")).to_have_attribute("aria-invalid", "true")
    expect(editor.locator(".lp-rule-problems")).to_be_empty()
    seen.shot(artifacts, "rule-with-a-mistake")
    editor.locator("input[name=window]").fill("3")
    expect(editor.locator(".lp-rule-field-wrong")).to_have_count(0)

    text.fill("name: very-large\nmetric: k3_lk\nfour: 5\nwhen: {kind: threshold, above: 0.12}\n")
    problem = editor.locator(".lp-rule-problems")
    expect(problem).to_contain_text("line 3: four: unknown key; did you mean 'for'?")
    expect(editor.locator(".lp-rule-wrong")).to_have_text("3")
    confirm(page, editor, "Save")
    expect(page.locator(".lp-rule-said .lp-tone-critical")).to_contain_text("unknown key")
    assert not (home / "alerts.d").exists()  # refused

    text.fill("name: very-large\nmetric: k3_kl\nfor: 5\nwhen: {kind: threshold, above: 0.05}\n")
    expect(problem).to_be_empty()
    confirm(page, editor, "Save")
    expect(page.locator(".lp-rule-said .lp-tone-info")).to_contain_text("Saved; very-large is active")
    assert (home / "logprobe.yaml").read_text().startswith(OWN)  # people's own stays
    assert overlay(home).endswith(
        "rules:\n  - name: very-large\n    metric: k3_kl\n    for: 5\n    when: {kind: threshold, above: 0.05}\n"
    )
    expect(editor).to_contain_text("logprobe.yaml, changed in alerts.d/dashboard.yaml")
    # The evaluator goes by it without a restart.
    expect(page.locator("table[aria-label=firing]", has_text="very-large")).to_have_count(1)
    with open_reader(home) as reader:
        assert "rule saved" in queries.alert_audit(reader, run="very-large", count=1)["action"].to_pylist()


def _somebody_was_faster(seen: Watched, address: str, home: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth&rule=very-large")
    editor = page.locator(".lp-rule-editor")
    text = editor.get_by_label("rule as text")
    expect(text).to_have_value(re.compile("above: 0.05"))
    mine = text.input_value() + "severity: info\n"
    text.fill(mine)
    other = home / "alerts.new"
    other.write_text((home / "logprobe.yaml").read_text().replace(OWN, BY_HAND))
    other.replace(home / "logprobe.yaml")
    page.locator("input[name=by]").or_(editor.get_by_role("button", name="Save", exact=True)).first.click()
    page.locator("input[name=by]").fill("Bob")
    page.locator(".lp-sure").click()
    said = page.locator(".lp-rules")
    expect(said).to_contain_text("in the meantime")
    assert "severity: info" not in overlay(home)
    expect(text).to_have_value(mine)  # what was typed is not lost
    editor.get_by_role("button", name="Keep mine").click()
    confirm(page, editor, "Save")
    expect(page.locator(".lp-rule-said .lp-tone-info")).to_contain_text("Saved")
    assert "severity: info" in overlay(home)
    assert (home / "logprobe.yaml").read_text().startswith(BY_HAND)


def _disabled_enabled_and_given_back(seen: Watched, address: str, home: Path) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth&rule=staleness")
    row = page.locator("table[aria-label=rules] tr", has=page.get_by_role("button", name="staleness", exact=True))
    confirm(page, page.locator(".lp-rule-editor"), "Disable")
    expect(row).to_contain_text("disabled")
    expect(page.locator("table[aria-label=firing]", has_text="staleness")).to_have_count(0)
    confirm(page, page.locator(".lp-rule-editor"), "Enable")
    expect(row).not_to_contain_text("disabled")
    page.get_by_role("button", name="very-large", exact=True).click()
    editor = page.locator(".lp-rule-editor")
    confirm(page, editor, "Restore the rule in logprobe.yaml")
    expect(editor.locator(".lp-rule-title")).to_have_text("very-large logprobe.yaml")
    expect(editor.get_by_label("rule as text")).to_have_value(
        "name: very-large\nmetric: k3_kl\nwhen: {kind: threshold, above: 5}   # nats\n"
    )
    assert "very-large" not in overlay(home)
    page.get_by_role("button", name="New rule").click()
    editor.locator("input[name=name]").fill("mine")
    expect(editor.get_by_label("rule as text")).to_have_value(re.compile("^name: mine\n"))
    confirm(page, editor, "Save")
    expect(page.locator(".lp-rule-said .lp-tone-info")).to_contain_text("Saved; mine is active")
    confirm(page, editor, "Delete")
    expect(page.get_by_role("button", name="mine", exact=True)).to_have_count(0)
    assert (home / "logprobe.yaml").read_text().startswith(BY_HAND)


def test_snooze_and_silence_from_the_page(seen: Watched, address: str) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth")
    line = page.locator("table[aria-label=firing] tbody tr", has_text="gap-critical").first  # the worst comes first
    fill_in(page, "Snooze", {"your name": "Ada"}, sure="4 h")
    expect(line).to_contain_text("Ada, until 20")
    link = line.get_by_role("link", name="step 5")
    assert "steps=" in (link.get_attribute("href") or "")
    fill_in(
        page,
        "New silence",
        {"rule;": f"gap-* {MARKUP}", "labels,": "team=rl", "reason": "ablation", "your name": "Ada"},
    )
    silences = page.locator("table[aria-label=silences]")
    expect(silences).to_contain_text(f"run=late-growth, rule=gap-* {MARKUP}, team=rl")
    assert page.locator("img").count() == 0
    link.click()
    page.wait_for_url("**steps=**")
    assert "page=alerts" not in page.url
    page.wait_for_selector(".lp-tiles")


def test_a_channel_is_tried_out_and_what_it_refused_sent_again(seen: Watched, address: str, slack: FakeSlack) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth")
    team = page.locator("table[aria-label=channels] tbody tr", has_text="team")
    fill_in(page, "Send a test", {"your name": "Ada"})
    said = page.locator("section[aria-label=channels]")
    expect(said).to_contain_text("team: delivered: look for the test message there")
    assert "This is a test" in slack.texts()
    slack.fail("auth.test", "invalid_auth")
    fill_in(page, "Send a test")  # by the same person
    expect(said).to_contain_text("not delivered: Slack answered invalid_auth")
    lost = page.locator("table[aria-label=undelivered] tbody tr")
    expect(lost).to_contain_text(f"gap-lost of {MARKUP}")
    assert page.locator("img").count() == 0
    fill_in(page, "Send again")
    expect(lost).to_have_count(0)
    expect(team).to_contain_text("works")
    eventually(lambda: slack.by_key("lost/firing"), "it is sent again")  # the channel works since the test message
    assert len(slack.by_key("lost/firing")) == 1
    assert TOKEN not in json.dumps(page.content())


@pytest.mark.parametrize(
    "seen", [{}, {"dark": True}, {"width": 390, "height": 844}], indirect=True, ids=["light", "dark", "390"]
)
def test_looks(seen: Watched, address: str, artifacts: Path, request: pytest.FixtureRequest) -> None:
    page = seen.page
    page.goto(f"{address}/?page=alerts&run=late-growth&rule=gap-large")
    expect(page.locator(".lp-rule-editor").get_by_label("rule as text")).to_have_value(re.compile("^name: gap-large\n"))
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth")
    seen.shot(artifacts, f"rules-{request.node.callspec.id}", whole=True)
