"""Values that cost too much to be computed at every look: kept, and recomputed when it is worth it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_KEPT: Final = 32


@dataclass(frozen=True)
class Cached(Generic[T]):
    """A value, the state that it was computed from, and whether there is a newer one by now."""

    value: T
    state: Hashable
    old: bool = False


@dataclass(frozen=True)
class _Entry:
    cached: Cached[Any]
    seconds: float
    at: float


class StaleCache:
    """Remembers the values last computed. Thread-safe; an old value never waits for a newer one to be computed."""

    def __init__(
        self,
        kept: int = _KEPT,
        *,
        rest: float = 5.0,
        times: float = 20.0,
        at_once: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kept`: values; the one asked for longest ago is forgotten first. `clock`: seconds that only grow.

        Between two computations of a value whose run continues are `rest` seconds, and so many `times` what it took: 20
        is a twentieth of one core at most. `at_once`: computations; more than one where they wait for other places
        rather than for the processor.
        """
        self._most, self._rest, self._times = kept, rest, times
        self._clock = clock
        self._lock = threading.Lock()
        self._computing = threading.BoundedSemaphore(at_once)
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, state: Hashable, compute: Callable[[], T]) -> Cached[T]:
        """What `compute` returned for `state`, or for an earlier one when it was computed only a short time ago.

        Args:
            key: what is asked for; another key is computed at once.
            state: what the value depends on besides; another one makes the value an old one.
            compute: called under a limit, and may not ask for another value. What it raises is raised, and the value
                that there was is kept.
        """
        entry = self._entry(key)
        if entry is None:
            with self._computing:
                entry = self._entry(key) or self._computed(key, state, compute)
        elif self._due(entry, state) and self._computing.acquire(blocking=False):
            try:
                entry = self._computed(key, state, compute)
            finally:
                self._computing.release()
        return replace(entry.cached, old=entry.cached.state != state)

    def _entry(self, key: Hashable) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _due(self, entry: _Entry, state: Hashable) -> bool:
        rested = self._clock() - entry.at >= max(self._rest, self._times * entry.seconds)
        return rested and entry.cached.state != state

    def _computed(self, key: Hashable, state: Hashable, compute: Callable[[], T]) -> _Entry:
        began = self._clock()
        value = compute()
        now = self._clock()
        with self._lock:
            self._entries[key] = entry = _Entry(Cached(value, state), now - began, now)
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return entry
