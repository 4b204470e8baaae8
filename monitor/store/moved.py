"""Tables of free SQL that the service fills from the object store, for processes that may not reach it.

In the store they are empty. Statements of our own name the files they need instead (``raw_…_in``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import empty_file
from logprobe.monitor.store.raw_places import object_path, pattern
from logprobe.monitor.store.sql_files import statement

MOVED: Final = {"training": "moved_training", "rollout": "moved_rollout"}
JOINED: Final = "moved_joined"
_KINDS: Final = {name: kind for kind, name in MOVED.items()} | {JOINED: "rollout"}


def is_moved(table: str) -> bool:
    """Whether the service fills a table."""
    return table in _KINDS


def runs(cursor: duckdb.DuckDBPyConnection, table: str) -> pa.Table:
    """Rows (run, first, last): what a table would have."""
    if table == JOINED:
        relation = cursor.sql(statement("moved_joined_runs"))
    else:
        relation = cursor.sql(statement("raw_moved_runs"), params={"kind": _KINDS[table]})
    with relation.to_arrow_reader() as reader:
        return reader.read_all()


def files(
    cursor: duckdb.DuckDBPyConnection, table: str, of_runs: Sequence[str | None] | None, steps: Sequence[int] | None
) -> list[str]:
    """The objects that may hold a table's rows of some runs and steps (None: all)."""
    first, last = steps if steps is not None else (None, None)
    asked = {"kind": _KINDS[table], "runs": None if of_runs is None else list(of_runs), "first": first, "last": last}
    return [object_path(location) for (location,) in cursor.execute(statement("raw_moved"), asked).fetchall()]


def source(table: str) -> str:
    """What to read a table's rows from, with the files as the parameter ``$files``."""
    return f"({statement(JOINED)})" if table == JOINED else f"raw_{_KINDS[table]}_in($files)"


def empty(home: Home, table: str) -> str:
    """The file without rows: it has the columns that objects of an earlier logprobe lack."""
    return pattern(empty_file(home, _KINDS[table]))
