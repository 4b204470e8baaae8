"""The diagnosis stage: judges runs that have news, keeps the latest diagnosis of each, and notes when it becomes
another.

A live run is judged at every step, from what is kept of it in memory (`frames`): some hundredths of a second of
processor time. An ended run is judged whole, after its last step, and then rests until something changes: data, what is
accepted, an experiment. Whose turn it is, is decided in `monitor.service.turns`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.judging.diagnosing import look
from logprobe.monitor.judging.document import CREDIBLE, DiagnosisDocument, leading
from logprobe.monitor.judging.frames import Frames
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.judging.memory import known_level
from logprobe.monitor.service.flight import encode, finite
from logprobe.monitor.service.turns import Pace, Priority, Row, as_of, priority
from logprobe.monitor.store.store import Store

# Shares of a core, so that ingest has the rest.
PACES: Final = {
    Priority.ARMED: Pace(share=0.5),
    Priority.AWAITED: Pace(share=0.25),
    Priority.LIVE: Pace(share=0.5),
    Priority.FIRST: Pace(share=0.1),
    Priority.ENDED: Pace(share=0.05, rest=20),
}


class DiagnosisStage:
    """Keeps the tables ``diagnoses``, ``diagnosis_changes`` and ``known_levels``. One per store."""

    name = "diagnosis"
    reads = ("step_summaries", "acceptances", "experiments", "statistics")
    writes = ("diagnoses", "diagnosis_changes", "known_levels")
    together = 1

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        accepted: Callable[[str], Sequence[Acceptance]] = lambda _run: (),
        armed: Callable[[str], bool] = lambda _run: False,
    ) -> None:
        """`accepted`: what people have accepted of a run; `armed`: whether a correction of it may be switched."""
        self._store = store
        self._now = now
        self._accepted = accepted
        self._armed = armed
        self._frames = Frames()

    def rows(self) -> Sequence[Row]:
        """Runs that have news, the newest first."""
        return as_of(queries.diagnosis_due(self._store.kept), self._now())

    def due(self, row: Row) -> Priority:
        """Armed ones first."""
        first, armed = row["diagnosed_at"] is None, self._armed(row["run"])
        return priority(live=row["live"], armed=armed, awaited=row["awaited"], first=first)

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Diagnoses and writes; → how many diagnoses are other ones than before, and how many are of armed runs. Raises
        `StoreError` and `QueryError`."""
        changes = sum(self._diagnose(row) for row in rows)
        return {"changes": changes, "armed": sum(self._armed(row["run"]) for row in rows)}

    def _diagnose(self, row: Row) -> bool:
        run, at = row["run"], self._now()  # what is accepted from now on is not in it
        accepted = self._accepted(run)
        if row["live"]:
            frame, document = self._frames.diagnose(self._store, run, row["revision"], accepted, whole=row["awaited"])
        else:
            frame, document = look(self._store, run, accepted=accepted)
        with self._store.transaction() as cursor:
            kept = self._kept(run)
            changed = not kept or essence(json.loads(kept["document"])) != essence(document)
            self._write(cursor, row, document, at)
            if (level := known_level(frame, document)) is None:
                self._store.execute(cursor, "known_levels_forget", run=run)
            else:
                self._store.execute(cursor, "known_levels_note", run=run, noted_at=at, **level)
            if changed:
                self._store.execute(cursor, "diagnosis_write_change", run=run)
        return changed

    def _write(self, cursor: Any, row: Row, document: DiagnosisDocument, at: datetime) -> None:
        first = leading(document)
        self._store.execute(
            cursor,
            "diagnosis_write",
            run=row["run"],
            step=row["step"],
            revision=row["revision"],
            verdict=document["verdict"],
            layer=document["layer"],
            since_step=document["since_step"],
            causes=[finding["cause"] for finding in document["findings"]],
            document=encode(finite(document)).decode(),
            diagnosed_at=at,
            cause=None if first is None else first["cause"],
            share=None if first is None else first["share"]["now"],
            urgency=None if first is None else first["urgency"],
            advice=document["correction"]["advice"],
        )

    def _kept(self, run: str) -> Row | None:
        return next(iter(queries.diagnosis_kept(self._store, run=run).to_pylist()), None)


def essence(document: DiagnosisDocument) -> tuple[str, str, frozenset[tuple[str, bool]]]:
    """What makes a diagnosis another one: verdict, layer, credible causes and which are accepted. Numbers move with
    every step."""
    causes = ((f["cause"], f["accepted"] is not None) for f in document["findings"] if f["confidence"] >= CREDIBLE)
    return document["verdict"], document["layer"], frozenset(causes)
