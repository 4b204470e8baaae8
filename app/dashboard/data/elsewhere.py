"""Runs of other homes and services, for the Compare page: looked at in the background, so that one that hangs holds up no page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from logprobe.app.dashboard.access.settings import Access
from logprobe.app.runs import Run, runs_of
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.compare import Place
from logprobe.monitor.elsewhere import Briefly, name_at

_FRESH_SECONDS: Final = 5.0
_PATIENCE: Final = 2.0  # for the first look; later ones are waited for by nobody


@dataclass(frozen=True)
class Elsewhere:
    """Runs by the name that they have here, and one line for each place that could not be read."""

    runs: Mapping[str, Run]
    problems: tuple[str, ...]


class OtherPlaces:
    """Homes and services besides the dashboard's own. Thread-safe."""

    def __init__(
        self, places: Sequence[str], *, read: Callable[[str], pa.Table] = lambda where: Briefly(where).read("app_runs")
    ) -> None:
        """`read`: rows of `app_runs` of a place."""
        self._places = tuple(places)
        self._read = read
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, len(places)), thread_name_prefix="elsewhere")
        self._looks: dict[str, tuple[float, Future[pa.Table]]] = {}  # under way, or the last
        self._known: dict[str, pa.Table] = {}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> OtherPlaces:
        """Those that `logprobe up --also` was given."""
        return cls(Access.of(environment).also)

    def look(self) -> Elsewhere:
        """What is known now; waits a moment for places that were never read."""
        with self._lock:
            looks = {where: self._look(where) for where in self._places}
        wait([look for where, look in looks.items() if where not in self._known], timeout=_PATIENCE)
        problems = []
        for where, look in looks.items():
            if not look.done():
                problems += [] if where in self._known else [f"{where} has not answered yet"]
                continue
            try:
                self._known[where] = look.result()
            except LogprobeError as error:
                problems.append(str(error).partition("\n")[0])
        return Elsewhere(self._runs(), tuple(problems))

    def place(self, name: str) -> Place | None:
        """Where to read a run from, by its name here; None: it is not one of these."""
        for where, rows in self._known.items():
            for run in rows["run"].to_pylist():
                if name_at(where, run) == name:
                    return Place(name, run, Briefly(where))
        return None

    def _look(self, where: str) -> Future[pa.Table]:
        begun, look = self._looks.get(where, (0.0, None))
        if look is None or (look.done() and time.monotonic() - begun >= _FRESH_SECONDS):
            look = self._pool.submit(self._read, where)
            self._looks[where] = (time.monotonic(), look)
        return look

    def _runs(self) -> dict[str, Run]:
        return {
            name_at(where, run.name): replace(run, name=name_at(where, run.name))
            for where, rows in self._known.items()
            for run in runs_of(rows, datetime.now(UTC))
        }
