"""Delivery of notifications: routing to channels and sending, with one pool thread per channel, back-off and rate
limit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Final, TypedDict, TypeVar

from logprobe.alerts.notification import UNDELIVERED, Notification
from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.outbox import Delivery
from logprobe.collectors.errors import ChannelError
from logprobe.monitor.service.jobs import Progress
from logprobe.monitor.store.store import Store

LOGGER: Final = logging.getLogger("logprobe.alerts")
Clock = Callable[[], datetime]
T = TypeVar("T")

GIVE_UP_AFTER: Final = timedelta(hours=24)  # later than that, an alert is history
_MOST_AT_ONCE: Final = 64  # channels that send at the same time
_BUDGET: Final = 30.0  # seconds of one run of a channel; the rest waits for the next
_SECONDS: Final = 60.0  # of one message, which may take many calls: a search of a busy channel
_LOOK_UP: Final = 0.05  # seconds between two looks at the stop event
_FIRST: Final = 2.0  # seconds
_LONGEST: Final = 300.0
_SETUP: Final = 60.0  # a person has to act first, and then wants to see it work
_MOST_DOUBLINGS: Final = 16


class Deadline:
    """Time limit of the calls of one channel.

    A socket's time limit restarts with each byte and does not cover name resolution. So each call runs in a separate
    thread, which is abandoned at the time limit or when the service stops. While an abandoned call hangs, no other
    message is sent, because the call may still succeed.
    """

    def __init__(self, seconds: float, stopping: threading.Event) -> None:
        """Set up the limit. `seconds`: limit of one call. `stopping`: event that ends the wait immediately."""
        self._seconds = seconds
        self._stopping = stopping
        self._left: Future[object] | None = None

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. Raise its error, or `ChannelError` (``uncertain``) after the time limit or a
        stop.
        """
        if self._left is not None and not self._left.done():
            raise ChannelError("uncertain", "an earlier call still hangs; wait for the retry")
        future: Future[T] = Future()
        threading.Thread(target=_fulfil, args=(future, work), name="logprobe-call", daemon=True).start()
        deadline = time.monotonic() + self._seconds
        while not future.done() and time.monotonic() < deadline and not self._stopping.is_set():
            wait([future], _LOOK_UP)
        if future.done():
            return future.result()
        self._left = future  # type: ignore[assignment]  # only ever asked whether it is done
        why = "the service stops" if self._stopping.is_set() else f"no response within {self._seconds:g} s"
        raise ChannelError("uncertain", why)


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - handed on to the thread that waits for it
        future.set_exception(error)


class Condition(TypedDict):
    """State of a channel.

    `kind`: kind in the settings, or None for a removed channel. `waits_until`, `why`: end and reason of the pause after
    a failure, or None.
    """

    kind: str | None
    severities: list[str]
    waits_until: datetime | None
    why: str | None


class Sender:
    """Worker for the deliveries of one channel. Only one thread at a time may use it."""

    def __init__(
        self,
        store: Store,
        route: Route,
        *,
        clock: Clock,
        random: Random,
        stopping: threading.Event,
        steady: Callable[[], float] = time.monotonic,
        seconds: float = _SECONDS,
    ) -> None:
        """Set up the sender. `steady`: monotonic clock in seconds. `seconds`: time limit of one message."""
        self._store = store
        self._channel, self._severities = route
        self._clock = clock
        self._random = random
        self._stopping = stopping
        self._steady = steady
        self._limit = Deadline(seconds, stopping)
        self._failures = 0  # in a row
        self._rests_until = self._paced_until = -math.inf  # on the steady clock
        self._why: str | None = None

    def state(self) -> Condition:
        """Return the configuration and the pause of the channel. Safe from any thread."""
        left = self._rests_until - self._steady()
        return {
            "kind": self._channel.kind,
            "severities": sorted(self._severities),
            "waits_until": self._clock() + timedelta(seconds=left) if left > 0 else None,
            "why": self._why if left > 0 else None,
        }

    def run_once(self) -> None:
        """Send the due messages, for half a minute at most. After a failure the channel pauses. Raise `StoreError`."""
        until = self._steady() + _BUDGET
        while self._rests_until <= self._steady() < until:
            delivery = outbox.due(self._store, self._channel.name, self._clock())
            if delivery is None or self._stopping.wait(max(0.0, self._paced_until - self._steady())):
                return
            self._attempt(delivery)

    def _attempt(self, delivery: Delivery) -> None:
        now = self._clock()
        if delivery.attempts and now - delivery.enqueued_at > GIVE_UP_AFTER:
            self._give_up(delivery, delivery.last_error or "no attempt was completed")
            return
        # One whose attempts never end, as they kill the process, rests longer each time.
        again = pause(delivery.attempts, "uncertain", None, self._random) if delivery.attempts else timedelta(0)
        outbox.begin(self._store, delivery, now=now, next_at=now + max(self._channel.settle, again))
        try:
            receipt = self._limit.run(partial(self._channel.send, delivery.outgoing))
        except ChannelError as error:
            self._failed(delivery, error)
        else:
            outbox.sent(self._store, delivery, receipt, self._clock())
            self._failures, self._rests_until = 0, -math.inf
        finally:
            self._paced_until = self._steady() + self._channel.pace

    def _failed(self, delivery: Delivery, error: ChannelError) -> None:
        words = f"{error.reason}: {error}"
        if error.reason == "refused":
            self._give_up(delivery, words)
            return
        self._failures += 1
        self._why = words
        if self._failures == 1:  # the outbox counts the others
            LOGGER.warning("channel %s: %s; it will be retried", delivery.channel, words)
        rest = pause(max(delivery.attempts + 1, self._failures), error.reason, error.retry_after, self._random)
        self._rests_until = self._steady() + rest.total_seconds()
        # A channel that asked for more rests as a whole: what is stored must not wait for long after a clock was set.
        stored = min(rest, timedelta(seconds=_LONGEST))
        uncertain = error.reason == "uncertain"
        now = self._clock()
        next_at = now + (max(stored, self._channel.settle) if uncertain else stored)
        outbox.failed(self._store, delivery, words, uncertain=uncertain, now=now, next_at=next_at)

    def _give_up(self, delivery: Delivery, words: str) -> None:
        now = self._clock()
        LOGGER.error("channel %s: abandoned: %s", delivery.channel, words)
        outbox.dead(self._store, delivery, words, now, _notice(delivery, words, now))


