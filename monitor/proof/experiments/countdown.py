"""Progress of an experiment: arms done, arms expected, and an estimate of the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_KEPT: Final = 0.5  # seconds; an arm that took less came from the cache and says nothing about the others
_WIDTH: Final = 20


class Countdown:
    """Progress line before each arm.

    Args:
        say: function that receives the line.
        clock: source of monotonic seconds.

    >>> seconds = iter([0.0, 30.0, 30.0, 60.0])
    >>> countdown = Countdown(print, lambda: next(seconds))
    >>> countdown.expect(4)
    >>> with countdown.arm("baseline: engine"):
    ...     pass
    [--------------------] 1/4: baseline: engine
    >>> with countdown.arm("dtype=float32"):
    ...     pass
    [=====---------------] 2/4, about 2 min left: dtype=float32
    """

    def __init__(
        self, say: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._expected = self._begun = self._done = 0
        self._durations: list[float] = []

    def expect(self, arms: int) -> None:
        """Add to the number of expected arms."""
        self._expected += arms

    @contextmanager
    def arm(self, words: str) -> Iterator[None]:
        """Show an arm while it runs."""
        self._begun += 1
        self._expected = max(self._expected, self._begun)
        self._say(f"{self._bar()} {self._begun}/{self._expected}{self._left()}: {words}")
        began = self._clock()
        yield
        took = self._clock() - began
        self._done += 1
        self._durations += [took] if took > _KEPT else []

    def _bar(self) -> str:
        full = _WIDTH * self._done // self._expected
        return f"[{'=' * full}{'-' * (_WIDTH - full)}]"

    def _left(self) -> str:
        if not self._durations:
            return ""
        mean = sum(self._durations) / len(self._durations)
        return f", about {math.ceil((self._expected - self._done) * mean / 60)} min left"
