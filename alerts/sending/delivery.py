"""The sender: takes the notifications of the outbox that a channel wants to that channel, with back-off and at its
pace."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, TypedDict

from logprobe.alerts.notification import UNDELIVERED, Notification
from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.outbox import Delivery
from logprobe.collectors.errors import ChannelError
from logprobe.monitor.store.store import Store

LOGGER: Final = logging.getLogger("logprobe.alerts")
Clock = Callable[[], datetime]

_BUDGET: Final = 30.0  # seconds of one run; what is left waits for the next
_FIRST: Final = 2.0  # seconds
_LONGEST: Final = 300.0
_SETUP: Final = 60.0  # a person has to act first, and then wants to see it work
_MOST_DOUBLINGS: Final = 16
GIVE_UP_AFTER: Final = timedelta(hours=24)  # later than that, an alert is history


def route_new(store: Store, routes: Sequence[Route], now: datetime) -> int:
    """Makes one delivery of every new notification per channel that wants its severity. Raises `StoreError`."""
    return outbox.route(store, lambda notification: _wanted(notification, routes), now)


def _wanted(notification: Notification, routes: Sequence[Route]) -> list[str]:
    # Of its own failure a channel hears nothing.
    silent = notification.undelivered
    return [r.channel.name for r in routes if notification.severity in r.severities and r.channel.name != silent]


class Condition(TypedDict):
    """How a channel is.

    `kind`: None: no file has it any more. `waits_until`, `why`: it rests after a failure; None: it does not. `limited`:
    how often it asked for fewer messages since the service took it over.
    """

    kind: str | None
    severities: list[str]
    waits_until: datetime | None
    why: str | None
    limited: int


class Sender:
    """Works off the deliveries of one channel. Used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        route: Route,
        routes: Sequence[Route],
        *,
        clock: Clock,
        random: Random,
        stopping: threading.Event,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`routes`: of all channels, this one among them. `steady`: seconds that only grow, whatever the clock is set
        to."""
        self.name = route.channel.name
        self._store = store
        self._route = route
        self._routes = routes
        self._clock = clock
        self._random = random
        self._stopping = stopping
        self._failures = 0  # in a row
        self._steady = steady
        self._rests_until = -math.inf  # on the steady clock
        self._last_sent: float | None = None
        self._why: str | None = None
        self._limited = 0

    def state(self) -> Condition:
        """What is configured, and whether it rests; safe from any thread."""
        left = self._rests_until - self._steady()
        resting = left > 0
        return {
            "kind": self._route.kind,
            "severities": sorted(self._route.severities),
            "waits_until": self._clock() + timedelta(seconds=left) if resting else None,
            "why": self._why if resting else None,
            "limited": self._limited,
        }

    def run_once(self) -> Mapping[str, Any]:
        """Sends what is due, for half a minute at most. After a failure the channel rests, whatever else is due.

        Returns counts `sent, failed, dead` and the last error. Raises `StoreError`.
        """
        route_new(self._store, self._routes, self._clock())
        counts: Counter[str] = Counter()
        deadline = time.monotonic() + _BUDGET
        while not self._resting() and time.monotonic() < deadline:
            delivery = outbox.due(self._store, self.name, self._clock())
            if delivery is None or not self._take_turn():
                break
            counts[self._attempt(delivery)] += 1
        return {name: counts[name] for name in ("sent", "failed", "dead")}

    def _resting(self) -> bool:
        return self._stopping.is_set() or self._steady() < self._rests_until

    def _take_turn(self) -> bool:
        """Waits until the channel's pace allows a message; False when the service stops."""
        if self._last_sent is not None:
            self._stopping.wait(max(0.0, self._last_sent + self._route.channel.pace - time.monotonic()))
        return not self._stopping.is_set()

    def _attempt(self, delivery: Delivery) -> str:
        now = self._clock()
        if delivery.attempts and now - delivery.enqueued_at > GIVE_UP_AFTER:
            return self._give_up(delivery, delivery.last_error or "no attempt was completed")
        outbox.begin(self._store, delivery, now=now, next_at=now + self._again_after(delivery))
        try:
            receipt = self._route.channel.send(delivery.outgoing)
        except ChannelError as error:
            return self._failed(delivery, error)
        finally:
            self._last_sent = time.monotonic()
        outbox.sent(self._store, delivery, receipt, self._clock())
        self._failures, self._rests_until = 0, -math.inf
        return "sent"

    def _again_after(self, delivery: Delivery) -> timedelta:
        """How long a delivery rests whose attempt never ends: longer each time, if it is what kills the process."""
        settle = self._route.settle
        return max(settle, pause(delivery.attempts, "uncertain", None, self._random)) if delivery.attempts else settle

    def _give_up(self, delivery: Delivery, words: str) -> str:
        now = self._clock()
        LOGGER.error("channel %s: abandoned: %s", self.name, words)
        outbox.dead(self._store, delivery, words, now, _notice(delivery, words, now))
        return "dead"

    def _failed(self, delivery: Delivery, error: ChannelError) -> str:
        now = self._clock()
        words = f"{error.reason}: {error}"
        if error.reason == "refused":
            return self._give_up(delivery, words)
        self._failures += 1
        self._why = words
        self._limited += error.reason == "busy"
        if self._failures == 1:  # the outbox counts the others
            LOGGER.warning("channel %s: %s; it will be retried", self.name, words)
        uncertain = error.reason == "uncertain"
        wait = pause(max(delivery.attempts + 1, self._failures), error.reason, error.retry_after, self._random)
        self._rests_until = self._steady() + wait.total_seconds()
        # A channel that asked for more rests as a whole: what is stored must not wait for long after a clock was set.
        stored = min(wait, timedelta(seconds=_LONGEST))
        next_at = now + max(stored, self._route.settle) if uncertain else now + stored
        outbox.failed(self._store, delivery, words, uncertain=uncertain, next_at=next_at)
        return "failed"


def _notice(delivery: Delivery, words: str, now: datetime) -> Notification | None:
    """Tells the other channels that a message was given up; an abandoned notice is not reported."""
    lost = delivery.outgoing.notification
    if lost.undelivered is not None:
        return None
    return replace(
        lost,
        key=f"{UNDELIVERED}/{delivery.channel}/{lost.key}",
        rule=UNDELIVERED,
        episode=f"{UNDELIVERED}/{delivery.channel}/{lost.episode}",
        state="firing",
        at=now,
        summary=f"Channel {delivery.channel} did not accept this message ({words}): {lost.summary}",
        more=f"logprobe alerts ping {delivery.channel}",
        undelivered=delivery.channel,
        incident=None,
    )


def pause(attempts: int, reason: str, retry_after: float | None, random: Random) -> timedelta:
    """How long to wait after a failure.

    Args:
        attempts: failed attempts of this delivery so far, at least 1.
        reason: `ChannelError.reason`.
        retry_after: seconds that the channel asked for, if it did.
        random: source of the jitter.

    Returns:
        Between half and all of 2 s · 2^(attempts − 1), at most 5 min; never less than `retry_after`, and up to a second
        more.
    """
    if retry_after is not None:
        return timedelta(seconds=retry_after + random.random())
    longest = _SETUP if reason == "setup" else min(_LONGEST, _FIRST * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS))
    return timedelta(seconds=longest * (0.5 + random.random() / 2))
