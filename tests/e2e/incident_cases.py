"""Five recorded incidents, from the Slack message to cause, setting and last good step: seconds and clicks, by page and by command.

`make campaign NAME=incidents` prints the table. A real service sends the messages, to a Slack of the tests' own; what it cannot know of an incident it has to
say, and the table has it as it is said.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from dashboard_process import Watched, dashboard
from fake_slack import CHANNEL, TOKEN, FakeSlack
from playwright.sync_api import Browser
from processes import eventually, logprobe
from recorded_home import ingest_recorded

from logprobe.app.text.tables import fitted

pytestmark = pytest.mark.browser

SECONDS, CLICKS = 60.0, 3


@dataclass(frozen=True)
class Incident:
    """A recorded run, and what has to be found. `setting`: what is said of one; `good`: the last step before the onset; None: there is none."""

    run: str
    cause: str
    setting: str
    good: int | None = None


INCIDENTS: Final = (
    Incident("v1-initial", "raw logprobs", "--logprobs-mode processed_logprobs"),
    Incident("rescue-without", "staleness", "no training framework was recorded", good=225),
    Incident("faults/missed_weight_sync", "missed weight sync", "no training framework was recorded", good=5),
    Incident("faults/temperature_mismatch", "temperature mismatch", "temperature=1.0"),
    Incident("faults/nonfinite_logprobs", "nonfinite logprobs", "no setting of vLLM"),
)
CHANNELS: Final = """\
channels:
  oncall: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: "{url}"}}
"""


@pytest.fixture(scope="module")
def slack() -> Iterator[FakeSlack]:
    with FakeSlack(interval=0.0) as fake:
        yield fake


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, slack: FakeSlack) -> Path:
    folder = tmp_path_factory.mktemp("incidents") / "home"
    for incident in INCIDENTS:
        ingest_recorded(folder, incident.run)
    (folder / "logprobe.yaml").write_text(CHANNELS.format(channel=CHANNEL, url=slack.api_url))
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEAM_TOKEN", TOKEN)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)
        with dashboard("up", "--home", str(home), "--port", "0") as url:
            yield url


def test_from_the_message_to_what_to_do(
    browser: Browser, address: str, slack: FakeSlack, home: Path, artifacts: Path
) -> None:
    rows = []
    for incident in INCIDENTS:
        message = eventually(partial(message_of, slack, incident.run), f"a message of {incident.run}", seconds=300)
        row = by_page(browser, address, link_of(message), incident, artifacts) | by_command(home, incident)
        rows.append({"incident": incident.run, **row})
    (artifacts / "incidents.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    shown = ("incident", "last good step", "clicks", "page seconds", "command seconds")
    print("\n" + fitted(shown, [[row[name] for name in shown] for row in rows]))
    for incident, row in zip(INCIDENTS, rows, strict=True):
        assert incident.cause in row["page"], row
        assert incident.setting in row["page"], row
        assert row["last good step"] == incident.good, row
        assert row["clicks"] <= CLICKS, row
        assert max(row["page seconds"], row["command seconds"]) <= SECONDS, row


def message_of(slack: FakeSlack, run: str) -> dict[str, Any] | None:
    """What came of a run first, of a critical alert."""
    return next(
        (each for each in slack.messages if key_of(each).startswith(f"{run}/") and "ritical" in json.dumps(each)), None
    )


def key_of(message: dict[str, Any]) -> str:
    return str(message.get("metadata", {}).get("event_payload", {}).get("key", ""))


def link_of(message: dict[str, Any]) -> str:
    found = re.search(r"http://[^\s\"|>\\]+run=[^\s\"|>\\]+", json.dumps(message))
    assert found, message
    return found[0].replace("&amp;", "&")


def by_page(browser: Browser, address: str, link: str, incident: Incident, artifacts: Path) -> dict[str, Any]:
    """From the click on the link until all is read: the page of the incident."""
    seen = Watched(browser, address)
    page, began = seen.page, time.monotonic()
    page.goto(link)
    facts = page.locator(".lp dl", has_text="last good step")
    facts.wait_for()
    words = facts.inner_text()
    row = {
        "page": f"{page.locator('.lp-verdict').inner_text()}\n{words}",
        "last good step": good_of(words),
        "clicks": 1,
        "page seconds": round(time.monotonic() - began, 1),
    }
    seen.shot(artifacts, f"incident-{incident.run.replace('/', '-')}", whole=True)
    seen.close()
    return row


def good_of(words: str) -> int | None:
    """The last good step, as it is said; None: it was wrong from its first step on."""
    found = re.search(r"last good step\s+([\d,]+|none)", words)
    assert found, words
    return None if found[1] == "none" else int(found[1].replace(",", ""))


def by_command(home: Path, incident: Incident) -> dict[str, Any]:
    """`logprobe show`."""
    began = time.monotonic()
    shown = logprobe("show", incident.run, "--home", home, code=2).stdout
    seconds = time.monotonic() - began
    assert incident.cause in shown
    assert incident.setting in shown
    assert good_of(shown) == incident.good
    return {"command seconds": round(seconds, 1)}
