"""Trying a channel out: what does not work is said plainly, with what to do about it."""

from __future__ import annotations

import threading

import pytest
from alert_notes import NOTE
from fake_slack import TOKEN, FakeSlack
from sending import bot

from logprobe.alerts.sending import trial
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ConfigurationError

HISTORY = "channels:history"


@pytest.mark.parametrize(
    ("scopes", "member", "token", "delivered", "words"),
    [
        (("chat:write", HISTORY), True, TOKEN, True, ["delivered: look"]),
        (("chat:write",), True, TOKEN, True, ["the scope channels:history", "delivered: look"]),
        ((HISTORY,), True, TOKEN, False, ["missing_scope", "chat:write", "install the app again"]),
        (("chat:write",), False, TOKEN, False, ["not_in_channel", "/invite"]),
        (("chat:write",), True, "xoxb-wrong", False, ["invalid_auth", "create a new bot token"]),
    ],
)
def test_slack(scopes: tuple[str, ...], member: bool, token: str, delivered: bool, words: list[str]) -> None:
    with FakeSlack(scopes=scopes, member=member) as slack:
        outcome = trial.attempt(bot(slack, token=token), now=NOTE.at)
    assert outcome.delivered is delivered
    assert all(word in " ".join(outcome.lines) for word in words)
    assert bool(slack.messages) is delivered


def test_nobody_there() -> None:
    calls = Calls(5.0, threading.Event())
    hook = Webhook(
        "hook", url=Secret("http://127.0.0.1:9/x"), secret=Secret("s" * 32), calls=calls, clock=lambda: NOTE.at
    )
    outcome = trial.attempt(hook, now=NOTE.at)
    assert not outcome.delivered
    assert "HTTPS_PROXY" in outcome.lines[0]


def test_which_channel() -> None:
    calls = Calls(5.0, threading.Event())
    hook = Webhook("log", url=Secret("http://h"), secret=Secret("s" * 32), calls=calls, clock=lambda: NOTE.at)
    route = Route(hook, frozenset())
    assert trial.chosen([route], "log") is route.channel
    with pytest.raises(ConfigurationError, match="did you mean 'log'"):
        trial.chosen([route], "lof")
    with pytest.raises(ConfigurationError, match="no channels are configured"):
        trial.chosen([], "log")
