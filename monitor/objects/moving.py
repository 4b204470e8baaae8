"""The job that moves raw files from the disk to the object store, and removes objects that nothing names any more.

Ingest writes to the disk and never waits for the network. A file that is old enough is merged with its neighbours,
copied and read back; then one transaction makes the object count, and the file goes when the last read that began
before has ended. An object's address is noted as one to be removed before its upload begins, and struck out by that
transaction: whatever is interrupted leaves nothing behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

from logprobe.collectors.errors import ObjectStoreError
from logprobe.monitor import queries
from logprobe.monitor.objects.settings import StorageSettings, load
from logprobe.monitor.store.raw_files import block_sums, note_pending
from logprobe.monitor.store.retention import Kept, Retention, over
from logprobe.monitor.store.store import Store

# Of the disk's budget that files may take before they move early: it must not remove what could move.
_MOST_OF_DISK: Final = 0.5

_MOST_FAILURES: Final = 3  # of one run: by then it is the object store


@dataclass(slots=True)
class MovingReport:
    """What one run did, and what is left to do."""

    moved_files: int = 0
    moved_bytes: int = 0
    removed_objects: int = 0
    waiting_files: int = 0  # that should be in the object store by now
    waiting_bytes: int = 0
    waiting_seconds: float | None = None  # since the oldest of them should have moved; None: none waits
    to_remove: int = 0  # objects
    stored_files: int = 0
    stored_bytes: int = 0
    place: str | None = None
    seconds: float = 0.0
    problem: str | None = None  # why something did not work; it is tried again


class Mover:
    """Moves a home's raw files. One per home, used by one thread at a time."""

    def __init__(self, store: Store, retention: Retention, stopping: threading.Event) -> None:
        """`stopping`: when set, work ends after the file in hand."""
        self._store = store
        self._retention = retention
        self._stopping = stopping

    def run_once(self, *, now: datetime | None = None) -> MovingReport:
        """Removes what is to be removed, then moves what is due; what the object store refuses is tried again next
        time.

        Raises:
            StoreError: the home's own store refused.
            ConfigurationError: the section ``storage`` is wrong.
        """
        started = time.perf_counter()
        settings, report, now = load(self._store.home), MovingReport(), now or datetime.now(UTC)
        report.place = settings.raw
        self._store.raw.require()
        for work in (self._remove, self._move):  # credentials that may write but not remove still upload
            try:
                work(settings, now, report)
            except ObjectStoreError as error:
                report.problem = str(error)
        if report.problem is None:  # it may have been of a prefix that is used no more
            self._store.object_owner.problem = None
        if settings.raw is not None or report.problem is not None:
            self._look(settings, now, report)
        if report.moved_files:
            self._store.note_incomplete_steps()
            self._store.try_checkpoint()
        report.seconds = time.perf_counter() - started
        return report

    def _remove(self, _settings: StorageSettings, _now: datetime, report: MovingReport) -> None:
        for _ in remove_doomed(self._store):
            report.removed_objects += 1
            if self._stopping.is_set():
                return

    def _move(self, settings: StorageSettings, now: datetime, report: MovingReport) -> None:
        if settings.raw is None:
            return
        self._retention.merge(self._due(settings, now))
        self._store.object_owner.require(settings.raw)
        failures = 0
        for file in self._due(settings, now):
            if self._stopping.is_set():
                return
            try:
                self._upload(file, object_address(settings.raw, file), report)
            except ObjectStoreError as error:  # one file that cannot be read must not hold up the others
                report.problem, failures = str(error), failures + 1
                if failures == _MOST_FAILURES:
                    return

    def _upload(self, file: Kept, url: str, report: MovingReport) -> None:
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "doom_object", url=url)
        with self._store.holding_files():
            path = self._store.home.path / file.path
            if not path.exists():  # merged or removed since it was found to be due
                return
            if fault := self._store.raw.damaged.look_at(file.path, file.bytes, file.rows, whole=True):
                report.problem = f"{path} is not moved: {fault}"
                return
            self._store.objects.put(path, url)
            with path.open("rb") as content:
                sums = block_sums(content)
            note_pending(self._store.home, [file.path])
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "raw_move", path=file.path, url=url, sums=sums)
            moved = bool(cursor.fetchall())
            if moved:  # else the object is of no use, and goes next time
                self._store.execute(cursor, "spare_object", url=url)
        if moved:
            self._store.retire([file.path])
            report.moved_files += 1
            report.moved_bytes += file.bytes

    def _due(self, settings: StorageSettings, now: datetime) -> list[Kept]:
        return due(self._retention.files(), settings, self._retention.policy.max_bytes, now)

    def _look(self, settings: StorageSettings, now: datetime, report: MovingReport) -> None:
        files = self._retention.files()
        stored = [file for file in files if file.location is not None]
        report.stored_files, report.stored_bytes = len(stored), _size(stored)
        report.to_remove = queries.doomed_objects(self._store.kept).num_rows
        if settings.raw is None:
            return
        waiting = due(files, settings, self._retention.policy.max_bytes, now)
        report.waiting_files, report.waiting_bytes = len(waiting), _size(waiting)
        if waiting:
            age = (now - waiting[0].created_at).total_seconds() - settings.after
            report.waiting_seconds = round(max(0.0, age), 1)


def remove_doomed(store: Store) -> Generator[str]:
    """Removes objects that nothing names any more, up to those that a read under way may need; → each address once it
    is gone.

    Raises `ObjectStoreError`, `StoreError` or `ConfigurationError`; what is left is removed next time.
    """
    oldest = store.oldest_read()
    for row in queries.doomed_objects(store).to_pylist():
        if oldest is not None and row["since"].timestamp() >= oldest:
            return
        store.object_owner.require_of(row["url"])
        store.objects.remove(row["url"])
        with store.transaction() as cursor:
            store.execute(cursor, "spare_object", url=row["url"])
        yield row["url"]


def due(files: Sequence[Kept], settings: StorageSettings, budget: int | None, now: datetime) -> list[Kept]:
    """The files on the disk that should be in the object store, oldest first. `files`: oldest first. `budget`: bytes of
    the disk."""
    on_disk = [file for file in files if file.location is None]
    early = {file.path for file in over(on_disk, int(budget * _MOST_OF_DISK))} if budget is not None else set()
    oldest = now - timedelta(seconds=settings.after)
    return [file for file in on_disk if file.created_at <= oldest or file.path in early]


def object_address(place: str, file: Kept) -> str:
    """Address of a file's object: run and kind are folders, the steps are in the name."""
    _, run, kind, name = PurePosixPath(file.path).parts
    steps = "" if file.min_step is None or file.max_step is None else f"{file.min_step:09d}-{file.max_step:09d}-"
    return f"{place}/{run}/{kind}/{steps}{name}"


def _size(files: Iterable[Kept]) -> int:
    return sum(file.bytes for file in files)
