"""Deletes what a home holds of a run. Each step can be done again: killed anywhere, the next attempt finishes it.

The tombstone comes first, so that nothing new is taken in. Then one transaction takes the rows out of every table that carries a run,
notes the objects to be removed, and writes the audit. Raw files go after that, when no read needs them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import StoreError
from logprobe.monitor.deletion import places
from logprobe.monitor.store.store import Store

_DELETE: Final = 'DELETE FROM "{table}" WHERE run = $run'
_ANY: Final = 'SELECT DISTINCT run FROM "{table}" WHERE run IN (SELECT unnest($runs))'
# Their rows name the run by what belongs to it.
_FIRST: Final[Mapping[str, str]] = {
    "alert_acknowledgements": "deletion_acknowledgements",
    "deliveries": "deletion_deliveries",
}


@dataclass(slots=True)
class Erased:
    """What was removed. `rows`: by table, of those that had any."""

    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    objects: list[str] = field(default_factory=list)  # addresses, noted for removal

    @property
    def nothing(self) -> bool:
        """Whether there was none."""
        return not (self.rows or self.files or self.objects)

    @property
    def words(self) -> str:
        """For the audit."""
        rows = f"rows: {sum(self.rows.values()):,} in {len(self.rows)} tables"
        return f"{rows}; files: {self.files:,} ({self.bytes:,} bytes); objects: {len(self.objects):,}"


def erase(store: Store, run: str, *, author: str, action: str, now: datetime) -> Erased:
    """Removes rows and files of a run. Raises `StoreError`; what was not done is done by the next attempt."""
    home = store.home
    store.raw.require()
    named = store.read("deletion_files", run=run).to_pylist()
    on_disk = [home.path / row["path"] for row in named if row["location"] is None]
    own = [*places.places_of(home, run), *places.cached(home), *(p for p in on_disk if not p.is_relative_to(home.raw))]
    raw = [path for path, _ in places.files_in(places.raw_folder(home, run))]
    files = dict(each for place in (*own, *raw) for each in places.files_in(place))
    objects = [row["location"] for row in named if row["location"] is not None]
    erased = Erased(files=len(files), bytes=sum(files.values()), objects=objects)
    failure = _removed(own)  # before the rows: while these are there, a killed deletion is known to be unfinished
    with store.transaction() as cursor:
        erased.rows = _delete_rows(store, cursor, run)
        if not erased.nothing:
            store.execute(
                cursor, "alert_audit_write", time=now, author=author, action=action, subject=run, words=erased.words
            )
        if erased.rows:
            store.refresh_steps_view(cursor)
    store.retire(home.relative(path) for path in raw)
    with suppress(StoreError):  # the files, and the rows in the log, go with the next checkpoint
        store.try_checkpoint()
    places.remove_empty(places.raw_folder(home, run))
    if failure is not None:
        raise StoreError(f"{failure.filename}: cannot be removed ({failure.strerror}); everything else of {run!r} is")
    return erased


def _removed(own: Iterable[Path]) -> OSError | None:
    """Removes files and folders; → why not all of them."""
    failure = None
    for place in own:
        try:
            places.remove(place)
        except OSError as error:
            failure = error
    return failure


def left_of(store: Store, runs: Iterable[str]) -> set[str]:
    """Those of `runs` of which the home still holds something beside what waits in the spool, which ingest removes."""
    names = list(runs)
    if not names:
        return set()
    sql = " UNION ".join(_ANY.format(table=table) for table in _tables(store.read("deletion_tables")))
    found = set(store.query(sql, {"runs": names})["run"].to_pylist())
    return found | {run for run in names if places.raw_folder(store.home, run).exists() or _others(store, run)}


def is_there(store: Store, run: str) -> bool:
    """Whether the home holds anything of a run."""
    return bool(left_of(store, [run]) or places.places_of(store.home, run))


def _others(store: Store, run: str) -> list[Path]:
    return [place for place in places.places_of(store.home, run) if not place.is_relative_to(store.home.spool)]


def _delete_rows(store: Store, cursor: Any, run: str) -> dict[str, int]:
    store.execute(cursor, "deletion_doom", run=run)
    counts = {}
    for table, name in _FIRST.items():
        store.execute(cursor, name, run=run)
        counts[table] = int(cursor.fetchone()[0])
    for table in _tables(store.read("deletion_tables")):
        counts[table] = int(cursor.execute(_DELETE.format(table=table), {"run": run}).fetchone()[0])
    return {table: count for table, count in sorted(counts.items()) if count}


def _tables(found: pa.Table) -> list[str]:
    return [str(name) for name in found["table_name"].to_pylist()]
