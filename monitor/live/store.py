"""The store as ticks use it: one transaction of theirs, and what it has of runs."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.collectors.files import is_gone
from logprobe.monitor import queries
from logprobe.monitor.live.memory import Memory
from logprobe.monitor.live.tick import Live
from logprobe.monitor.store.store import Store


class Within:
    """Stored statements within one transaction. See `writing.Transaction`."""

    def __init__(self, store: Store, cursor: duckdb.DuckDBPyConnection) -> None:
        self._store, self._cursor = store, cursor

    def execute(self, name: str, incoming: pa.Table | None = None, /, *, table: str = "", **params: Any) -> None:
        """Run one that writes."""
        self._store.execute(self._cursor, name, incoming, table=table, **params)

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of one, with what was written before."""
        return self._store.read_within(self._cursor, name, incoming, **params)


class Stored:
    """What the store has of runs. See `memory.Source`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement. Raises `QueryError`."""
        return self._store.read(name, *([] if incoming is None else [incoming]), **params)

    def lists(self, kind: str, keys: pa.Table) -> pa.Table:
        """Return token lists of records; those in files that are gone or damaged are left out.

        Raises `QueryError` when a file cannot be read now.
        """
        with self._store.holding_files():
            places = queries.past_files(self._store, keys.select(["segment_id"]))["raw_file"].unique().to_pylist()
            whole = pa.array([place for place in places if self._is_whole(place)], pa.string())
            files = self._store.raw_places(**{kind: pa.chunked_array([whole])})
            return self._store.read(f"past_{kind}_lists", keys, **files)

    def _is_whole(self, place: str) -> bool:
        path = self._store.home.path / place
        try:
            return not is_gone(path) and self._store.raw.damaged.compared.fault(path) is None
        except FileNotFoundError:
            return False
        except OSError as error:
            raise QueryError(f"{path}: cannot be read now ({error.strerror or error})") from error


def live_of(store: Store) -> Live:
    """Return what a service knows that has just started: nothing is read before a run has news."""
    return Live(Memory(Stored(store)))
