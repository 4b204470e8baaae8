"""Runs of other data directories (`logprobe up --also`), read in the background so that none delays a page."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Final

import pyarrow as pa

from logprobe.app.dashboard.access.settings import Access
from logprobe.app.runs import Run, runs_of
from logprobe.app.text.runs import Glance, worst_first
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.elsewhere import Briefly, name_at

_FRESH_SECONDS: Final = 5.0
_PATIENCE: Final = 2.0  # for the first look; no page waits for later ones


MOST: Final = 50  # runs of a place, the worst first, that are looked at more closely
Known = tuple[pa.Table, Mapping[str, Glance]]  # rows of `app_runs`; rows of `app_runs_glance` by run


def read_place(where: str) -> Known:
    """Read the runs of a place. Raises `LogprobeError`."""
    source = _source(where)
    rows = queries.app_runs(source)
    names = [run.name for run in worst_first(runs_of(rows, datetime.now(UTC)))[:MOST]]
    glances = queries.app_runs_glance(source, runs=names).to_pylist() if names else []
    return rows, {row["run"]: row for row in glances}


@cache
def _source(where: str) -> Briefly:
    """Return the source of a place. Its connection lasts as long as the process."""
    return Briefly(where)


@dataclass(frozen=True)
class Elsewhere:
    """Runs of other places by local name, their glances, and the errors of unreadable places.

    `glances`: rows of `app_runs_glance`, of at most `MOST` runs of each place.
    """

    runs: Mapping[str, Run]
    problems: tuple[str, ...]
    glances: Mapping[str, Glance] = field(default_factory=dict)


class OtherPlaces:
    """Data directories besides that of the dashboard. Thread-safe."""

    def __init__(self, places: Sequence[str], *, read: Callable[[str], Known] | None = None) -> None:
        """Prepare for reading the places. `read`: function that reads one place, by default `read_place`."""
        self._places = tuple(places)
        self._read = read or read_place
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, len(places)), thread_name_prefix="elsewhere")
        self._reads: dict[str, Future[None]] = {}  # the last
        self._ended: dict[str, float] = {}
        self._known: dict[str, Known] = {}
        self._problems = {where: f"{where} has not answered yet" for where in places}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> OtherPlaces:
        """Return the places that `logprobe up --also` was given."""
        return cls(Access.of(environment).also)

    def look(self) -> Elsewhere:
        """Return the last known state, after a short wait for places that were never read."""
        with self._lock:
            for where in self._places:
                last = self._reads.get(where)
                if last is None or (last.done() and time.monotonic() - self._ended[where] >= _FRESH_SECONDS):
                    self._reads[where] = self._pool.submit(self._take_in, where)
        wait([read for where, read in self._reads.items() if where not in self._known], timeout=_PATIENCE)
        glances = {
            name_at(where, run): row for where, (_, rows) in list(self._known.items()) for run, row in rows.items()
        }
        return Elsewhere(self._runs(), tuple(filter(None, self._problems.values())), glances)

    def place(self, name: str) -> Place | None:
        """Return the place of a run by its local name, or None if the run is not from another place."""
        for where, (rows, _) in list(self._known.items()):
            for run in rows["run"].to_pylist():
                if name_at(where, run) == name:
                    return Place(name, run, _source(where))
        return None

    def _take_in(self, where: str) -> None:
        try:
            self._known[where] = self._read(where)
            self._problems[where] = ""
        except LogprobeError as error:
            self._problems[where] = str(error).partition("\n")[0]
        finally:
            self._ended[where] = time.monotonic()

    def _runs(self) -> dict[str, Run]:
        return {
            name_at(where, run.name): replace(run, name=name_at(where, run.name))
            for where, (rows, _) in list(self._known.items())
            for run in runs_of(rows, datetime.now(UTC))
        }


@cache
def other_places() -> OtherPlaces:
    """Return the other places of this process's dashboard."""
    return OtherPlaces.of(os.environ)
