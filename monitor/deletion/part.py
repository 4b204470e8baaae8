"""Deleting runs as a part of the service: people ask for it; what could not be removed, or comes late, is removed
later.

`delete` and `release` do it through the running service or directly, as other actions on a home.

Deletes what a home holds of a run. Each step can be done again: killed anywhere, the next attempt finishes it.

The tombstone comes first, so that nothing new is taken in. Then one transaction takes the rows out of every table that
carries a run, and writes the audit. Raw files go after that, when no read needs them
any more.

Whether a run is being recorded, by the newest thing heard of it anywhere: in the store, in the spool, on the
nodes that ship.

A collector that closed has ended; one that did not counts until it has been silent for long. Imports are no collectors:
theirs is the time of the records.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypedDict

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, SegmentError, StoreError
from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir
from logprobe.monitor import queries
from logprobe.monitor.deletion import places
from logprobe.monitor.deletion.tombstones import IMPORTS, Tombstone, Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.liveness import ago, lost_after
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.store.store import Store

DELETE: Final = "run.delete"
RELEASE: Final = "run.release"
SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 60.0  # a job that began before a deletion has stored its results by then
_ALL_SECONDS: Final = 600.0  # between two looks at runs that were deleted long ago
_ANSWER_SECONDS: Final = 120.0  # of a service that is busy
_DELETE: Final = 'DELETE FROM "{table}" WHERE run = $run'
_ANY: Final = 'SELECT DISTINCT run FROM "{table}" WHERE run IN (SELECT unnest($runs))'
# Their rows name the run by what belongs to it.
_FIRST: Final[Mapping[str, str]] = {
    "alert_acknowledgements": "deletion_acknowledgements",
    "deliveries": "deletion_deliveries",
}
_IMPORT: Final = "import-"
_TRAINING: Final = frozenset({"training", "statistics", "step"})
_LAST: Final = 3  # health segments of a writer to look for its end in


def part(store: Store, stopping: threading.Event) -> Part:
    """What the service offers, and its sweeps."""
    sweeper = Sweeper(store, stopping)
    return Part(jobs=[Job("deletions", SECONDS, sweeper.run_once)], actions=actions.offered(_ACTIONS, store))


class Deleted(TypedDict):
    """What was removed of a run. `rows`: by table."""

    run: str
    deleted_at: str
    rows: dict[str, int]
    files: int
    bytes: int


class Released(TypedDict):
    """A deleted run whose name may be used again."""

    run: str
    released_at: str | None


def delete(home: Home, document: Mapping[str, Any]) -> Deleted:
    """Deletes the run of ``{"run", "author", "force"}``, through the service if one runs, else with the home to
    ourselves.

    Raises `ConfigurationError` when what is asked makes no sense, `HomeBusyError` or `StoreError` when the home cannot
    be had.
    """
    deleted: Deleted = actions.perform(_ACTIONS, home, DELETE, document, seconds=_ANSWER_SECONDS)
    return deleted


def release(home: Home, document: Mapping[str, Any]) -> Released:
    """Lets the name of ``{"run", "author"}`` be used again. Raises as `delete`."""
    released: Released = actions.perform(_ACTIONS, home, RELEASE, document, seconds=_ANSWER_SECONDS)
    return released


def waits(home: Home, run: str) -> bool:
    """Whether segments of a run lie in the spool."""
    return any(run_dir(home.path, run).glob("*/*"))


class Sweeper:
    """Finishes deletions that were cut short, and removes what jobs stored of a run while it was deleted. For one
    thread at a time."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._tombstones = Tombstones(store.home)
        self._quiet: dict[str, float] = {}  # deletion → when something of it was found last (monotonic)
        self._looked: float | None = None  # at all of them

    def run_once(self) -> dict[str, object]:
        """Counts of what was removed, and `left`: why not all of it was. Raises `StoreError`."""
        deleted = {
            tombstone.run: tombstone for tombstone in self._tombstones.all().values() if tombstone.released_at is None
        }
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
        for tombstone in deleted.values():
            self._quiet.setdefault(_name(tombstone), now)
        if self._looked is None or now - self._looked >= _ALL_SECONDS:
            self._looked = now
            return list(deleted)
        return [run for run, tombstone in deleted.items() if now - self._quiet[_name(tombstone)] < _QUIET_SECONDS]


def _name(tombstone: Tombstone) -> str:
    return f"{tombstone.deleted_at} {tombstone.run}"


