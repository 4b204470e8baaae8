"""The diagnosis job: diagnoses runs that got new steps, keeps the latest diagnosis of each, and notes when it becomes another.

A tick without new steps is one small query. A diagnosis looks at the whole run and takes the longer the longer that is; a run is
therefore left alone for a multiple of the time it took, a larger one while its diagnosis stays the same. With a `share`, all runs
together take no more than that of a core from ingest, and those that were not diagnosed for longest come first. What people are likely
to look at waits less: a run whose steps stopped coming, so that its last diagnosis is of its last step, and a run with a firing alert.
Such runs overdraw the share, up to a limit.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.monitor.diagnosis.acceptance import Acceptance
from logprobe.monitor.diagnosis.causes.cause import CREDIBLE
from logprobe.monitor.diagnosis.diagnose import diagnose
from logprobe.monitor.diagnosis.result import Diagnosis
from logprobe.monitor.service.flight import encode, finite
from logprobe.monitor.store.store import Store

_REST: Final = 10.0  # times as long as a diagnosis took
_MOST_SAME: Final = 3  # times in a row that a diagnosis stayed the same: with each the rest is longer by `_REST`
BURST: Final = 20.0  # seconds of work that may come first, before `share` holds: at the start, and after a quiet time
_FIRING_REST: Final = 3.0  # times as long as a diagnosis took, while an alert fires
# How often `BURST` such a run may overdraw; what is overdrawn is paid back.
_OVERDRAFT: Final = {"quiet": 2, "firing": 1}
_AFTER_FAILURE: Final = 60.0  # seconds; one run that cannot be diagnosed keeps no other waiting


@dataclass(frozen=True, slots=True)
class DiagnosisReport:
    """What one run of the job did; `waiting`: runs with new steps that were looked at too recently."""

    runs: int
    changes: int
    waiting: int
    seconds: float


class DiagnosisJob:
    """Keeps the tables ``diagnoses`` and ``diagnosis_changes``. One per store, used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        stopping: threading.Event | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        accepted: Callable[[str], Sequence[Acceptance]] = lambda _run: (),
        share: float | None = None,
    ) -> None:
        """`stopping`: when set, work ends after the run in hand. `clock`: seconds, for pacing; `now`: for the record.

        `accepted`: what people have accepted of a run. `share`: of the time that this job may work, after `BURST`; None: all of it.
        """
        self._store = store
        self._stopping = stopping or threading.Event()
        self._clock = clock
        self._now = now
        self._accepted = accepted
        self._failed: dict[str, float] = {}  # begins of diagnoses that did not end
        self._took: dict[str, float] = {}
        self._same: dict[str, int] = {}  # times in a row
        self._finished: dict[str, float] = {}
        self._share = share
        self._worked_until = -math.inf  # the clock, if this job had worked at its share throughout

    def run_once(self) -> DiagnosisReport:
        """Diagnoses the runs that are due. Raises `StoreError` and `QueryError`; what was not written stays due."""
        begun = self._clock()
        due = self._store.read("diagnosis_due", now=self._now().isoformat()).to_pylist()
        runs = changes = 0
        for row in sorted((row for row in due if self._is_rested(row, begun)), key=self._turn):
            if self._stopping.is_set() or self._has_had_its_share(row):
                break
            changes += self._diagnose(row)
            runs += 1
        return DiagnosisReport(runs, changes, len(due) - runs, self._clock() - begun)

    def _is_rested(self, row: Mapping[str, Any], now: float) -> bool:
        """Whether it was left alone for long enough; one that failed rests as long as any."""
        run = row["run"]
        rest = 0.0 if row["quiet"] else _FIRING_REST if row["firing"] else _REST * (1 + self._same.get(run, 0))
        rested = self._finished.get(run, -math.inf) + rest * self._took.get(run, 0.0)
        return row["decided"] or max(rested, self._failed.get(run, -math.inf) + _AFTER_FAILURE) <= now

    def _turn(self, row: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
        """What somebody waits for comes first, then what is likely to be looked at, then what was not looked at for longest."""
        return not row["decided"], not row["quiet"], not row["firing"], self._finished.get(row["run"], -math.inf)

    def _has_had_its_share(self, row: Mapping[str, Any]) -> bool:
        if self._share is None or row["decided"]:
            return False
        bursts = max((most for why, most in _OVERDRAFT.items() if row[why]), default=0)
        return self._worked_until > self._clock() + bursts * BURST / self._share

    def _account(self, begun: float, finished: float) -> None:
        if self._share is not None:
            earliest = begun - BURST / self._share
            self._worked_until = max(self._worked_until, earliest) + (finished - begun) / self._share

    def _diagnose(self, row: Mapping[str, Any]) -> bool:
        """Diagnoses and writes; says whether it is another diagnosis than before."""
        run, begun, at = row["run"], self._clock(), self._now()  # what is accepted from now on is not in it
        self._failed[run] = begun
        found = diagnose(self._store, run, accepted=self._accepted(run))
        document = found.document()
        changed = row["document"] is None or essence(json.loads(row["document"])) != essence(document)
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "diagnosis_write", **self._columns(row, found, document, at))
            if changed:
                self._store.execute(cursor, "diagnosis_write_change", run=run)
        finished = self._finished[run] = self._clock()
        self._took[run] = finished - begun
        self._same[run] = 0 if changed else min(self._same.get(run, 0) + 1, _MOST_SAME)
        del self._failed[run]
        self._account(begun, finished)
        return changed

    def _columns(
        self, row: Mapping[str, Any], found: Diagnosis, document: Mapping[str, Any], at: datetime
    ) -> dict[str, Any]:
        return {
            "run": row["run"],
            "step": row["step"],
            "revision": row["revision"],
            "verdict": found.verdict,
            "layer": found.layer,
            "since_step": found.since_step,
            "causes": [finding.cause for finding in found.findings],
            "document": encode(finite(document)).decode(),
            "diagnosed_at": at,
        }


def essence(document: Mapping[str, Any]) -> tuple[str, str, frozenset[tuple[str, bool]]]:
    """What makes a diagnosis another one: verdict, layer, credible causes and which are accepted. Numbers move with every step."""
    causes = ((f["cause"], f.get("accepted") is not None) for f in document["findings"] if f["confidence"] >= CREDIBLE)
    return document["verdict"], document["layer"], frozenset(causes)
