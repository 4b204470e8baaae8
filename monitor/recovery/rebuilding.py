"""Makes a home's store fit its raw tokens and its spool, whatever became of it: lost, damaged, or put back from a backup.

What can be opened is kept. Raw files that the store does not list are read, and bring every number that raw tokens can give; files that
it lists and that are gone are forgotten. Nothing is thrown away: what cannot be opened is renamed and stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import duckdb

from logprobe.collectors.errors import ObjectStoreError, SegmentError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.adopting import Adopter
from logprobe.monitor.service.pipeline import Pipeline, Report
from logprobe.monitor.store.incomplete import incomplete_steps
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.raw_files import note_pending, settle_pending
from logprobe.monitor.store.raw_ownership import unlistable
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.store import Store


@dataclass(slots=True)
class Rebuilt:
    """What was done. `incomplete`: run → between which steps not all raw tokens are there; what is missing there stays unknown."""

    new_store: bool = False
    set_aside: list[str] = field(default_factory=list)
    adopted_files: int = 0
    sequences: int = 0
    redundant_files: int = 0
    forgotten_files: int = 0
    unreadable: list[str] = field(default_factory=list)
    incomplete: dict[str, list[int]] = field(default_factory=dict)
    from_spool: int = 0  # segments
    unlisted_objects: int = 0  # raw files in the object store that this store does not know
    seconds: float = 0.0


def rebuild(home: Home) -> Rebuilt:
    """Does it, with the home to ourselves. Raises `HomeBusyError` while a service runs, `StoreError`."""
    started, done = time.monotonic(), Rebuilt()
    with home.lock(), _opened(home, done) as store:
        store.raw.adopt()
        known = set(store.query("SELECT path FROM raw_files WHERE location IS NULL")["path"].to_pylist())
        unknown, unlisted = settle_pending(home, known)
        done.unreadable += map(unlistable, unlisted)
        _adopt(store, unknown, done)
        done.forgotten_files = Retention(store).forget_missing()
        done.from_spool = _ingest(store)
        done.incomplete = dict(_incomplete(store))
        _claim_objects(store, done)
        store.try_checkpoint()
    done.seconds = round(time.monotonic() - started, 1)
    return done


def _opened(home: Home, done: Rebuilt) -> Store:
    """The store, if it can be opened with its log or without, else a new one; what cannot be opened is set aside."""
    log = home.database.with_name(f"{home.database.name}.wal")
    for place in (log, home.database):
        if place.exists() and (problem := _damage(home)):
            aside = place.with_name(f"{place.name}.damaged-{int(time.time())}")
            place.rename(aside)
            done.set_aside.append(f"{aside} ({problem})")
    done.new_store = not home.database.exists()
    return Store.open(home)


def _damage(home: Home) -> str | None:
    """Why the file and its log cannot be read; None: all of it can. Raises `StoreError` when somebody has it open."""
    if not home.database.exists():
        return "the database that it belongs to is gone"
    try:
        with duckdb.connect(str(home.database)) as connection:
            for (table,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
                connection.execute(f'SELECT max(hash(t)) FROM "{table}" AS t').fetchall()  # noqa: S608 - our own names
    except duckdb.Error as error:
        if "set lock" in str(error):
            raise StoreError(f"{home.database} is open elsewhere ({one_line(error)}); close it first") from error
        return one_line(error)
    return None


def _adopt(store: Store, unknown: list[str], done: Rebuilt) -> None:
    adopter = Adopter(store)
    for path in unknown:
        try:
            sequences = adopter.adopt(path)
        except SegmentError as error:
            done.unreadable.append(str(error))
            continue
        if sequences is None:  # a merge that was not finished, or an ingest that was repeated
            note_pending(store.home, [path])
            store.retire([path])
            done.redundant_files += 1
        else:
            done.adopted_files += 1
            done.sequences += sequences


def _ingest(store: Store) -> int:
    pipeline = Pipeline(store, threading.Event())

    def follow_up(_: Report) -> None:
        pipeline.join()
        pipeline.compute_steps()

    report = pipeline.ingest(follow_up)
    follow_up(report)
    pipeline.profile()
    return int(report["segments"])


def _claim_objects(store: Store, done: Rebuilt) -> None:
    """Lets this store use its prefix again. What others wrote there stays."""
    prefix = store.objects.settings.raw
    if prefix is None:
        return
    try:
        store.object_owner.adopt(prefix)
        raw_objects = {url for url, _ in store.objects.listed(prefix) if url.endswith(".parquet")}
    except ObjectStoreError as error:
        done.unreadable.append(str(error))
    else:
        done.unlisted_objects = len(raw_objects.difference(store.raw_objects()))


def _incomplete(store: Store) -> Iterator[tuple[str, list[int]]]:
    for run in store.query("SELECT DISTINCT run FROM segments ORDER BY run")["run"].to_pylist():
        steps = incomplete_steps(store.home, run)
        if steps is not None:
            yield run, list(steps)
