"""Deleting runs as a part of the service: people ask for it; what could not be removed, or comes late, is removed later.

`perform` does it through the running service or directly, as other actions on a home.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError, ObjectStoreError, StoreError
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.deletion import places
from logprobe.monitor.deletion.deleting import Erased, erase, is_there, left_of
from logprobe.monitor.deletion.signs import newest_sign
from logprobe.monitor.deletion.tombstones import Tombstone, Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.objects.moving import remove_doomed
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.part import Part
from logprobe.monitor.store.store import Read, Store

DELETE: Final = "run.delete"
RELEASE: Final = "run.release"
SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 60.0  # a job that began before a deletion has stored its results by then
_ALL_SECONDS: Final = 600.0  # between two looks at runs that were deleted long ago
_ANSWER_SECONDS: Final = 120.0  # of a service that is busy
_OBJECTS_SECONDS: Final = 5.0  # of an action, which somebody waits for


def part(store: Store, stopping: threading.Event) -> Part:
    """What the service offers, and its sweeps."""
    sweeper = Sweeper(store, stopping)
    return Part(jobs=[Job("deletions", SECONDS, sweeper.run_once)], actions=actions.offered(_ACTIONS, store))


def perform(home: Home, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Does one, through the service if one runs, else with the home to ourselves.

    Raises `ConfigurationError` when what is asked makes no sense, `HomeBusyError` or `StoreError` when the home cannot be had.
    """
    return actions.perform(_ACTIONS, home, name, document, seconds=_ANSWER_SECONDS)


def waits(home: Home, run: str) -> bool:
    """Whether segments of a run lie in the spool."""
    return any(run_dir(home.path, run).glob("*/*"))


class Sweeper:
    """Finishes deletions that were cut short, and removes what jobs stored of a run while it was deleted. For one thread at a time."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._tombstones = Tombstones(store.home)
        self._quiet: dict[str, float] = {}  # deletion → when something of it was found last (monotonic)
        self._looked: float | None = None  # at all of them

    def run_once(self) -> dict[str, Any]:
        """Counts of what was removed, and `left`: why not all of it was. Raises `StoreError`."""
        deleted = {each.run: each for each in self._tombstones.all().values() if each.released_at is None}
        left, rows, files = [], 0, 0
        due = self._due(deleted)
        for run in due:
            places.remove_deserted(run_dir(self._store.home.path, run), _QUIET_SECONDS)
        for run in sorted(left_of(self._store, due)):
            if self._stopping.is_set():
                break
            tombstone = deleted[run]
            self._quiet.pop(_name(tombstone), None)
            try:
                done = erase(
                    self._store, run, author=tombstone.author, action="deletion continued", now=datetime.now(UTC)
                )
            except StoreError as error:
                left.append(str(error))
            else:
                rows, files = rows + sum(done.rows.values()), files + done.files
        return {"deleted_runs": len(deleted), "rows": rows, "files": files, "left": left}

    def _due(self, deleted: Mapping[str, Tombstone]) -> list[str]:
        """The runs to look for: those deleted a moment ago, and now and then all."""
        now = time.monotonic()
        for each in deleted.values():
            self._quiet.setdefault(_name(each), now)
        if self._looked is None or now - self._looked >= _ALL_SECONDS:
            self._looked = now
            return list(deleted)
        return [run for run, each in deleted.items() if now - self._quiet[_name(each)] < _QUIET_SECONDS]


def _name(tombstone: Tombstone) -> str:
    return f"{tombstone.deleted_at} {tombstone.run}"


def _delete(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Deletes a run.

    ``{"run", "author", "force"}`` → ``{"run", "deleted_at", "rows": {table: number}, "files", "bytes", "objects": {"removed", "waiting", "problem"}}``.
    """
    run, author = actions.run_of(document), actions.text(document, "author")
    tombstones = Tombstones(store.home)
    if tombstones.find(run) is None and not is_there(store, run):
        raise ConfigurationError(f"no run {run!r} in this home; `logprobe runs` lists them")
    if tombstones.find(run) is None and document.get("force") is not True:
        refuse_recorded(store.read, store.home, run, now)
    writers = _writers(store, run)

    def deleted(before: Tombstone | None) -> Tombstone:
        if before is not None and before.released_at is None:  # asked again
            return replace(before, writers=before.writers | writers)
        known = writers if before is None else before.writers | writers
        return Tombstone(run, now.isoformat(timespec="seconds"), author, known)

    tombstone = tombstones.change(run, deleted)
    done = erase(store, run, author=author, action="run deleted", now=now)
    return {
        "run": run,
        "deleted_at": tombstone.deleted_at,
        "rows": done.rows,
        "files": done.files,
        "bytes": done.bytes,
        "objects": _objects_removed(store, done),
    }


def refuse_recorded(read: Read, home: Home, run: str, now: datetime) -> None:
    """Raises `ConfigurationError` when a run is being recorded. `read`: of stored statements."""
    sign = newest_sign(read, home, run, now)
    if sign is not None:
        raise ConfigurationError(
            f"{run} is being recorded ({sign}); end the training first, or pass --force: what it records from then on is removed too"
        )


def _writers(store: Store, run: str) -> frozenset[str]:
    """Collectors whose segments may still come. Imports are none: what they read can be imported again on purpose."""
    ingested = store.read("deletion_writers", run=run)["writer"].to_pylist()
    waiting = [path.name for path in run_dir(store.home.path, run).glob("*/")]
    return frozenset(name for name in (*ingested, *waiting) if not name.startswith("import-"))


def _objects_removed(store: Store, done: Erased) -> dict[str, Any]:
    """Removes objects for a while; the service's job removes what is left."""
    waiting, problem, deadline = set(done.objects), None, time.monotonic() + _OBJECTS_SECONDS
    try:
        with closing(remove_doomed(store)) as removed:
            while waiting and time.monotonic() < deadline and (url := next(removed, None)) is not None:
                waiting.discard(url)
    except (ObjectStoreError, ConfigurationError) as error:
        problem = str(error)
    return {"removed": len(done.objects) - len(waiting), "waiting": len(waiting), "problem": problem}


def _release(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "author"}`` → ``{"run", "released_at"}``."""
    run, author = actions.run_of(document), actions.text(document, "author")
    tombstones = Tombstones(store.home)
    if tombstones.find(run) is None:
        raise ConfigurationError(f"run {run!r} was not deleted; `logprobe delete` lists those that were")

    def released(found: Tombstone | None) -> Tombstone:
        assert found is not None  # noqa: S101 - nobody removes them
        return found if found.released_at is not None else replace(found, released_at=now.isoformat(timespec="seconds"))

    places.remove_empty(places.raw_folder(store.home, run))  # whose files a read had held
    if left_of(store, [run]) and tombstones.all()[run].released_at is None:
        raise ConfigurationError(f"the deletion of {run!r} is not finished; repeat it: logprobe delete {run}")
    done = tombstones.change(run, released)
    with store.transaction() as cursor:
        words = f"deleted at {done.deleted_at}; the name may be used again"
        store.execute(
            cursor, "alert_audit_write", time=now, author=author, action="run released", subject=run, words=words
        )
    return {"run": run, "released_at": done.released_at}


_ACTIONS: Final[actions.Actions] = {
    DELETE: ("permanently delete a run", _delete),
    RELEASE: ("let the name of a deleted run be used again", _release),
}
