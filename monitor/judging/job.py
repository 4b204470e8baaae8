"""The diagnosis stage: diagnoses runs that have news, keeps the latest diagnosis of each, and notes when it becomes
another.

A diagnosis looks at the whole run and takes half a second of processor time or more; whose turn it is, is decided in
`monitor.service.turns`. An ended run is diagnosed after its last step and then rests until something changes: data,
what is accepted, an experiment. What is urgent can have its own thread: armed live runs whose growth began or ended
since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.leading import CREDIBLE, leading, share_of
from logprobe.monitor.judging.memory import known_level
from logprobe.monitor.judging.result import Acceptance, Diagnosis
from logprobe.monitor.judging.samples import Samples
from logprobe.monitor.service.flight import encode, finite
from logprobe.monitor.service.turns import Pace, Priority, Row, as_of, priority
from logprobe.monitor.store.store import Store

# Shares of a core, so that ingest has the rest. A live run that is not armed may wait, as its growth is judged at every
# step and stands when it is worse: what is news of 200 runs at once takes no more than what is none.
PACES: Final = {
    Priority.CHANGED: Pace(share=0.5),
    Priority.ARMED: Pace(share=0.25, rest=4),
    Priority.AWAITED: Pace(share=0.25),
    Priority.OUTDATED: Pace(share=0.1, of=Priority.LIVE),
    Priority.LIVE: Pace(share=0.1, rest=10),
    Priority.FIRST: Pace(share=0.1),
    Priority.ENDED: Pace(share=0.05, rest=20),
}


class DiagnosisStage:
    """Keeps the tables ``diagnoses``, ``diagnosis_changes`` and ``known_levels``. One per store."""

    name = "diagnosis"
    reads = ("step_summaries", "growth_now", "acceptances", "experiments", "alert_states", "statistics")
    writes = ("diagnoses", "diagnosis_changes", "known_levels")
    together = 1

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        accepted: Callable[[str], Sequence[Acceptance]] = lambda _run: (),
        armed: Callable[[str], bool] = lambda _run: False,
        urgent: bool | None = None,
        samples: Samples | None = None,
    ) -> None:
        """`accepted`: what people have accepted of a run; `armed`: whether a correction of it may be switched.

        `urgent`: True: only armed live runs that changed since, False: only others; None: all. `samples`: where raw
        tokens of live runs are kept between two diagnoses, of all stages of the store; None: it is the only one.
        """
        self._store = store
        self._now = now
        self._accepted = accepted
        self._armed = armed
        self._urgent = urgent
        self._samples = samples or Samples()

    def rows(self) -> Sequence[Row]:
        """Runs that have news, the newest first."""
        return as_of(queries.diagnosis_due(self._store.kept), self._now())

    def due(self, row: Row) -> Priority | None:
        """All of them that are this stage's."""
        first = row["diagnosed_at"] is None
        matters = priority(
            live=row["live"],
            armed=self._armed(row["run"]),
            changed=row["changed"],
            awaited=row["awaited"] or (row["changed"] and not row["live"]),
            first=first,
        )
        return matters if self._urgent in {None, matters == Priority.CHANGED} else None

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Diagnoses and writes; → how many diagnoses are other ones than before, and how many are of armed runs. Raises
        `StoreError` and `QueryError`."""
        changes = sum(self._diagnose(row) for row in rows)
        return {"changes": changes, "armed": sum(self._armed(row["run"]) for row in rows)}

    def _diagnose(self, row: Row) -> bool:
        run, at = row["run"], self._now()  # what is accepted from now on is not in it
        samples = self._samples if row["live"] else None  # others are diagnosed once
        diagnosis = diagnose(self._store, run, accepted=self._accepted(run), samples=samples)
        document = diagnosis.document()
        with self._store.transaction() as cursor:
            kept = self._kept(run)
            if kept and kept["diagnosed_at"] != row["diagnosed_at"] and kept["revision"] >= row["revision"]:
                return False  # the other thread has diagnosed it meanwhile, from no older data
            changed = not kept or essence(json.loads(kept["document"])) != essence(document)
            self._write(cursor, row, diagnosis, document, at)
            if (level := known_level(diagnosis)) is None:
                self._store.execute(cursor, "known_levels_forget", run=run)
            else:
                self._store.execute(cursor, "known_levels_note", run=run, noted_at=at, **level)
            if changed:
                self._store.execute(cursor, "diagnosis_write_change", run=run)
        return changed

    def _write(self, cursor: Any, row: Row, diagnosis: Diagnosis, document: DiagnosisDocument, at: datetime) -> None:
        first = leading(document)
        self._store.execute(
            cursor,
            "diagnosis_write",
            run=row["run"],
            step=row["step"],
            revision=row["revision"],
            verdict=diagnosis.verdict,
            layer=diagnosis.layer,
            since_step=diagnosis.since_step,
            causes=[finding.cause for finding in diagnosis.findings],
            document=encode(finite(document)).decode(),
            diagnosed_at=at,
            cause=None if first is None else first["cause"],
            share=None if first is None else share_of(first),
            urgency=None if first is None else first["urgency"],
            advice=diagnosis.correction.advice,
        )

    def _kept(self, run: str) -> Row | None:
        return next(iter(queries.diagnosis_kept(self._store, run=run).to_pylist()), None)


def essence(document: DiagnosisDocument) -> tuple[str, str, frozenset[tuple[str, bool]]]:
    """What makes a diagnosis another one: verdict, layer, credible causes and which are accepted. Numbers move with
    every step."""
    causes = ((f["cause"], f.get("accepted") is not None) for f in document["findings"] if f["confidence"] >= CREDIBLE)
    return document["verdict"], document["layer"], frozenset(causes)
