"""No secret anywhere: not in logs at their loudest, not in the store's bytes, not in errors, not on a page."""

from __future__ import annotations

import logging
import threading
import traceback
from pathlib import Path

import pytest
from alert_notes import NOTE
from fake_slack import FAILURES, HOOK, TOKEN, FakeSlack
from sending import Bench, PatientCalls, bot

from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Channel, Outgoing
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError
from logprobe.monitor.store.store import Store

CANARIES = (TOKEN, HOOK, HOOK.rpartition("/")[2], "canary-signing-secret-of-32-bytes")

BROKEN = [failure for failure in FAILURES if not failure.startswith("portal")]  # a receiver of JSON may answer any page


def channels(slack: FakeSlack) -> list[Channel]:
    url, secret = Secret(slack.hook_url), Secret(CANARIES[-1])
    return [bot(slack), Webhook("json", url=url, secret=secret, calls=PatientCalls(slack), clock=lambda: NOTE.at)]


def assert_clean(text: str) -> None:
    for canary in CANARIES:
        assert canary not in text


def test_no_secret_in_logs_and_store(
    store: Store, slack: FakeSlack, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench = Bench(store, *channels(slack))
    slack.fail("chat.postMessage", "500_before", "reset_after", "invalid_auth", "ratelimited")
    slack.fail("webhook", "500_before", "reset_before", "ratelimited", "no_service", "timeout_before")
    bench.enqueue(NOTE)
    bench.run()
    bench.finish()
    store.checkpoint()
    assert len(bench.states()) == 2
    assert_clean(caplog.text)
    contents = [file.read_bytes().decode("latin-1") for file in home.rglob("*") if file.is_file()]
    assert any(NOTE.key in content for content in contents)  # the search would find it
    assert_clean("".join(contents))
    assert_clean(slack.texts())


@pytest.mark.parametrize("failure", [*BROKEN, "invalid_auth", "account_inactive", "echo"])
def test_no_secret_in_errors(slack: FakeSlack, failure: str) -> None:
    for method, secret in (("chat.postMessage", TOKEN), ("webhook", slack.hook_url)):
        answer = secret if failure == "echo" else failure  # something on the way may quote the request
        slack.fail(method, answer)
    for channel in channels(slack):
        with pytest.raises(ChannelError) as caught:
            channel.send(Outgoing(NOTE))
        assert_clean("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_no_address_in_errors_of_the_network(address: str) -> None:
    calls = Calls(5.0, threading.Event())
    url, secret = Secret(address + HOOK), Secret(CANARIES[-1])
    channel = Webhook("json", url=url, secret=secret, calls=calls, clock=lambda: NOTE.at)
    with pytest.raises(ChannelError) as caught:
        channel.send(Outgoing(NOTE))
    assert_clean("".join(traceback.format_exception(caught.value)))
