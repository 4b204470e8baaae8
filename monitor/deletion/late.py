"""Segments of deleted runs that arrive all the same: ingest removes them instead of storing them; they are counted and audited."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from logprobe.monitor.deletion.tombstones import Tombstone, Tombstones
from logprobe.monitor.store.store import Store

_NOTE_SECONDS: Final = 60.0  # between two notes about a run
_AUTHOR: Final = "ingest"


@dataclass(slots=True)
class _Late:
    """What came of one run and is not noted yet."""

    segments: int = 0
    writers: set[str] = field(default_factory=set)
    noted: float | None = None  # monotonic


class Latecomers:
    """Of one home. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tombstones = Tombstones(store.home)
        self._late: dict[str, _Late] = {}

    def refused(self, run: str | None, writer: str | None) -> bool:
        """Whether nothing that a writer recorded of a run may be stored. Raises `StoreError`."""
        found = None if run is None else self.tombstones.find(run)
        return found is not None and found.covers(writer)

    def count(self, run: str, writer: str) -> None:
        """A segment was removed."""
        late = self._late.setdefault(run, _Late())
        late.segments += 1
        late.writers.add(writer)

    def note(self) -> None:
        """Keeps what was counted, each run at most once a minute. Raises `StoreError`."""
        for run, late in self._late.items():
            if late.segments and (late.noted is None or time.monotonic() - late.noted >= _NOTE_SECONDS):
                self._note(run, late)
                self._late[run] = _Late(noted=time.monotonic())

    def _note(self, run: str, late: _Late) -> None:
        now = datetime.now(UTC)

        def with_late(found: Tombstone | None) -> Tombstone:
            known = found or Tombstone(run, now.isoformat(timespec="seconds"), _AUTHOR)
            # Also of collectors that nobody had heard of: their next segments stay out when the name is in use again.
            return replace(
                known,
                writers=known.writers | late.writers,
                late=known.late + late.segments,
                late_at=now.isoformat(timespec="seconds"),
            )

        self.tombstones.change(run, with_late)
        words = f"segments of a deleted run: {late.segments:,}; collectors that wrote them: {len(late.writers):,}"
        with self._store.transaction() as cursor:
            self._store.execute(
                cursor,
                "alert_audit_write",
                time=now,
                author=_AUTHOR,
                action="late segments removed",
                subject=run,
                words=words,
            )
