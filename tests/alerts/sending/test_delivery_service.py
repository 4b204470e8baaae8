"""The sender as a part of the real service: across kill -9 of it, and at its end; and trying a channel out."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from alert_notes import NOTE
from fake_slack import CHANNEL, TOKEN, FakeSlack
from processes import connected, end, eventually, start_service
from sending import Bench, bot

from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.actions import delivery_part
from logprobe.app.cli import main
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

CHANNELS = """\
channels:
  team: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: "{url}"}}
"""


@pytest.fixture
def configured(home: Path, slack: FakeSlack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a channel."""
    home.mkdir()
    (home / "logprobe.yaml").write_text(CHANNELS.format(channel=CHANNEL, url=slack.api_url))
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    return home


def enqueue(home: Path, count: int) -> list[str]:
    keys = [f"e{number}/firing" for number in range(count)]
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        for key in keys:
            outbox.enqueue(store, cursor, replace(NOTE, key=key, episode=key))
    return keys


def test_a_service_ends_at_once_though_a_channel_hangs(configured: Path, slack: FakeSlack) -> None:
    (configured / "logprobe.yaml").write_text(
        f"channels: {{team: {{kind: slack, channel: {CHANNEL}, token: $TEAM_TOKEN, api_url: '{slack.api_url}'}}}}"
    )
    enqueue(configured, 1)
    slack.fail("chat.postMessage", "timeout_before")
    process = start_service(configured)
    eventually(lambda: "chat.postMessage" in slack.calls, "the call hangs")
    with connected(configured):
        end(process)  # by force after two minutes
    assert process.returncode == 0


def test_a_channel_that_is_configured_wrongly_fails_at_the_start(configured: Path) -> None:
    (configured / "logprobe.yaml").write_text("channels:\n  a: {kind: slack, channel: general}\n")
    with (
        Store.open(Home(configured)) as store,
        pytest.raises(ConfigurationError, match=r"logprobe\.yaml:2: channels\.a"),
    ):
        delivery_part(store, threading.Event())


def test_alerts_test_sends_a_message(configured: Path, slack: FakeSlack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "ping", "team", "--home", str(configured)]) == 0
    assert capsys.readouterr().out == "team: delivered: look for the test message there\n"
    assert "This is a test" in slack.texts()
    assert main(["alerts", "ping", "tem", "--home", str(configured)]) == 1
    assert "did you mean 'team'?" in capsys.readouterr().err


def test_what_was_given_up_is_listed(store: Store, slack: FakeSlack, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(store, bot(slack))
    slack.fail("chat.postMessage", "invalid_blocks")
    bench.enqueue(NOTE)
    bench.run()
    store.close()
    assert main(["alerts", "list", "--home", str(store.home.path)]) == 0
    assert "invalid_blocks" in capsys.readouterr().out