def _notice(delivery: Delivery, words: str, now: datetime) -> Notification | None:
    """Inform the other channels of an abandoned message, unless the message is itself such a notice."""
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
    """Return the pause after a failure in seconds.

    Args:
        attempts: failed attempts of this delivery so far, at least 1.
        reason: `ChannelError.reason`.
        retry_after: seconds that the channel requested, or None.
        random: source of the jitter.

    Returns:
        Between half and all of 2 s · 2^(attempts − 1), at most 5 min. At least `retry_after`, plus up to one second.
    """
    if retry_after is not None:
        return timedelta(seconds=retry_after + random.random())
    longest = _SETUP if reason == "setup" else min(_LONGEST, _FIRST * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS))
    return timedelta(seconds=longest * (0.5 + random.random() / 2))


class Dispatcher:
    """Dispatcher of one sender per channel. Only one thread at a time may call `run_once`."""

    def __init__(
        self,
        store: Store,
        routes: Callable[[], list[Route]],
        *,
        clock: Clock,
        random: Random,
        stopping: threading.Event,
        steady: Callable[[], float] = time.monotonic,
        seconds: float = _SECONDS,
    ) -> None:
        """Set up the delivery. `routes`: present channels, a new list after a change. `steady`, `seconds`: see
        `Sender`."""
        self._store = store
        self._routes = routes
        self._clock = clock
        self._sender = partial(
            Sender, store, clock=clock, random=random, stopping=stopping, steady=steady, seconds=seconds
        )
        self._taken: list[Route] = []
        self._senders: dict[str, Sender] = {}
        self._turns: dict[str, Future[None]] = {}  # newest of each channel
        self._logged: set[str] = set()  # errors of turns
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="logprobe-channel")

    def run_once(self) -> Progress:
        """Route new notifications and start every idle channel without waiting. Raise `StoreError`.

        A channel has one turn at a time. Changed settings take effect after the turn.
        """
        routes = self._routes()
        if routes is not self._taken:
            self._senders = {route.channel.name: self._sender(route) for route in routes}
            self._taken = routes
        routed = outbox.route(self._store, self._wanted, self._clock())
        problem = {}
        for name, sender in self._senders.items():
            turn = self._turns.get(name)
            if turn is not None and not turn.done():
                continue
            if turn is not None and (error := turn.exception()) is not None:
                # Other than the channel's own failures, which stand with its deliveries.
                problem = {"problem": f"channel {name}: {type(error).__name__}: {error}"}
                if str(error) not in self._logged:
                    self._logged.add(str(error))
                    LOGGER.error("channel %s fails; it will be tried again", name, exc_info=error)
            self._turns[name] = self._pool.submit(sender.run_once)
        return {"notifications": routed, "channels": len(routes), **problem}

    def _wanted(self, notification: Notification) -> list[str]:
        """Return the channels for a notification. A channel receives no notice of its own failure."""
        wanted = [channel.name for channel, severities in self._taken if notification.severity in severities]
        return [name for name in wanted if name != notification.undelivered]

    def senders(self) -> Mapping[str, Sender]:
        """Return the senders by channel, none before the first `run_once`."""
        return self._senders

    def close(self) -> None:
        """Wait until sending ends. The stop event must be set."""
        self._pool.shutdown(wait=True)
