"""The diagnosis job: diagnoses runs that got new steps, keeps the latest diagnosis of each, and notes when it becomes another.

A tick without new steps is one small query. A diagnosis looks at the whole run and takes the longer the longer that is; a run is
therefore left alone for a multiple of the time it took, so that this job never takes more than a small share of a core from ingest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.monitor.diagnosis.diagnose import CREDIBLE, diagnose
from logprobe.monitor.diagnosis.result import Diagnosis
from logprobe.monitor.flight import encode, finite
from logprobe.monitor.store import Store

_REST: Final = 10.0  # times as long as a diagnosis took
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
    ) -> None:
        """`stopping`: when set, work ends after the run in hand. `clock`: seconds, for pacing; `now`: for the record."""
        self._store = store
        self._stopping = stopping or threading.Event()
        self._clock = clock
        self._now = now
        self._rest_until: dict[str, float] = {}

    def run_once(self) -> DiagnosisReport:
        """Diagnoses the runs that are due. Raises `StoreError` and `QueryError`; what was not written stays due."""
        begun = self._clock()
        due = self._store.read("diagnosis_due").to_pylist()
        ready = [row for row in due if self._rest_until.get(row["run"], begun) <= begun]
        runs = changes = 0
        for row in ready:
            if self._stopping.is_set():
                break
            changes += self._look_at(row)
            runs += 1
        return DiagnosisReport(runs, changes, len(due) - runs, self._clock() - begun)

    def _look_at(self, row: Mapping[str, Any]) -> bool:
        """Diagnoses and writes; says whether it is another diagnosis than before."""
        run, begun = row["run"], self._clock()
        self._rest_until[run] = begun + _AFTER_FAILURE
        found = diagnose(self._store, run)
        document = found.document()
        changed = row["document"] is None or essence(json.loads(row["document"])) != essence(document)
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "diagnosis_write", **self._columns(row, found, document))
            if changed:
                self._store.execute(cursor, "diagnosis_write_change", run=run)
        finished = self._clock()
        self._rest_until[run] = finished + _REST * (finished - begun)
        return changed

    def _columns(self, row: Mapping[str, Any], found: Diagnosis, document: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "run": row["run"],
            "step": row["step"],
            "revision": row["revision"],
            "verdict": found.verdict,
            "layer": found.layer,
            "since_step": found.since_step,
            "causes": [finding.cause for finding in found.findings],
            "document": encode(finite(document)).decode(),
            "diagnosed_at": self._now(),
        }


def essence(document: Mapping[str, Any]) -> tuple[str, str, frozenset[str]]:
    """What makes a diagnosis another one: verdict, layer and credible causes. Numbers move with every step."""
    causes = (f["cause"] for f in document["findings"] if f["confidence"] >= CREDIBLE)
    return document["verdict"], document["layer"], frozenset(causes)
