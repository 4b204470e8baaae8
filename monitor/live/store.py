"""Access of ticks to the store: one transaction for their rows, and reads of stored runs."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from logprobe.monitor.live.memory import Memory
from logprobe.monitor.live.records import LISTS
from logprobe.monitor.live.tick import Live
from logprobe.monitor.store.store import Store
from logprobe.monitor.store.token_lists import lists


class Within:
    """Stored statements within one transaction. See `writing.Transaction`."""

    def __init__(self, store: Store, cursor: duckdb.DuckDBPyConnection) -> None:
        self._store, self._cursor = store, cursor

    def execute(self, name: str, incoming: pa.Table | None = None, /, *, table: str = "", **params: Any) -> None:
        """Run a stored statement that writes."""
        self._store.execute(self._cursor, name, incoming, table=table, **params)

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement, including earlier writes of the transaction."""
        return self._store.read_within(self._cursor, name, incoming, **params)


class Stored:
    """Stored rows of runs. See `memory.Source`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement. Raises `QueryError`."""
        return self._store.read(name, *([] if incoming is None else [incoming]), **params)

    def lists(self, kind: str, keys: pa.Table) -> pa.Table:
        """Return token lists of records. Omit those in files that are gone or damaged.

        Raises `QueryError` if a file cannot be read now.
        """
        return lists(self._store, kind, LISTS[kind], keys)


def live_of(store: Store) -> Live:
    """Return empty live runs for a service that has just started. A run is read at its first news."""
    return Live(Memory(Stored(store)))
