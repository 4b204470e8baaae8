"""What people do about channels: see how they are, try one out, send again or drop what was given up. Asked of the running service.

Secrets take no part in any of it: channels are named, and what goes wrong is said in the words of `ChannelError`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from logprobe.alerts import audit
from logprobe.alerts.sending import outbox, trial
from logprobe.alerts.sending.channels.settings import read_settings, routes_of
from logprobe.alerts.sending.delivery import Sender
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service.action import Action
from logprobe.monitor.service.actions import text
from logprobe.monitor.store.store import Store

CHANNELS: Final = "alerts.channels"
TEST: Final = "alerts.test"
AGAIN: Final = "alerts.send_again"
DROP: Final = "alerts.drop"

_PATIENCE: Final = 4.0  # seconds for one call of a test: whoever asked waits for it
_REMEMBERED: Final = 32  # tests; asked for again because a connection broke, one is not made again

Document = Mapping[str, Any]


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
        self._lock = threading.Lock()
        self._tests: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def actions(self) -> dict[str, Action]:
        """For the service's endpoint."""
        return {
            CHANNELS: Action("state of the channels", self._channels),
            TEST: Action("send a test message to a channel", self._test),
            AGAIN: Action("send an abandoned message again", self._again),
            DROP: Action("drop an abandoned message from the list", self._drop),
        }

    def _channels(self, _: Document) -> dict[str, Any]:
        """``{"problem", "channels": [{"name", "kind", "severities", "waits_until", "why", "limited", "sent", "waiting", …}]}``.

        A channel that was used and is in no file any more has ``kind`` None.
        """
        counted = {row["channel"]: row for row in outbox.channel_states(self._store)}
        known = {name: sender.state() for name, sender in self._senders().items()}
        rows = [
            {"name": name, **_UNUSED, **_GONE, **known.get(name, {}), **_counts(counted.get(name, {}))}
            for name in [*known, *(name for name in counted if name not in known)]
        ]
        return {"problem": self._problem(), "channels": rows}

    def _test(self, document: Document) -> dict[str, Any]:
        """``{"channel", "author", "id"}`` → ``{"delivered", "lines"}``. `id`: the same when the same test is asked for again."""
        wanted, made = text(document, "channel"), text(document, "id")
        with self._lock:
            if made not in self._tests:
                self._tests[made] = self._tried(wanted, text(document, "author"))
                while len(self._tests) > _REMEMBERED:
                    self._tests.popitem(last=False)
            return self._tests[made]

    def _tried(self, wanted: str, author: str) -> dict[str, Any]:
        """A test through a separate channel: the sender's belongs to the sender's thread."""
        settings = {
            name: each.model_copy(update={"timeout": min(each.timeout, _PATIENCE)})
            for name, each in read_settings(self._store.home.path, os.environ).items()
        }
        routes = routes_of(
            settings, self._store.home, environment=os.environ, stopping=self._stopping, clock=self._clock
        )
        outcome = trial.attempt(trial.chosen(routes, wanted), now=self._clock())
        self._note(author, "channel tested", wanted, outcome.lines[-1])
        return {"delivered": outcome.delivered, "lines": list(outcome.lines)}

    def _again(self, document: Document) -> dict[str, Any]:
        """``{"key", "channel", "author"}`` → ``{"status"}``: what became of it. What is on its way or has arrived stays so."""
        return self._handle(document, outbox.send_again, "sent again")

    def _drop(self, document: Document) -> dict[str, Any]:
        """``{"key", "channel", "author"}`` → ``{"status"}``."""
        return self._handle(document, outbox.drop, "dropped")

    def _handle(self, document: Document, change: Callable[..., None], done: str) -> dict[str, Any]:
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

    def _note(self, author: str, action: str, subject: str, words: str) -> None:
        with self._store.transaction() as cursor:
            audit.note(self._store, cursor, self._clock(), author=author, action=action, subject=subject, words=words)


_UNUSED: Final[dict[str, Any]] = {"sent": 0, "waiting": 0, "dead": 0, "last_sent_at": None, "last_error": None}
_GONE: Final[dict[str, Any]] = {"kind": None, "severities": [], "waits_until": None, "why": None, "limited": 0}


def _counts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _UNUSED if name in row}
