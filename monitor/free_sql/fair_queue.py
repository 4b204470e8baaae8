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


@dataclass(eq=False, slots=True)
class _Waiting:
    client: str
    mine: bool = False


class FairQueue:
    """A queue for `Limits.at_once` places. Safe to share between threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @contextmanager
    def of(self, client: str, stop: threading.Event | None) -> Iterator[None]:
        """A place for the block, once it is this client's turn. Raises `QueryError` when it never is, or `stop` is set."""
        self._take(client, stop)
        try:
            yield
        finally:
            with self._changed:
                self._running[client] -= 1
                self._running += Counter()  # forgets who runs nothing
                self._admit()

    def _take(self, client: str, stop: threading.Event | None) -> None:
        place = _Waiting(client)
        with self._changed:
            if len(self._waiting) >= self._limits.waiting:
                raise QueryError(f"{len(self._waiting)} queries are waiting already; try again when they have finished")
            self._waiting.append(place)
            self._admit()
            try:
                self._await(place, stop)
            except BaseException:
                if place.mine:
                    self._running[client] -= 1
                else:
                    self._waiting.remove(place)
                self._admit()
                raise

    def _await(self, place: _Waiting, stop: threading.Event | None) -> None:
        seconds = self._limits.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        while not place.mine:
            self._changed.wait(_LOOK_SECONDS)
            if stop is not None and stop.is_set():
                raise QueryError("the query was stopped")
            if deadline is not None and time.monotonic() > deadline and not place.mine:
                raise QueryError(
                    f"no free slot within {seconds:g} s: {self._limits.at_once} queries run at once, and others were first; try again"
                )

    def _admit(self) -> None:
        """Gives free places to those whose clients run least, the longest waiting first."""
        most = max(1, self._limits.at_once - 1)
        while self._running.total() < self._limits.at_once:
            free = [each for each in self._waiting if self._running[each.client] < most]
            if not free:
                break
            chosen = min(free, key=lambda each: self._running[each.client])
            self._waiting.remove(chosen)
            self._running[chosen.client] += 1
            chosen.mine = True
        self._changed.notify_all()
