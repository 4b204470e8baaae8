"""Delivery as a part of the service, and actions of users about channels: list them, try one out, send again or drop
what was given up.

Secrets take no part in any of it: channels are named, and what goes wrong is said in the words of `ChannelError`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Final, TypedDict

from logprobe.alerts import audit
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending import outbox, trial
from logprobe.alerts.sending.channels.settings import SECTION, Route, channels_of
from logprobe.alerts.sending.delivery import Condition, Dispatcher, Sender
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service.action import Action
from logprobe.monitor.service.actions import text
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.store.store import Store

CHANNELS: Final = "alerts.channels"
TEST: Final = "alerts.test"
AGAIN: Final = "alerts.send_again"
DROP: Final = "alerts.drop"

_SECONDS: Final = 1.0  # between two looks at the outbox

_PATIENCE: Final = 4.0  # seconds for one call of a test: a person waits for it

Document = Mapping[str, Any]


class Channel(Condition):
    """A channel that is, or was, used: how it is, and how many messages went which way."""

    name: str
    sent: int
    waiting: int
    dead: int
    last_sent_at: datetime | None
    last_error: str | None


class Channels(TypedDict):
    """All channels. `problem`: why what the settings say is not in effect."""

    problem: str | None
    channels: list[Channel]


class Tested(TypedDict):
    """Result of a test message."""

    delivered: bool
    lines: list[str]


class Abandoned(TypedDict):
    """Status of an abandoned message."""

    status: str


class ChannelActions:
    """Does what people ask for. Used from any thread."""

    def __init__(
        self,
        store: Store,
        senders: Callable[[], Mapping[str, Sender]],
        problem: Callable[[], str | None],
        *,
        stopping: threading.Event,
        clock: Callable[[], datetime],
    ) -> None:
        """`senders`: at work now, by channel. `problem`: why what the channels file says is not in effect."""
        self._store = store
        self._senders = senders
        self._problem = problem
        self._stopping = stopping
        self._clock = clock

    def actions(self) -> dict[str, Action]:
        """For the service's endpoint."""
        return {
            CHANNELS: Action("state of the channels", self._channels),
            TEST: Action("send a test message to a channel", self._test),
            AGAIN: Action("send an abandoned message again", self._again),
            DROP: Action("drop an abandoned message from the list", self._drop),
        }

    def _channels(self, _: Document) -> Channels:
        counted = {row["channel"]: row for row in queries.outbox_channels(self._store).to_pylist()}
        at_work = {name: sender.state() for name, sender in self._senders().items()}
        channels = [
            _channel(name, at_work.get(name, _GONE), counted.get(name)) for name in dict.fromkeys((*at_work, *counted))
        ]
        return {"problem": self._problem(), "channels": channels}

    def _test(self, document: Document) -> Tested:
        """``{"channel", "author"}``. Through a separate channel: the sender's belongs to the sender's thread."""
        wanted, author = text(document, "channel"), text(document, "author")
        routes = channels_of(
            self._store.home, environment=os.environ, stopping=self._stopping, clock=self._clock, seconds=_PATIENCE
        )
        outcome = trial.attempt(trial.chosen(routes, wanted), now=self._clock())
        with self._store.transaction() as cursor:
            told = {"author": author, "action": "channel tested", "subject": wanted, "words": outcome.lines[-1]}
            audit.note(self._store, cursor, self._clock(), **told)
        return {"delivered": outcome.delivered, "lines": list(outcome.lines)}

    def _again(self, document: Document) -> Abandoned:
        """``{"key", "channel", "author"}``. What is on its way or has arrived stays so."""
        return self._handle(document, outbox.send_again, "sent again")

    def _drop(self, document: Document) -> Abandoned:
        """``{"key", "channel", "author"}``."""
        return self._handle(document, outbox.drop, "dropped")

    def _handle(self, document: Document, change: Callable[..., None], done: str) -> Abandoned:
        key, channel, author = (text(document, name) for name in ("key", "channel", "author"))
        before = self._delivery(key, channel)
        if before["status"] == "dead":
            with self._store.transaction() as cursor:
                change(self._store, cursor, key=key, channel=channel, now=self._clock())
                words = f"{before['rule']} of {before['run']}, {before['state']}: {before['last_error']}"
                audit.note(self._store, cursor, self._clock(), author=author, action=done, subject=channel, words=words)
        return {"status": self._delivery(key, channel)["status"]}

    def _delivery(self, key: str, channel: str) -> queries.OutboxDelivery:
        rows = queries.outbox_delivery(self._store, key=key, channel=channel).to_pylist()
        if not rows:
            raise ConfigurationError(f"no message {key!r} was ever sent to a channel {channel!r}")
        return rows[0]


_GONE: Final[Condition] = {"kind": None, "severities": [], "waits_until": None, "why": None, "limited": 0}


def _channel(name: str, condition: Condition, counts: queries.OutboxChannels | None) -> Channel:
    return {
        "name": name,
        **condition,
        "sent": counts["sent"] if counts else 0,
        "waiting": counts["waiting"] if counts else 0,
        "dead": counts["dead"] if counts else 0,
        "last_sent_at": counts["last_sent_at"] if counts else None,
        "last_error": counts["last_error"] if counts else None,
    }


def delivery_part(store: Store, stopping: threading.Event) -> Part:
    """Return delivery as a part of the service. Raise `ConfigurationError` if a channel cannot be used.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """

    def clock() -> datetime:
        return datetime.now(UTC)

    def read() -> list[Route]:
        return channels_of(store.home, environment=os.environ, stopping=stopping, clock=clock)

    routes = Reloaded(store.home.path, SECTION, read)
    dispatcher = Dispatcher(store, routes.current, clock=clock, random=Random(), stopping=stopping)  # noqa: S311 - jitter
    work = Job("delivery", _SECONDS, lambda: {**dispatcher.run_once(), **routes.report()})
    channels = ChannelActions(store, dispatcher.senders, lambda: routes.problem, stopping=stopping, clock=clock)
    return Part(jobs=[work], actions=channels.actions(), close=dispatcher.close)
