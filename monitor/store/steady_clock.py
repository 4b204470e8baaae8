"""Whether the wall clock can be trusted with what is removed by its age: one that has just been set may be wrong by years."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LOGGER: Final = logging.getLogger("logprobe.store")
_STEADY_SECONDS: Final = 3600.0  # by then whoever sets clocks has set this one
_STEP_SECONDS: Final = 60.0  # slewing is slower, and a suspended machine starts over, which costs nothing


class SteadyClock:
    """Compares the wall clock with the monotonic one, from its making on. Used by one thread at a time."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._start_over()

    def _start_over(self) -> None:
        self._since = self._monotonic()
        self._offset = self._wall() - self._since

    def is_steady(self) -> bool:
        """Whether an hour has gone by without a step. Ask more often than that."""
        step = self._wall() - self._monotonic() - self._offset
        if abs(step) > _STEP_SECONDS:
            LOGGER.warning("the clock was set by %+.0f s: nothing is removed by its age for the next hour", step)
            self._start_over()
        return self._monotonic() - self._since >= _STEADY_SECONDS
