"""Diagnosis stage: judges runs with news, and keeps the latest diagnosis of each.

A live run is judged at every step from cached frames (`frames`), in some hundredths of a second of processor time. An
ended run is judged from all data after its last step, as soon as a live one. It is judged again only after a change of
data, acceptances or experiments. `monitor.service.turns` decides the order of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.judging.accepted import accepted_by_run
from logprobe.monitor.judging.diagnosing import look
from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.frames import Frames, Look
from logprobe.monitor.judging.memory import known_level
from logprobe.monitor.live.newest import Newest
from logprobe.monitor.service.flight import encode, finite
from logprobe.monitor.service.turns import Pace, Priority, Row, as_of, priority
from logprobe.monitor.store.store import Store

_TOGETHER: Final = 32  # live runs of one turn: one transaction writes what is judged of all of them
# Shares of a core, so that ingest has the rest.
PACES: Final = {
    Priority.ARMED: Pace(share=0.5, together=_TOGETHER),
    Priority.AWAITED: Pace(share=0.25),
    Priority.LIVE: Pace(share=0.5, together=_TOGETHER),
    Priority.LAST: Pace(share=0.5),
    Priority.FIRST: Pace(share=0.1),
    Priority.ENDED: Pace(share=0.05, rest=20),
}


class DiagnosisStage:
    """Writer of the table ``diagnoses``. One per store."""

    name = "diagnosis"
    together = 1

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] | None = None,
        armed: Callable[[str], bool] = lambda _run: False,
        newest: Newest | None = None,
    ) -> None:
        """Set up the stage. `now`: time source, or None for the store's.

        `armed`: returns whether a correction of a run may be switched. `newest`: newest steps in memory, or None to
        read runs whole.
        """
        self._store = store
        self._now = now or store.time.now
        self._armed = armed
        self._frames = Frames(newest, clock=store.time.monotonic)

    def rows(self) -> Sequence[Row]:
        """Return the runs with steps computed since their diagnosis, or with a change of what users know or tried, the
        newest first. `awaited`: a user waits for the run."""
        done = {row["run"]: row for row in queries.diagnosis_done(self._store.kept).to_pylist()}
        found = [
            _due(row, done.get(row["run"])) for row in as_of(queries.runs_now(self._store.kept_records), self._now())
        ]
        return sorted((row for row in found if row is not None), key=lambda row: -row["revision"])

    def due(self, row: Row) -> Priority:
        """Return the priority of a run. Armed runs come first."""
        at, until = row["diagnosed_at"], row["live_until"]
        return priority(
            live=row["live"],
            armed=self._armed(row["run"]),
            awaited=row["awaited"],
            first=at is None,
            last=at is not None and until is not None and at <= until,
        )

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Judge runs and write the results. Return the number of armed runs.

        Raises `StoreError` and `QueryError`.
        """
        at = self._now()  # what is accepted from now on is not in it
        judged = [_row(row, *each, at) for row, each in zip(rows, self._look(rows), strict=True)]
        with self._store.transaction(records=False) as cursor:
            self._store.execute(cursor, "replace", pa.Table.from_pylist(judged, _DIAGNOSES), table="diagnoses")
        return {"armed": sum(self._armed(row["run"]) for row in rows)}

    def _look(self, rows: Sequence[Row]) -> Iterator[tuple[Frame, DiagnosisDocument]]:
        """Judge live runs together from cached frames, and others one by one from the store."""
        accepted = accepted_by_run(self._store, [row["run"] for row in rows])
        looks = [
            Look(row["run"], row["revision"], accepted.get(row["run"], ()), whole=row["awaited"])
            for row in rows
            if row["live"]
        ]
        live = dict(zip((look.run for look in looks), self._frames.diagnose(self._store, looks), strict=True))
        for row in rows:
            if (known := live.get(row["run"])) is not None:
                yield known
            else:
                yield look(self._store, row["run"], accepted=accepted.get(row["run"], ()))


def _due(row: Row, done: Row | None) -> Row | None:
    """Return a run with `diagnosed_at` and `awaited`, or None without news."""
    before: dict[str, Any] = {"revision": None, "diagnosed_at": None, "changed_at": None, **(done or {})}
    if row["revision"] is None:  # no step is computed
        return None
    at, changed_at = before["diagnosed_at"], before["changed_at"]
    awaited = at is not None and changed_at is not None and changed_at >= at
    if not awaited and before["revision"] is not None and row["revision"] <= before["revision"]:
        return None
    return {**row, "diagnosed_at": at, "awaited": awaited}


_DIAGNOSES: Final = pa.schema(
    [(name, pa.string()) for name in ("run", "verdict", "layer", "document", "cause", "urgency", "advice")]
    + [("setup", pa.string()), ("low", pa.float64()), ("high", pa.float64())]
    + [(name, pa.int64()) for name in ("step", "revision", "since_step")]
    + [("causes", pa.list_(pa.string())), ("diagnosed_at", pa.timestamp("us", "UTC")), ("share", pa.float64())]
)


def _row(row: Row, frame: Frame, document: DiagnosisDocument, at: datetime) -> dict[str, Any]:
    """Return a row of ``diagnoses``."""
    first = leading(document)
    return {
        "run": row["run"],
        "step": row["step"],
        "revision": row["revision"],
        "verdict": document["verdict"],
        "layer": document["layer"],
        "since_step": document["since_step"],
        "causes": [finding["cause"] for finding in document["findings"]],
        "document": encode(finite(document)).decode(),
        "diagnosed_at": at,
        "cause": None if first is None else first["cause"],
        "share": None if first is None else first["share"]["now"],
        "urgency": None if first is None else first["urgency"],
        "advice": document["correction"]["advice"],
        **(known_level(frame, document) or {}),
    }
