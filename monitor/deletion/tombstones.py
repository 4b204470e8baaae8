"""Which runs were deleted: a small file each, written before anything is removed.

    <home>/deleted/<quoted run>.json

While it says nothing of a release, nothing of the run is taken in. Released, the name may be recorded under again; what
the collectors of before have written stays out all the same. What one has written that was not known, and that recorded
before the deletion, may be of either run, if its clock is wrong: that goes to quarantine, and a person decides.

Segments of deleted runs that arrive all the same are removed by ingest instead of stored, counted and audited.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

import pyarrow as pa

from logprobe.collectors.errors import RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import replace_file
from logprobe.collectors.spool.segments import run_dir, run_name
from logprobe.monitor import queries
from logprobe.monitor.home import Home, own_text
from logprobe.monitor.plain_text import file_name
from logprobe.monitor.store.store import Store

FOLDER: Final = "deleted"
_SUFFIX: Final = ".json"
_SETTLED_SECONDS: Final = 2.0  # a folder that changed more recently may change again within the same tick of its clock
_MOST_BYTES: Final = 16 << 20
_NOTE_SECONDS: Final = 60.0  # between two notes about a run
_AUTHOR: Final = "ingest"
_SETS: Final = ("writers", "doubted", "accepted")
IMPORTS: Final = "import-"  # begins the names of writers that are none: what they read is older than they are


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One deleted run. Times: ISO 8601, UTC.

    Attributes:
        run: its name.
        deleted_at: when someone asked for it.
        author: who that was, by their own word.
        writers: collectors that recorded it.
        released_at: when its name was released; None: it may not be used again.
        late: segments that came after the deletion, and were removed.
        late_at: when the last of them came.
        doubted: collectors that came after the release and had recorded before the deletion.
        accepted: those whose segments a person has put back from quarantine.
    """

    run: str
    deleted_at: str
    author: str
    writers: frozenset[str] = frozenset()
    released_at: str | None = None
    late: int = 0
    late_at: str | None = None
    doubted: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()

    def covers(self, writer: str | None) -> bool:
        """Whether what a collector wrote stays out. None: it is not known which one did."""
        return self.released_at is None or writer in self.writers

    def is_newer_than(self, moment: datetime) -> bool:
        """Whether the run was deleted after `moment`; so it is taken to be where the file does not say when."""
        try:
            return moment < datetime.fromisoformat(self.deleted_at)
        except (TypeError, ValueError):
            return True

    def document(self) -> dict[str, object]:
        """As JSON-like data."""
        return {**asdict(self), **{name: sorted(getattr(self, name)) for name in _SETS}}


class Tombstones:
    """Those of one home. Safe to share between threads; looking again costs one `stat`."""

    _changing: ClassVar[threading.Lock] = threading.Lock()  # one process, the store's owner, changes them

    def __init__(self, home: Home) -> None:
        """Touches nothing."""
        self._folder = home.path / FOLDER
        self._home = home
        self._seen: tuple[int, Mapping[str, Tombstone]] | None = None

    def all(self) -> Mapping[str, Tombstone]:
        """By run. Raises `StoreError` when they are unknown: nothing is stored then."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return MappingProxyType({})
        except OSError as error:
            raise StoreError(
                f"{self._folder} cannot be read ({error.strerror}); which runs are deleted is unknown"
            ) from error
        seen = self._seen
        if seen is not None and seen[0] == changed:
            return seen[1]
        by_run = dict(map(self._read, self._folder.glob(f"[!.]*{_SUFFIX}")))
        if time.time() - changed / 1e9 > _SETTLED_SECONDS:
            self._seen = changed, by_run
        return by_run

    def find(self, run: str) -> Tombstone | None:
        """That of a run; None: it was never deleted. Raises `StoreError`."""
        return self.all().get(run)

    def refuse(self, run: str) -> None:
        """Raises `RunDeletedError` when a run was deleted, so that nothing may be stored of it."""
        tombstone = self.find(run)
        if tombstone is not None and tombstone.released_at is None:
            raise RunDeletedError(
                f"run {run!r} was deleted at {tombstone.deleted_at} by {tombstone.author}; to use the name again: "
                f"logprobe store delete {run} --release"
            )

    def _path(self, run: str) -> Path:
        """The file of a run."""
        return self._folder / f"{file_name(run_dir(self._home.path, run).name)}{_SUFFIX}"

    def change(self, run: str, how: Callable[[Tombstone | None], Tombstone]) -> Tombstone:
        """Replaces that of a run, durably; `how` is handed the one there is. Raises `StoreError`."""
        path = self._path(run)
        with self._changing:
            changed = how(self._read(path)[1] if path.exists() else None)
            try:
                replace_file(path, json.dumps(changed.document()).encode())
            except OSError as error:
                raise StoreError(f"{path}: cannot be written ({error.strerror}); nothing was changed") from error
        return changed

    def _read(self, path: Path) -> tuple[str, Tombstone]:
        """One that cannot be read counts as what its name says: in doubt a deleted run stays deleted."""
        try:
            stored = json.loads(own_text(path, self._home.path, _MOST_BYTES))
            tombstone = Tombstone(**{**stored, **{name: frozenset(map(str, stored.get(name, ()))) for name in _SETS}})
        except (OSError, ValueError, LookupError, TypeError):
            tombstone = Tombstone(run_name(path.name.removesuffix(_SUFFIX)), "an unknown time", "somebody")
        return tombstone.run, tombstone


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
        tombstone = None if run is None else self.tombstones.find(run)
        return tombstone is not None and tombstone.covers(writer)

    def doubt(self, run: str, writer: str, rows: pa.Table) -> SegmentError | None:
        """Why a segment may be of the run that was deleted before its name was released; None: it is not. Raises
        `StoreError`."""
        tombstone = self.tombstones.find(run)
        if tombstone is None or writer in tombstone.accepted or writer.startswith(IMPORTS):
            return None
        times = rows["time"].drop_null().to_pylist() if "time" in rows.column_names else []
        began = min(times, default=None)
        is_older = began is not None and tombstone.is_newer_than(began)
        if writer not in tombstone.doubted and (not is_older or self._has_recorded(run, writer)):
            return None
        if writer not in tombstone.doubted:
            self.tombstones.change(
                run, lambda now: replace(now or tombstone, doubted=(now or tombstone).doubted | {writer})
            )
        return SegmentError(
            "deleted_run",
            f"collector {writer} recorded before run {run!r} was deleted at {tombstone.deleted_at}: whether this "
            "belongs to that run or to the "
            "one that uses its name now is unknown",
        )

    def _has_recorded(self, run: str, writer: str) -> bool:
        return writer in queries.deletion_writers(self._store, run=run)["writer"].to_pylist()

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

        def with_late(before: Tombstone | None) -> Tombstone:
            tombstone = before or Tombstone(run, now.isoformat(timespec="seconds"), _AUTHOR)
            # Also of collectors that nobody had heard of: their next segments stay out when the name is in use again.
            return replace(
                tombstone,
                writers=tombstone.writers | late.writers,
                late=tombstone.late + late.segments,
                late_at=now.isoformat(timespec="seconds"),
            )

        self.tombstones.change(run, with_late)
        message = f"segments of a deleted run: {late.segments:,}; collectors that wrote them: {len(late.writers):,}"
        with self._store.transaction() as cursor:
            self._store.execute(
                cursor,
                "alert_audit_write",
                time=now,
                author=_AUTHOR,
                action="late segments removed",
                subject=run,
                words=message,
            )
