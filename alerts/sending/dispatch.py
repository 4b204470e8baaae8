"""Every channel works off its deliveries in its own thread; what changes in the settings is applied while the service
runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final

from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending import actions
from logprobe.alerts.sending.channels.settings import SECTION, Route, channels_of
from logprobe.alerts.sending.delivery import Clock, Sender, route_new
from logprobe.monitor.service.jobs import Job, Part, Progress
from logprobe.monitor.store.store import Store

SECONDS: Final = 1.0
_MOST_AT_ONCE: Final = 64  # channels that send at the same time


class Dispatcher:
    """Keeps one sender per channel at work. `run_once` belongs to one thread at a time."""

    def __init__(
        self,
        store: Store,
        routes: Callable[[], list[Route]],
        *,
        clock: Clock,
        random: Random,
        stopping: threading.Event,
    ) -> None:
        """`routes`: the channels as they are now; another list when they have changed."""
        self._store = store
        self._routes = routes
        self._clock = clock
        self._random = random
        self._stopping = stopping
        self._taken: list[Route] | None = None
        self._senders: dict[str, Sender] = {}
        self._jobs: dict[str, Job] = {}
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="logprobe-channel")

    def run_once(self) -> Progress:
        """Routes what is new and lets every channel that is idle begin; returns at once. Raises `StoreError`."""
        routes = self._routes()
        if routes is not self._taken:
            self._take_over(routes)
        routed = route_new(self._store, routes, self._clock())
        for name in self._senders:
            self._pool.submit(self._jobs[name].run)
        return {"notifications": routed, "channels": len(routes), **self._failing()}

    def senders(self) -> Mapping[str, Sender]:
        """By name of the channel; none before the first `run_once`."""
        return self._senders

    def close(self) -> None:
        """Returns when sending has ended. The event has been set, so this takes as long as one call."""
        self._pool.shutdown(wait=True)

    def _take_over(self, routes: list[Route]) -> None:
        senders = {
            route.channel.name: Sender(
                self._store, route, routes, clock=self._clock, random=self._random, stopping=self._stopping
            )
            for route in routes
        }
        for name in senders.keys() - self._jobs.keys():
            self._jobs[name] = Job(f"channel {name}", SECONDS, partial(self._work, name))
        self._senders, self._taken = senders, routes

    def _work(self, name: str) -> Mapping[str, Any]:
        """A turn of a channel. One at a time under its name: settings that changed wait until the old ones are done."""
        sender = self._senders.get(name)
        return {} if sender is None else sender.run_once()

    def _failing(self) -> dict[str, str]:
        """What keeps channels from being served at all, other than the channel itself: that stands with its
        deliveries."""
        errors = [self._jobs[name].account().last_error for name in self._senders]
        return next(({"problem": error} for error in errors if error is not None), {})


def part(store: Store, stopping: threading.Event) -> Part:
    """The sender as a part of the service. Raises `ConfigurationError` when a channel is not configured as it must be.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """

    def clock() -> datetime:
        return datetime.now(UTC)

    def read() -> list[Route]:
        return channels_of(store.home, environment=os.environ, stopping=stopping, clock=clock)

    routes = Reloaded(store.home.path, SECTION, read)
    dispatcher = Dispatcher(store, routes.current, clock=clock, random=Random(), stopping=stopping)  # noqa: S311 - jitter
    work = Job("delivery", SECONDS, lambda: {**dispatcher.run_once(), **routes.report()})
    counter = actions.ChannelActions(store, dispatcher.senders, lambda: routes.problem, stopping=stopping, clock=clock)
    return Part(jobs=[work], actions=counter.actions(), close=dispatcher.close)
