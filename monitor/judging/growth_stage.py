"""Growth at ingest's pace: judged at the newest step of every run that got steps, as soon as these are computed.

It costs milliseconds for all runs together, where a diagnosis costs half a second for one. A verdict that has become
another makes the run's diagnosis out of date, so that it is due at once (`changed` in ``sql/diagnosis_due.sql``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.judging.growth_kept import Now, growth_now
from logprobe.monitor.service.turns import Priority, Row, as_of, priority
from logprobe.monitor.store.store import Store

_KEPT: Final = pa.schema({
    "run": pa.string(), "step": pa.int64(), "revision": pa.int64(), "verdict": pa.string(), "changed_step": pa.int64(),
    "judged_at": pa.timestamp("us", "UTC"),
})  # fmt: skip


class GrowthStage:
    """Keeps the table ``growth_now``."""

    name = "growth"
    reads = ("step_summaries", "step_metrics", "growth_states", "config_records")
    writes = ("growth_now",)
    together = 256

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        armed: Callable[[str], bool] = lambda _run: False,
    ) -> None:
        """`armed`: whether a correction of a run may be switched."""
        self._store = store
        self._now = now
        self._armed = armed

    def rows(self) -> Sequence[Row]:
        """Runs with steps that were computed since."""
        return as_of(queries.growth_due(self._store.kept), self._now())

    def due(self, row: Row) -> Priority:
        """Live ones first."""
        return priority(live=row["live"], armed=False, first=not row["judged"])

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Judges them all at once; → how many are judged otherwise than before, and how many are armed. Raises
        `StoreError` and `QueryError`."""
        before = {row["run"]: row for row in rows}
        now_by_run = growth_now(self._store, list(before))
        at = self._now()
        kept = [_columns(run, now, before[run], at) for run, now in now_by_run.items()]
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "replace", pa.Table.from_pylist(kept, _KEPT), table="growth_now")
        changes = sum(row["verdict"] != before[row["run"]]["verdict"] for row in kept)
        return {"changes": changes, "armed": sum(map(self._armed, before))}


def _columns(run: str, now: Now, before: Row, at: datetime) -> dict[str, object]:
    since = now.changed_step
    if before["judged"] and before["step"] <= now.step:  # else it went back to a checkpoint
        stands = now.verdict == before["verdict"]
        if stands and since <= before["step"]:
            since = before["changed_step"]
        elif not stands and since <= before["step"]:  # a step that was judged got other data
            since = now.step
    return {
        "run": run,
        "step": now.step,
        "revision": now.revision,
        "verdict": now.verdict,
        "changed_step": since,
        "judged_at": at,
    }