def _delete(store: Store, document: Mapping[str, Any], now: datetime) -> Deleted:
    """``{"run", "author", "force"}``."""
    run, author = actions.run_of(document), actions.text(document, "author")
    tombstones = Tombstones(store.home)
    if tombstones.find(run) is None and not _is_there(store, run):
        raise ConfigurationError(f"no run {run!r} in this home; `logprobe runs` lists them")
    if tombstones.find(run) is None and document.get("force") is not True:
        refuse_recorded(store, store.home, run, now)
    writers = _writers(store, run)

    def deleted(before: Tombstone | None) -> Tombstone:
        if before is not None and before.released_at is None:  # asked again
            return replace(before, writers=before.writers | writers)
        all_writers = writers if before is None else before.writers | before.doubted | writers
        return Tombstone(run, now.isoformat(timespec="seconds"), author, all_writers)

    tombstone = tombstones.change(run, deleted)
    done = erase(store, run, author=author, action="run deleted", now=now)
    return {
        "run": run,
        "deleted_at": tombstone.deleted_at,
        "rows": done.rows,
        "files": done.files,
        "bytes": done.bytes,
    }


def refuse_recorded(source: queries.Source, home: Home, run: str, now: datetime) -> None:
    """Raises `ConfigurationError` when a run is being recorded."""
    sign = newest_sign(source, home, run, now)
    if sign is not None:
        raise ConfigurationError(
            f"{run} is being recorded ({sign}); end the training first, or pass --force: what it records from then on "
            "is removed too"
        )


def _writers(store: Store, run: str) -> frozenset[str]:
    """Collectors whose segments may still come. Imports are none: what they read can be imported again on purpose."""
    ingested = queries.deletion_writers(store, run=run)["writer"].to_pylist()
    waiting = [path.name for path in run_dir(store.home.path, run).glob("*/")]
    return frozenset(name for name in (*ingested, *waiting) if not name.startswith(IMPORTS))


def _release(store: Store, document: Mapping[str, Any], now: datetime) -> Released:
    """``{"run", "author"}``."""
    run, author = actions.run_of(document), actions.text(document, "author")
    tombstones = Tombstones(store.home)
    if tombstones.find(run) is None:
        raise ConfigurationError(f"run {run!r} was not deleted; `logprobe store delete` lists those that were")

    def released(prior: Tombstone | None) -> Tombstone:
        assert prior is not None  # noqa: S101 - nobody removes them
        return prior if prior.released_at is not None else replace(prior, released_at=now.isoformat(timespec="seconds"))

    places.remove_empty(places.raw_folder(store.home, run))  # whose files a read had held
    if left_of(store, [run]) and tombstones.all()[run].released_at is None:
        raise ConfigurationError(f"the deletion of {run!r} is not finished; repeat it: logprobe store delete {run}")
    done = tombstones.change(run, released)
    with store.transaction() as cursor:
        message = f"deleted at {done.deleted_at}; the name may be used again"
        store.execute(
            cursor, "alert_audit_write", time=now, author=author, action="run released", subject=run, words=message
        )
    return {"run": run, "released_at": done.released_at}


_ACTIONS: Final[actions.Actions] = {
    DELETE: ("permanently delete a run", _delete),
    RELEASE: ("let the name of a deleted run be used again", _release),
}


@dataclass(slots=True)
class Erased:
    """What was removed. `rows`: by table, of those that had any."""

    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0

    @property
    def nothing(self) -> bool:
        """Whether there was none."""
        return not (self.rows or self.files)

    @property
    def words(self) -> str:
        """For the audit."""
        rows = f"rows: {sum(self.rows.values()):,} in {len(self.rows)} tables"
        return f"{rows}; files: {self.files:,} ({self.bytes:,} bytes)"


def erase(store: Store, run: str, *, author: str, action: str, now: datetime) -> Erased:
    """Removes rows and files of a run. Raises `StoreError`; what was not done is done by the next attempt."""
    home = store.home
    store.raw.require()
    named = queries.deletion_files(store, run=run).to_pylist()
    on_disk = [home.path / row["path"] for row in named]
    own = [*places.places_of(home, run), *places.cached(home), *(p for p in on_disk if not p.is_relative_to(home.raw))]
    raw = [path for path, _ in places.files_in(places.raw_folder(home, run))]
    files = dict(sized for place in (*own, *raw) for sized in places.files_in(place))
    erased = Erased(files=len(files), bytes=sum(files.values()))
    failure = _removed(own)  # before the rows: while these are there, a killed deletion is known to be unfinished
    with store.transaction() as cursor:
        erased.rows = delete_rows(store, cursor, run)
        store.rewritten.note([run])
        if not erased.nothing:
            store.execute(
                cursor, "alert_audit_write", time=now, author=author, action=action, subject=run, words=erased.words
            )
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
    held = _in_tables(store, names)
    return held | {run for run in names if places.raw_folder(store.home, run).exists() or _others(store, run)}


def _in_tables(store: Store, runs: Sequence[str]) -> set[str]:
    if not runs:
        return set()
    sql = " UNION ".join(_ANY.format(table=table) for table in _tables(queries.deletion_tables(store)))
    return set(store.query(sql, {"runs": runs})["run"].to_pylist())


