"""Results of the probe as records of the run, by the way that all records take: scalars of a step, and health records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

from logprobe.collectors.health import Problem
from logprobe.collectors.recorder.runtime import new_writer_id
from logprobe.collectors.recorder.writer import rows_table
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.look import Look, Reason

COMPONENT: Final = "probe"
_PAUSE: Final = 600.0  # seconds
_WARNINGS: Final = frozenset({"engine", "discarded"})


def scalars(found: Look) -> dict[str, float]:
    """What is recorded of a look: its price always, its result where there is one."""
    values: dict[str, float | None] = {"probe/scored_tokens": float(found.scored)}
    if found.gap is not None:
        values |= {
            "probe/k3": found.gap.k3,
            "probe/abs_diff_mean": found.gap.abs_diff_mean,
            "probe/tokens": float(found.gap.tokens),
            "probe/cached_k3": None if found.cached is None else found.cached.k3,
            "probe/uncached_k3": None if found.uncached is None else found.uncached.k3,
        }
    return {name: value for name, value in values.items() if value is not None}


class ProbeWriter:
    """Writes into one run; belongs to one thread."""

    def __init__(self, home: Home, run: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._spool = SpoolWriter(home.path, run, new_writer_id(COMPONENT))
        self._clock = clock
        self._last: Reason | None = None
        self._said: dict[Reason, float] = {}

    def record(self, found: Look, step: int) -> None:
        """Writes a look as scalars of a step. Raises `OSError`."""
        self._write("step", {"time": time.time_ns() // 1000, "step": step, "scalars": list(scalars(found).items())})

    def say(self, found: Look) -> None:
        """Notes why there is no result: every discarded one, else once until something else happens. Raises `OSError`."""
        last, self._last = self._last, found.reason
        if found.reason is None:
            if last == "engine":
                self._note("works", "info", "the engine scores sequences again")
        elif found.reason == "discarded" or (found.reason != last and not self._recently(found.reason)):
            self._note(found.reason, "warning" if found.reason in _WARNINGS else "info", found.why)

    def _recently(self, reason: Reason) -> bool:
        """Whether a reason that comes and goes was noted a short time ago; remembers it."""
        now = self._clock()
        recently = reason != "engine" and now - self._said.get(reason, -math.inf) < _PAUSE
        if not recently:
            self._said[reason] = now
        return recently

    def _note(self, event: str, severity: str, message: str) -> None:
        self._write("health", Problem(f"{COMPONENT}_{event}", severity, message).row(COMPONENT))

    def _write(self, kind: str, row: dict[str, Any]) -> None:
        self._spool.write(kind, rows_table(kind, [row]))
