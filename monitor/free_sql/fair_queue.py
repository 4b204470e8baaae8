"""Whose query runs next: few at once, each client in turn, and none all places: one that asks a lot keeps nobody else waiting."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logprobe.collectors.errors import QueryError
from logprobe.monitor.free_sql.limits import Limits

_LOOK_SECONDS = 0.1

Client = tuple[str, str]  # the process that asks, and on whose behalf


@dataclass(eq=False, slots=True)
class _Waiting:
    client: Client
    mine: bool = False
    lost: bool = False  # its place in the queue, to somebody with a shorter one


class FairQueue:
    """A queue for `Limits.at_once` places. Safe to share between threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._running: list[Client] = []
        self._waiting: list[_Waiting] = []

    @contextmanager
    def of(self, client: Client, stop: threading.Event | None) -> Iterator[None]:
        """A place for the block, once it is this client's turn. Raises `QueryError` when it never is, or `stop` is set."""
        self._take(client, stop)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(client)
                self._admit()

    def _take(self, client: Client, stop: threading.Event | None) -> None:
        place = _Waiting(client)
        with self._changed:
            self._waiting.append(place)
            self._admit()
            self._shorten()
            try:
                self._await(place, stop)
            except BaseException:
                if place.mine:
                    self._running.remove(client)
                elif not place.lost:
                    self._waiting.remove(place)
                self._admit()
                raise

    def _await(self, place: _Waiting, stop: threading.Event | None) -> None:
        seconds = self._limits.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        while not place.mine:
            if place.lost:
                raise QueryError(
                    f"{self._limits.waiting} queries are waiting already, most of them of this client; try again when "
                    "they have finished"
                )
            self._changed.wait(_LOOK_SECONDS)
            if stop is not None and stop.is_set():
                raise QueryError("the query was stopped")
            if deadline is not None and time.monotonic() > deadline and not place.mine and not place.lost:
                raise QueryError(
                    f"no free slot within {seconds:g} s: {self._limits.at_once} queries run at once, and others were first; try again"
                )

    def _admit(self) -> None:
        """Gives free places to those whose processes, and then clients, run least, the longest waiting first."""
        most = max(1, self._limits.at_once - 1)
        while len(self._running) < self._limits.at_once:
            processes, clients = Counter(process for process, _ in self._running), Counter(self._running)
            free = [place for place in self._waiting if processes[place.client[0]] < most]
            if not free:
                break
            chosen = min(free, key=lambda place: (processes[place.client[0]], clients[place.client]))
            self._waiting.remove(chosen)
            self._running.append(chosen.client)
            chosen.mine = True
        self._changed.notify_all()

    def _shorten(self) -> None:
        """Of a queue that is too long, the last of the process, and of it the client, with the longest queue loses its place."""
        if len(self._waiting) <= self._limits.waiting:
            return
        clients = Counter(place.client for place in self._waiting)
        processes = Counter(place.client[0] for place in self._waiting)
        loser = max(reversed(self._waiting), key=lambda place: (processes[place.client[0]], clients[place.client]))
        self._waiting.remove(loser)
        loser.lost = True
        self._changed.notify_all()
