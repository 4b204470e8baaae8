"""Order of turns for every stage that works run by run.

A stage reports its due runs and their priority (`Stage.due`). The order is armed live runs, runs that a user waits for,
live runs, runs that have ended since their last turn, runs new to the stage, and other ended runs. Ended runs have one
turn and rest until a change. Among equals, the longest waiting run is next. Every tenth turn takes the longest waiting
run of all, so that no run starves. After a turn, the runs are read again, at most once per second. An urgent run
therefore waits for at most one turn and a second. Live runs with short last turns share a turn, with one statement for
the new data of all.

The cost of a turn is processor time of this thread, which does not depend on the load of the machine. In a paced stage,
each priority has a share of a core, and a run rests for a multiple of its last cost. A resting run is skipped without
delaying others. A failing run rests, is named in the report, and is retried.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, Protocol

import pyarrow as pa

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.service.jobs import INCOMPLETE

LOGGER: Final = logging.getLogger("logprobe.service")
Row = Mapping[str, Any]  # what a stage knows of a run that may be due: at least `run`, and `live` where it knows

BURST: Final = 10.0  # seconds of processor time that a priority may have before its share holds
_LONGEST_WAITING: Final = 10  # every so many turns it is that of whoever has waited longest, whatever its priority
_AFTER_FAILURE: Final = 15.0  # seconds that a run rests
_LOOK: Final = 1.0  # seconds for which a look at the runs holds: with many it costs as much as a short turn
_TOGETHER: Final = 0.5  # seconds of processor time of a turn of several runs: so long an armed one may wait
_TICK: Final = 5.0  # seconds after which a tick ends, so that its account is seen; the next goes on


class Priority(IntEnum):
    """Urgency of a run's turn. A smaller value comes sooner."""

    ARMED = 0  # live, and a correction may be switched
    AWAITED = 1  # somebody waits for it
    LIVE = 2
    LAST = 3  # no longer live, but it was at its last turn
    FIRST = 4  # no longer live, and never looked at
    ENDED = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of one priority: share of a core, pause of a run as a multiple of its last cost, and runs per short turn,
    or None for the stage's number.
    """

    share: float
    rest: float = 0.0
    together: int | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    rests_until: float
    live: bool
    words: str


class Stage(Protocol):
    """Work on runs, a few of them in each turn."""

    name: str
    together: int  # runs of one turn: a small statement takes milliseconds, whatever it reads

    def rows(self) -> Sequence[Row]:
        """Return the runs that may be due."""

    def due(self, row: Row) -> Priority | None:
        """Return the urgency of the run's turn, or None without work."""

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Take one turn of these runs and return counts. Raises a run's error, after which the runs are retried one by
        one.
        """


def as_of(runs: pa.Table, now: datetime) -> list[Row]:
    """Return the runs as of `now`, each row with `live` derived from its `live_until`."""
    rows: list[dict[str, Any]] = runs.to_pylist()
    return [{**row, "live": row["live_until"] is not None and now <= row["live_until"]} for row in rows]


def priority(*, live: bool, armed: bool, awaited: bool = False, first: bool = False, last: bool = False) -> Priority:
    """Return the priority of a run, in an order common to all stages.

    `live`: true while steps arrive. `armed`: true if a correction may be switched. `awaited`: true if a user waits.
    `first`: true if the stage never processed it. `last`: true if the stage processed it only while it was live.
    """
    if live and armed:
        return Priority.ARMED
    if awaited:
        return Priority.AWAITED
    if live:
        return Priority.LIVE
    if last:
        return Priority.LAST
    return Priority.FIRST if first else Priority.ENDED


class Turns:
    """Turns of one stage. Only one thread at a time may use them."""

    def __init__(
        self,
        stage: Stage,
        stopping: threading.Event | None = None,
        *,
        paces: Mapping[Priority, Pace] | None = None,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """Set up the turns. `stopping`: event that ends work after the current turn. `paces`: limits by priority, none
        for a missing one.

        `clock`: seconds. `processor`: processor seconds of the calling thread.
        """
        self._stage = stage
        self._stopping = stopping or threading.Event()
        self._paces = paces or {}
        self._clock = clock
        self._processor = processor
        self._served: dict[str, float] = {}  # when the last turn ended
        self._order: dict[str, int] = {}  # place among all turns: those of one turn end at one time
        self._cost: dict[str, float] = {}  # of the last turn
        self._paid_until: dict[Priority, float] = {}  # when what it has had is its share again
        self._failing: dict[str, _Failure] = {}  # runs whose last turn failed
        self._places = itertools.count()
        self._turns = 0
        self._works = False  # whether some run's turn has succeeded
        self._logged: set[tuple[str, str]] = set()

    def run_once(self) -> dict[str, object]:
        """Take turns until nothing is due, or for some seconds, at most one per run.

        Returns the stage's counts, ``runs``, ``waiting`` (due but paused), and ``problem`` if runs fail, with
        `INCOMPLETE` if one of them is live. Raises the first error if all runs fail, since the cause is then common.
        """
        counts: Counter[str] = Counter(runs=0)
        errors: list[Exception] = []
        had: set[str] = set()
        waiting = 0
        rows: Sequence[Row] = ()
        begun, looked = self._clock(), -math.inf
        while not self._stopping.is_set() and self._clock() - begun < _TICK:
            if self._clock() - looked >= _LOOK:
                rows, looked = self._stage.rows(), self._clock()
            chosen, ready, due = self._next(rows, had)
            waiting = due - len(chosen)
            if chosen:
                had.update(row["run"] for _, row in chosen)
                self._turn(chosen, counts, errors)
            if ready == len(chosen):
                break
        if errors and not counts["runs"] and (len(errors) > 1 or not self._works):
            self._works = False
            self._failing.clear()
            raise errors[0]
        self._works |= counts["runs"] > 0
        return {**counts, "waiting": waiting, **self._problem()}

    def _next(self, rows: Sequence[Row], had: set[str]) -> tuple[list[tuple[Priority, Row]], int, int]:
        """Choose the runs of the next turn from `rows`, without runs that had one. Also return the numbers of eligible
        and due runs.
        """
        left = (row for row in rows if row["run"] not in had)
        due = [(matters, row) for row in left if (matters := self._stage.due(row)) is not None]
        if not had:  # one that is no longer due, as it was deleted, fails no longer
            self._failing = {row["run"]: self._failing[row["run"]] for _, row in due if row["run"] in self._failing}
        now = self._clock()
        ready = [entry for entry in due if self._may(entry[0], entry[1]["run"], now)]
        every = self._turns % _LONGEST_WAITING == _LONGEST_WAITING - 1
        ready.sort(key=lambda entry: (not every and entry[0], self._order.get(entry[1]["run"], -1)))
        self._turns += 1
        return self._together(ready), len(ready), len(due)

    def _together(self, ready: Sequence[tuple[Priority, Row]]) -> list[tuple[Priority, Row]]:
        """Return the first run and the following runs of the same priority, within the expected length of a short
        turn.
        """
        if not ready:
            return []
        first, row = ready[0]
        pace = self._paces.get(first)
        if pace is None or pace.together is None:
            return list(ready[: self._stage.together])
        chosen, spent = [ready[0]], self._cost.get(row["run"], math.inf)
        for entry in ready[1 : pace.together]:
            spent += self._cost.get(entry[1]["run"], math.inf)
            if entry[0] is not first or spent > _TOGETHER:
                break
            chosen.append(entry)
        return chosen

    def _may(self, matters: Priority, run: str, now: float) -> bool:
        if run in self._failing and self._failing[run].rests_until > now:
            return False
        pace = self._paces.get(matters)
        if pace is None:
            return True
        rested = self._served.get(run, -math.inf) + pace.rest * self._cost.get(run, 0.0) <= now
        return rested and self._paid_until.get(matters, now) <= now + BURST / pace.share

    def _turn(self, chosen: Sequence[tuple[Priority, Row]], counts: Counter[str], errors: list[Exception]) -> None:
        before = self._processor()
        failed: Exception | None = None
        try:
            counts.update(self._stage.run([row for _, row in chosen]))
        except Exception as error:  # noqa: BLE001 - one run's error, whatever it is, must not end the turns of the others
            failed = error
        self._account(chosen, self._processor() - before)
        if failed is None:
            counts["runs"] += len(chosen)
            for _, row in chosen:
                self._failing.pop(row["run"], None)
        elif len(chosen) == 1:
            errors.append(failed)
            self._failed(chosen[0][1], failed)
        else:
            for turn in chosen:
                self._turn([turn], counts, errors)

    def _account(self, chosen: Sequence[tuple[Priority, Row]], cost: float) -> None:
        now = self._clock()
        for matters, row in chosen:
            self._served[row["run"]] = now
            self._order[row["run"]] = next(self._places)
            self._cost[row["run"]] = cost / len(chosen)
            if (pace := self._paces.get(matters)) is not None:
                paid = max(self._paid_until.get(matters, now), now)
                self._paid_until[matters] = paid + cost / len(chosen) / pace.share

    def _failed(self, row: Row, error: Exception) -> None:
        run = row["run"]
        words = f"{run}: {self._stage.name} fails ({type(error).__name__}: {error})"
        self._failing[run] = _Failure(self._clock() + _AFTER_FAILURE, bool(row.get("live")), words)
        if (kind := (run, type(error).__name__)) not in self._logged:
            self._logged.add(kind)
            LOGGER.error(
                "%s; it will be tried again", words, exc_info=None if isinstance(error, LogprobeError) else error
            )

    def _problem(self) -> dict[str, object]:
        if not self._failing:
            return {}
        problem: dict[str, object] = {"problem": "; ".join(failure.words for failure in self._failing.values())}
        return problem | ({INCOMPLETE: True} if any(failure.live for failure in self._failing.values()) else {})