def _is_there(store: Store, run: str) -> bool:
    return bool(left_of(store, [run]) or places.places_of(store.home, run))


def _others(store: Store, run: str) -> list[Path]:
    return [place for place in places.places_of(store.home, run) if not place.is_relative_to(store.home.spool)]


def delete_rows(store: Store, cursor: Any, run: str) -> dict[str, int]:
    """Takes the rows of a run out of every table, inside a transaction; → their numbers by table."""
    counts = {}
    for table, name in _FIRST.items():
        store.execute(cursor, name, run=run)
        counts[table] = int(cursor.fetchone()[0])
    for table in _tables(queries.deletion_tables(store)):
        counts[table] = int(cursor.execute(_DELETE.format(table=table), {"run": run}).fetchone()[0])
    if any(counts.values()):
        store.said.forget(run)
    return {table: count for table, count in sorted(counts.items()) if count}


def _tables(tables: pa.Table) -> list[str]:
    return [str(name) for name in tables["table_name"].to_pylist()]


@dataclass(frozen=True, slots=True)
class Sign:
    """Of one collector: when it was seen last, whether it said that it ended, and whether it records training steps."""

    seen: datetime
    closed: bool
    trains: bool


def newest_sign(source: queries.Source, home: Home, run: str, now: datetime) -> str | None:
    """What says that a run is being recorded, in words; None: nothing does."""
    rows: list[Mapping[str, Any]] = [row for row in queries.app_runs(source).to_pylist() if row["run"] == run]
    (row,) = rows or [{"writers": []}]
    signs = {
        writer["name"]: Sign(writer["last_seen"], bool(writer["closed"]), bool(writer["trains"]))
        for writer in row["writers"]
    }
    for writer, sign in _waiting(home, run).items():
        earlier = signs.get(writer, sign)
        signs[writer] = replace(
            earlier,
            seen=max(earlier.seen, sign.seen),
            closed=earlier.closed or sign.closed,
            trains=earlier.trains or sign.trains,
        )
    lost = lost_after(row.get("step_seconds"))
    newest = _open_collector(signs, now - lost) or _imported(row, now - lost) or _shipped(source, run, now)
    return None if newest is None else f"{newest[0]} {ago(now, newest[1])}"


def _open_collector(signs: Mapping[str, Sign], since: datetime) -> tuple[str, datetime] | None:
    """The collector seen last that has not closed. Where trainers are known, only they decide: engines are often just
    killed."""
    collectors = {name: sign for name, sign in signs.items() if not name.startswith(_IMPORT)}
    deciding = {name: sign for name, sign in collectors.items() if sign.trains} or collectors
    present = [(sign.seen, name) for name, sign in deciding.items() if not sign.closed and sign.seen >= since]
    return (f"collector {max(present)[1]} was seen", max(present)[0]) if present else None


def _imported(row: Mapping[str, Any], since: datetime) -> tuple[str, datetime] | None:
    newest = row.get("last_record_at")
    alone = all(writer["name"].startswith(_IMPORT) for writer in row["writers"])
    return ("the newest record was made", newest) if alone and newest is not None and newest >= since else None


def _shipped(source: queries.Source, run: str, now: datetime) -> tuple[str, datetime] | None:
    """A node that still has something of the run."""
    nodes = [row for row in queries.nodes_of(source, run=run, now=now).to_pylist() if row["segments"] != 0]
    newest = max(((row["seen_at"], row["node"]) for row in nodes), default=None)
    return (
        None
        if newest is None or now - newest[0] > lost_after(None)
        else (f"node {newest[1]} had records to send", newest[0])
    )


def _waiting(home: Home, run: str) -> dict[str, Sign]:
    """What the spool tells of each writer of a run: files that wait there or are being written."""
    signs: dict[str, Sign] = {}
    with suppress(OSError), os.scandir(run_dir(home.path, run)) as writers:
        for writer in writers:
            files = sorted(path for path in Path(writer.path).glob("*.arrow") if not path.name.startswith("."))
            if files:
                kinds = {path.name.split(".")[1] for path in files}
                seen = datetime.fromtimestamp(max(_modified(path) for path in files), UTC)
                signs[writer.name] = Sign(seen, _is_closed(files), bool(kinds & _TRAINING))
    return signs


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # ingested meanwhile


def _is_closed(files: list[Path]) -> bool:
    """Whether the last of a writer's own words are a goodbye."""
    for path in [path for path in files if ".health." in path.name][-_LAST:]:
        with suppress(SegmentError, OSError):
            if "closed" in read_segment(SegmentPath.parse(path)).table["event"].to_pylist():
                return True
    return False
