"""Delivery as a part of the service, and users' actions on channels: list and test.

Secrets are never shown. Only channels' names and the texts of `ChannelError` are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Final, TypedDict

from logprobe.alerts.notification import Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending.channels.channel import Channel, Outgoing
from logprobe.alerts.sending.channels.settings import SECTION, Route, channels_of
from logprobe.alerts.sending.delivery import Condition, Deadline, Dispatcher
from logprobe.collectors.errors import ChannelError, ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service.action import Action
from logprobe.monitor.service.actions import note, text
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.settings import located
from logprobe.monitor.store.store import Store

CHANNELS: Final = "alerts.channels"
TEST: Final = "alerts.test"

_SECONDS: Final = 1.0  # between two looks at the outbox
_PATIENCE: Final = 8.0  # seconds of a test: a person waits for it
_ADVICE: Final = {
    "unreachable": "; there is no response; check the address, and HTTPS_PROXY if there is a proxy",
    "uncertain": "; the message may have arrived anyway; check there, and try again",
    "busy": "; it is rate limiting; try again later",
    "refused": "; it does not accept messages like this one",
}

Document = Mapping[str, Any]


class Known(Condition):
    """A present or former channel, with its state and message counts."""

    name: str
    sent: int
    waiting: int
    dead: int
    last_sent_at: datetime | None
    last_error: str | None


class Channels(TypedDict):
    """All channels. `problem`: why the settings are not in effect, or None."""

    problem: str | None
    channels: list[Known]


class Tested(TypedDict):
    """Result of a test message. `lines`: sentences, failures first."""

    delivered: bool
    lines: list[str]


_GONE: Final[Condition] = {"kind": None, "severities": [], "waits_until": None, "why": None}


def ping(routes: Sequence[Route], name: str, now: datetime) -> Tested:
    """Send a test message to a channel immediately, bypassing the outbox. Raise `ConfigurationError` for an unknown
    name.
    """
    channels = {channel.name: channel for channel, _ in routes}
    if not channels:
        raise ConfigurationError(
            "no channels are configured; list `channels` in the home's logprobe.yaml (docs/alerts.md)"
        )
    if name not in channels:
        raise ConfigurationError(f"there is no channel {name!r}; {located.instead(name, tuple(channels))}")
    try:
        limits = Deadline(_PATIENCE, threading.Event()).run(lambda: _tried(channels[name], now))
    except ChannelError as error:
        return {"delivered": False, "lines": [f"not delivered: {error}{_ADVICE.get(error.reason, '')}"]}
    return {"delivered": True, "lines": [*limits, "delivered: look for the test message there"]}


def _tried(channel: Channel, now: datetime) -> Sequence[str]:
    limits = channel.check()
    channel.send(Outgoing(_sample(channel.name, now)))
    return limits


def _sample(channel: str, now: datetime) -> Notification:
    key = f"test/{channel}/{now.isoformat()}"
    return Notification(
        key=key,
        run="no run",
        rule="test",
        episode=key,
        state="firing",
        severity="info",
        at=now,
        summary=f"This is a test of the channel {channel}. Nothing is wrong, and the numbers are made up.",
        metric="backend.k3_kl",
        value=3.1e-2,
        unit="nats",
        step=59,
        since_step=40,
    )


def delivery_part(store: Store, stopping: threading.Event) -> Part:
    """Return delivery as a part of the service. Raise `ConfigurationError` for an unusable channel.

    Changed settings are read again. Invalid settings are not applied, and the job reports them.
    """
    clock, steady = store.time.now, store.time.monotonic

    def read() -> list[Route]:
        return channels_of(store.home, environment=os.environ, clock=clock)

    routes = Reloaded(store.home.path, SECTION, read)
    jitter = Random()  # noqa: S311
    dispatcher = Dispatcher(store, routes.current, clock=clock, random=jitter, stopping=stopping, steady=steady)

    def channels(_: Document) -> Channels:
        counted = {row["channel"]: row for row in queries.outbox_channels(store).to_pylist()}
        states = {name: sender.state() for name, sender in dispatcher.senders().items()}
        names = dict.fromkeys((*states, *counted))
        return {
            "problem": routes.problem,
            "channels": [_known(name, states.get(name, _GONE), counted.get(name)) for name in names],
        }

    def test(document: Document) -> Tested:
        """Test a channel: ``{"channel", "author"}``. Use a separate channel object, since the sender's belongs to its
        thread.
        """
        wanted, author = text(document, "channel"), text(document, "author")
        tested = ping(read(), wanted, clock())
        with store.transaction() as cursor:
            done: dict[str, Any] = {"action": "channel tested", "what": wanted, "words": tested["lines"][-1]}
            note(store, cursor, clock(), author=author, **done)
        return tested

    actions = {
        CHANNELS: Action("state of the channels", channels),
        TEST: Action("send a test message to a channel", test),
    }
    work = Job("delivery", _SECONDS, lambda: {**dispatcher.run_once(), **routes.report()})
    return Part(jobs=[work], actions=actions, close=dispatcher.close)


def _known(name: str, condition: Condition, counts: queries.OutboxChannels | None) -> Known:
    return {
        "name": name,
        **condition,
        "sent": counts["sent"] if counts else 0,
        "waiting": counts["waiting"] if counts else 0,
        "dead": counts["dead"] if counts else 0,
        "last_sent_at": counts["last_sent_at"] if counts else None,
        "last_error": counts["last_error"] if counts else None,
    }
