"""Looks at one engine now and then while the home is served, and records what it finds.

A result is held until the next step is trained, and recorded with it: rules judge every step once, as soon as it is
complete. Until then it is also seen whether the weights changed in between.

Results of the probe as records of the run, by the way that all records take: scalars of a step, and health records.

What the probe may do, as an entry of the section ``probe`` or the arguments of `logprobe probe` say.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from logprobe.collectors.health import Problem
from logprobe.collectors.recorder.runtime import new_writer_id
from logprobe.collectors.recorder.tables import rows_table
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.engine import Engine
from logprobe.monitor.proof.live.look import SETTLE, Look, ProbeSettings, Reason, confirmed, look
from logprobe.monitor.store.store import Store

_OVER: Final = timedelta(hours=1)  # a run without a new sequence for so long has ended
_LONGEST_HOLD: Final = 1800.0  # seconds; then it is recorded with the newest step there is
COMPONENT: Final = "probe"
_PAUSE: Final = 600.0  # seconds
_WARNINGS: Final = frozenset({"engine", "discarded"})


@dataclass(slots=True)
class _Held:
    """A look that waits for its step."""

    result: Look
    since: float
    after: int | None  # newest step trained before


class Prober:
    """One engine; used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        settings: ProbeSettings,
        engine: Engine,
        stopping: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._settings, self._engine = store, settings, engine
        self._stopping, self._clock = stopping, clock
        self._run: str | None = None
        self._writer: ProbeWriter | None = None
        self._after: datetime | None = None
        self._held: _Held | None = None
        self._due = clock()
        self._status: dict[str, object] = {"url": settings.url, "state": "no run"}

    def tick(self) -> dict[str, object]:
        """Looks if it is time, or records what is held; says how it stands. Raises `StoreError`, `QueryError` or
        `OSError`."""
        if self._held is not None:
            self._settle(self._held)
        elif self._clock() >= self._due:
            self._due = self._clock() + self._settings.every
            self._look()
        return self._status

    def close(self) -> None:
        """Records what a held look cost, and its result if it can be trusted by now. Raises as `tick`."""
        if self._held is not None:
            self._finish(self._held, self._steps(self._held)["newest"])

    def _look(self) -> None:
        run = self._newest_run()
        if run is None:
            return
        writer = self._writer_of(run)
        result = look(
            self._store,
            self._store.home,
            run,
            self._engine,
            self._settings,
            after=self._after,
            stopping=self._stopping.is_set,
        )
        self._after = result.newest or self._after
        self._status = {
            "url": self._settings.url,
            "run": run,
            "state": result.reason or "ok",
            "why": result.why or None,
        }
        if result.reason != "no_sequence" or self._after is None:
            writer.say(result)
        if result.scored:
            self._held = _Held(result, self._clock(), None)
            self._held.after = self._steps(self._held)["newest"]

    def _newest_run(self) -> str | None:
        rows = queries.probe_run(self._store).to_pylist()
        recent = datetime.now(UTC) - _OVER
        names = (row["run"] for row in rows if row["last_at"] is not None and row["last_at"] > recent)
        return next((name for name in names if self._settings.wants(name)), None)

    def _writer_of(self, run: str) -> ProbeWriter:
        if self._writer is None or run != self._run:
            self._writer, self._run, self._after = ProbeWriter(self._store.home, run), run, None
        return self._writer

    def _settle(self, held: _Held) -> None:
        waited, steps = self._clock() - held.since, self._steps(held)
        if waited < SETTLE.total_seconds():
            held.after = steps["newest"]
        elif steps["following"] is not None:
            self._finish(held, steps["following"])
        elif waited > _LONGEST_HOLD:
            self._finish(held, steps["newest"])

    def _steps(self, held: _Held) -> queries.ProbeSteps:
        return queries.probe_steps(self._store, run=held.result.run, after=held.after).to_pylist()[0]

    def _finish(self, held: _Held, step: int | None) -> None:
        self._held, result = None, held.result
        if self._clock() - held.since < SETTLE.total_seconds() and result.gap is not None:
            result = result.without_gap(
                "discarded", "the service stopped before it was known whether the weights changed"
            )
        result = confirmed(result, self._store, self._store.home, self._settings.replica)
        writer = self._writer_of(result.run)
        if result.reason != held.result.reason:
            writer.say(result)
        if step is not None:
            writer.record(result, step)


def scalars(result: Look) -> dict[str, float]:
    """What is recorded of a look: its price always, its result where there is one."""
    values: dict[str, float | None] = {"probe/scored_tokens": float(result.scored)}
    if result.gap is not None:
        values |= {
            "probe/k3": result.gap.k3,
            "probe/abs_diff_mean": result.gap.abs_diff_mean,
            "probe/tokens": float(result.gap.tokens),
            "probe/cached_k3": None if result.cached is None else result.cached.k3,
            "probe/uncached_k3": None if result.uncached is None else result.uncached.k3,
        }
    return {name: value for name, value in values.items() if value is not None}


class ProbeWriter:
    """Writes into one run; belongs to one thread."""

    def __init__(self, home: Home, run: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._spool = SpoolWriter(home.path, run, new_writer_id(COMPONENT))
        self._clock = clock
        self._last: Reason | None = None
        self._said: dict[Reason, float] = {}

    def record(self, result: Look, step: int) -> None:
        """Writes a look as scalars of a step. Raises `OSError`."""
        self._write("step", {"time": time.time_ns() // 1000, "step": step, "scalars": list(scalars(result).items())})

    def say(self, result: Look) -> None:
        """Notes why there is no result: every discarded one, else once until something else happens. Raises
        `OSError`."""
        last, self._last = self._last, result.reason
        if result.reason is None:
            if last == "engine":
                self._note("works", "info", "the engine scores sequences again")
        elif result.reason == "discarded" or (result.reason != last and not self._recently(result.reason)):
            self._note(result.reason, "warning" if result.reason in _WARNINGS else "info", result.why)

    def _recently(self, reason: Reason) -> bool:
        """Whether a reason that comes and goes was noted a short time ago; remembers it."""
        now = self._clock()
        recently = reason != "engine" and now - self._said.get(reason, -math.inf) < _PAUSE
        if not recently:
            self._said[reason] = now
        return recently

    def _note(self, event: str, severity: str, message: str) -> None:
        self._write("health", Problem(f"{COMPONENT}_{event}", severity, message).row(COMPONENT))

    def _write(self, kind: str, row: Mapping[str, Any]) -> None:
        self._spool.write(kind, rows_table(kind, [row]))
