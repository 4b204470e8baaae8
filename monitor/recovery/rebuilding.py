"""Makes a home's store fit its raw tokens and its spool, whatever became of it: lost, damaged, or put back from a
backup.

What can be opened is kept. Raw files that the store does not list are read, and bring every number that raw tokens can
give; files that it lists and that are gone are forgotten. Nothing is thrown away: what cannot be opened is renamed and
stays.

What `restore` replaces with a backup is renamed and stays; tombstones of deleted runs stay, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb

from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.adopting import Adopter, Source
from logprobe.monitor.recovery.backup import MANIFEST, check_backup
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.copies import copy_durably
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.raw_files import (
    Steps,
    damaged_steps,
    incomplete_steps,
    note_pending,
    settle_pending,
)
from logprobe.monitor.store.raw_ownership import unlistable
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.store import LOCKED, Store

_STORE: Final = ("logprobe.duckdb", "logprobe.duckdb.wal")


@dataclass(slots=True)
class Rebuilt:
    """What was done. `incomplete`: run → between which steps not all raw tokens are there; what is missing there stays
    unknown."""

    new_store: bool = False
    set_aside: list[str] = field(default_factory=list)
    adopted_files: int = 0
    sequences: int = 0
    redundant_files: int = 0
    forgotten_files: int = 0
    unreadable: list[str] = field(default_factory=list)
    incomplete: dict[str, list[Steps]] = field(default_factory=dict)
    from_spool: int = 0  # segments
    seconds: float = 0.0


def rebuild(home: Home) -> Rebuilt:
    """Does it, with the home to ourselves. Raises `HomeBusyError` while a service runs, `StoreError`."""
    started, done = time.monotonic(), Rebuilt()
    with home.lock(), _opened(home, done) as store:
        store.raw.adopt()
        with store.raw.rebuilding():
            registered = set(store.query("SELECT path FROM raw_files")["path"].to_pylist())
            unknown, unlisted = settle_pending(home, registered)
            done.unreadable += map(unlistable, unlisted)
            damaged = _adopt(store, unknown, done)
            done.forgotten_files = Retention(store).forget_missing()
        done.from_spool = _ingest(store)
        done.incomplete = dict(_incomplete(store, damaged))
        store.try_checkpoint()
    done.seconds = round(time.monotonic() - started, 1)
    return done


def _opened(home: Home, done: Rebuilt) -> Store:
    """The store, if it can be opened with its log or without, else a new one; what cannot be opened is set aside."""
    log = home.database.with_name(f"{home.database.name}.wal")
    for place in (log, home.database):
        if place.exists() and (problem := _damage(home)):
            aside = _renamed(place, "damaged")
            done.set_aside.append(f"{aside} ({problem})")
    there = home.database.exists()
    store = Store.open(home)
    # One without records is what a start has made in place of one that was lost.
    done.new_store = not there or not store.query("SELECT 1 FROM segments LIMIT 1").num_rows
    return store


def _damage(home: Home) -> str | None:
    """Why the file and its log cannot be read; None: all of it can. Raises `StoreError` when someone has it open."""
    if not home.database.exists():
        return "the database that it belongs to is gone"
    try:
        with duckdb.connect(str(home.database)) as connection:
            for (table,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
                connection.execute(f'SELECT max(hash(t)) FROM "{table}" AS t').fetchall()  # noqa: S608 - our own names
    except duckdb.Error as error:
        if LOCKED in str(error):
            raise StoreError(f"{home.database} is open elsewhere ({one_line(error)}); close it first") from error
        return one_line(error)
    return None


def _adopt(store: Store, unknown: list[str], done: Rebuilt) -> dict[str, Steps]:
    """→ run → between which steps a damaged file may have had sequences."""
    files = _readable(store, unknown, done)
    damaged = damaged_steps(store.home, set(unknown) - {source.file.path for source in files})
    adopter = Adopter(store, damaged)
    for source in files:
        sequences = adopter.adopt(source)
        if sequences is None:  # a merge that was not finished, or an ingest that was repeated
            note_pending(store.home, [source.file.path])
            store.retire([source.file.path])
            done.redundant_files += 1
        else:
            done.adopted_files += 1
            done.sequences += sequences
    return damaged


def _readable(store: Store, paths: list[str], done: Rebuilt) -> list[Source]:
    """Those that are whole and this home's: all of each is read."""
    whole, adopter = [], Adopter(store)
    for path in paths:
        try:
            source = Source.on_disk(store.home, path)
            adopter.rows(source)
        except (OSError, SegmentError) as error:
            done.unreadable.append(str(error))
        else:
            whole.append(source)
    return whole


def _ingest(store: Store) -> int:
    pipeline = Pipeline(store, threading.Event())
    report = pipeline.ingest(lambda _: None)
    pipeline.profile()
    return int(report["segments"])


def _incomplete(store: Store, damaged: Mapping[str, Steps]) -> Iterator[tuple[str, list[Steps]]]:
    recorded = store.query("SELECT run FROM segments UNION SELECT run FROM raw_files")["run"].to_pylist()
    for run in sorted({*recorded, *damaged}):
        steps = {*incomplete_steps(store.home, run), *([damaged[run]] if run in damaged else [])}
        if steps:
            yield run, sorted(steps)


def restore(home: Home, folder: Path) -> Rebuilt:
    """Puts the store of a backup back, adds the other files that the home lacks, then rebuilds.

    Raises `ConfigurationError` when the folder is no backup, `HomeBusyError` while a service runs, `StoreError`.
    """
    check_backup(folder)
    with home.lock():
        try:
            replaced = _set_aside(home)
            for source in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
                target = home.path / source.relative_to(folder)
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copy_durably(source, target)
        except OSError as error:
            raise StoreError(f"{home.path} cannot be written ({error}); make room and repeat the command") from error
    done = rebuild(home)
    done.set_aside = [*replaced, *done.set_aside]
    return done


def _set_aside(home: Home) -> list[str]:
    """Renames the store; → its new names."""
    return [str(_renamed(home.path / name, "replaced")) for name in _STORE if (home.path / name).exists()]


def _renamed(file: Path, reason: str) -> Path:
    """Under a name that no earlier attempt gave: nothing that was set aside is replaced."""
    aside = file.with_name(f"{file.name}.{reason}-{time.time_ns()}")
    return file.rename(aside)
