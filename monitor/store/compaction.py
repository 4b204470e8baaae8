"""Gives free space in the store's file back to the disk: a copy without it, proven to be equal, takes the file's place.

DuckDB uses blocks again that deleting or folding has freed, and never gives them back. A copy beside the file has only
what is in use. It counts once every table, view, macro and sequence was read back equal and the copy is on the disk;
then it is renamed over the file, which is the one moment at which anything changes. Killed before, the file is as it
was and the rest of the copy is removed next time.

The home must be the caller's own. Beside a service it would be too dangerous: a reader that still has the old file open
would make DuckDB open that one again, and what is written to it would be lost.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import fsync_folder
from logprobe.monitor.budgets import GIB, MIB, store_memory
from logprobe.monitor.home import Home
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.schema import check

LOGGER: Final = logging.getLogger("logprobe.store")
_ROOM: Final = 256 * MIB  # that the disk keeps free
# A service compacts when it starts if that gives much back and takes seconds.
_MUCH: Final = GIB
_SECONDS_OF_WORK: Final = 2 * GIB

# What must be the same in the copy, row by row, of the database that the parameter names.
_CATALOG: Final = {
    "tables": "SELECT table_name FROM duckdb_tables() WHERE database_name = ?",
    "columns": "SELECT table_name, column_name, data_type, column_default, is_nullable FROM duckdb_columns() WHERE "
    "database_name = ?",
    "constraints": "SELECT table_name, constraint_text FROM duckdb_constraints() WHERE database_name = ?",
    "indexes": "SELECT table_name, index_name, sql FROM duckdb_indexes() WHERE database_name = ?",
    "views": "SELECT view_name, comment FROM duckdb_views() WHERE database_name = ? AND NOT internal",
    "macros": "SELECT function_name, macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal",
    "sequences": "SELECT sequence_name, coalesce(last_value + increment_by, start_value) FROM duckdb_sequences() WHERE "
    "database_name = ?",
}
_CONTENT: Final = 'SELECT count(*), sum(hash(t)::HUGEINT), bit_xor(hash(t)) FROM {place}."{table}" AS t'


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes of the file before and after, and how many `tables` were read back equal."""

    before: int
    after: int
    tables: int
    seconds: float


def compact(home: Home) -> Compacted:
    """Compacts the store of a home that the caller has locked.

    Raises:
        StoreError: the file cannot be opened, the disk lacks room for a copy, or the copy differs; the file is as it
            was.
    """
    started, path = time.monotonic(), home.database.resolve()
    if not path.exists():
        raise StoreError(f"{home.database} does not exist: nothing to compact")
    copy = _copy_of(path)
    _remove(copy)
    before = path.stat().st_size
    try:
        with _opened(path) as connection:
            check(connection, home)
            connection.execute("CHECKPOINT")
            _check_log(path)
            _check_room(path, _size(connection)[0])
            tables = _copied(connection, copy)
            _check_log(copy)
            shutil.copymode(path, copy)
            os.chown(copy, path.stat().st_uid, path.stat().st_gid)  # root may do it for the service's user
            _made_durable(copy)
            _check_log(path)
            _take_place(copy, path)
    except (duckdb.Error, OSError) as error:
        raise StoreError(f"{home.database} was not compacted and is as it was ({one_line(error)})") from error
    finally:
        _remove(copy)
    return Compacted(before, path.stat().st_size, tables, round(time.monotonic() - started, 1))


def compact_at_start(home: Home) -> None:
    """Compacts if at least half of the file, and much, is free and it takes seconds. Never raises: the store is as good
    without."""
    try:
        path = home.database.resolve()
        _remove(_copy_of(path))
        if not path.exists() or path.stat().st_size < _MUCH:
            return
        with _opened(path) as connection:
            used, free = _size(connection)
        if free >= max(used, _MUCH) and used <= _SECONDS_OF_WORK:
            done = compact(home)
            LOGGER.info(
                "compacted %s: %d MiB given back in %.0f s", path, (done.before - done.after) // MIB, done.seconds
            )
    except (StoreError, duckdb.Error, OSError) as error:
        LOGGER.warning("not compacted: %s", one_line(error))


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.compacting")


def _remove(copy: Path) -> None:
    for file in (copy, _log(copy)):
        file.unlink(missing_ok=True)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


@contextmanager
def _opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The file, locked: while it is open no other process can open it."""
    with duckdb.connect(str(path), config={"memory_limit": f"{store_memory() // MIB}MiB"}) as connection:
        yield connection


def _size(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Bytes in use and bytes free."""
    used, free = connection.execute(
        "SELECT used_blocks * block_size, free_blocks * block_size FROM pragma_database_size()"
    ).fetchall()[0]
    return int(used), int(free)


def _check_log(path: Path) -> None:
    """What is in the log would not be in the copy, and would be applied to it."""
    log = _log(path)
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{log} is not empty after a checkpoint; {path} is as it was")


def _check_room(path: Path, used: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < used + _ROOM:
        raise StoreError(
            f"{path} has {used / GIB:.2f} GiB in use, and a copy without its free space needs that beside it and "
            f"{_ROOM / GIB:.2f} GiB "
            f"more; the disk has {free / GIB:.2f} GiB free: make room, or move the file to a larger disk"
        )


def _copied(connection: duckdb.DuckDBPyConnection, copy: Path) -> int:
    """Writes the copy and reads it back; → its tables. Raises `StoreError` where it differs."""
    place = str(copy).replace("'", "''")
    connection.execute(f"ATTACH '{place}' AS compacted (STORAGE_VERSION 'v1.5.0')")
    (source,) = connection.execute("SELECT current_database()").fetchall()[0]
    connection.execute(f'COPY FROM DATABASE "{source}" TO compacted')
    connection.execute("CHECKPOINT compacted")
    connection.execute("DETACH compacted")
    connection.execute(f"ATTACH '{place}' AS compacted (READ_ONLY)")  # from the disk, not from memory
    copied, expected = (_content(connection, name) for name in ("compacted", source))
    if different := sorted(name for name in expected.keys() | copied.keys() if expected.get(name) != copied.get(name)):
        raise StoreError(f"the copy differs from the store in {', '.join(different)}; the store is as it was")
    connection.execute("DETACH compacted")
    return len(expected) - len(_CATALOG)


def _content(connection: duckdb.DuckDBPyConnection, database: str) -> dict[str, list[tuple[Any, ...]]]:
    """What a database holds, by name: its catalog, and of each table the number of rows and two checksums of them."""
    content = {name: sorted(connection.execute(sql, [database]).fetchall(), key=repr) for name, sql in _CATALOG.items()}
    for (table,) in content["tables"]:
        content[f"table {table}"] = connection.execute(_CONTENT.format(place=f'"{database}"', table=table)).fetchall()
    return content


def _made_durable(copy: Path) -> None:
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    fsync_folder(copy.parent)


def _take_place(copy: Path, path: Path) -> None:
    copy.replace(path)
    fsync_folder(path.parent)
