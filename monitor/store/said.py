"""Log of the facts that only the store has: actions of users and the controller, sent messages, and quarantine reasons.

Rows of records can be rebuilt from files, but the statements listed here follow from no record. A transaction that runs
some of them adds a journal entry, which is durable before the commit. A new store starts by replaying them in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store.journal import Entry, Journal
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.sql_files import statement

STATEMENTS: Final = frozenset(
    {
        "controller_act",
        "controller_save",
        "experiments_write",
        "incident_adopt",
        "incident_close",
        "incident_open",
        "outbox_enqueue",
        "outbox_progress",
        "outbox_route",
        "outbox_routed",
        "quarantine_add",
        "quarantine_forget",
        "user_actions_write",
    }
)
KIND: Final = "statements"
_FORGET: Final = "forget"
_DELETE: Final = 'DELETE FROM "{table}" WHERE run = $run'
_TIME, _FLOAT = "time", "float"  # keys of objects that stand for what JSON has no word for
Statement = tuple[str, Mapping[str, Any], list[dict[str, Any]] | None]  # name, parameters, rows of `incoming`


class Said:
    """Journaled statements of the open transaction. Used by the writing thread only."""

    def __init__(self, home: Home, version: int, time: Time) -> None:
        """Set up the log. `version`: version of the statements' schema."""
        self._journal = Journal(home.path, time=time)
        self._version = version
        self._pending: list[Statement] = []

    def open(self, connection: duckdb.DuckDBPyConnection, *, empty: bool) -> None:
        """Read the journal and replay it in a transaction into an `empty` store. Raises `StoreError`."""
        entries = self._journal.open()
        for entry in entries if empty else ():
            self._run(connection, entry)

    def problems(self) -> list[str]:
        """Return a sentence about damaged lines of the journal and the remedy, or nothing."""
        if not (lines := self._journal.damaged):
            return []
        words = f"{self._journal.path}: {len(lines)} lines are damaged, the first of them line {lines[0]}; a new store would "
        return [words + "lack their entries. Restore the file, or remove these lines"]

    def note(self, name: str, params: Mapping[str, Any], incoming: pa.Table | None) -> None:
        """Add a statement of the open transaction if `STATEMENTS` contains it."""
        if name in STATEMENTS:
            self._pending.append((name, dict(params), None if incoming is None else incoming.to_pylist()))

    def forget(self, cursor: duckdb.DuckDBPyConnection, run: str) -> dict[str, int]:
        """Delete the rows of a run from every table, in the open transaction. Return their numbers by table."""
        if counts := _forget(cursor, run):
            self._pending.append((_FORGET, {"run": run}, None))
        return counts

    def keep(self) -> None:
        """Write the added statements durably before their commit. Raises `StoreError`."""
        if self._pending:
            of = [[name, _plain(params), rows] for name, params, rows in self._pending]
            self._journal.append(KIND, {"schema": self._version, "of": of})

    def drop(self) -> None:
        """Discard the added statements after their transaction."""
        self._pending = []

    def _run(self, connection: duckdb.DuckDBPyConnection, entry: Entry) -> None:
        if entry.kind != KIND or entry.what.get("schema") != self._version:
            raise StoreError(
                f"{self._journal.path}, line {entry.number}: written by another version of logprobe. Move the file "
                "away to start without the recorded user actions"
            )
        try:
            for name, params, rows in entry.what["of"]:
                if name == _FORGET:
                    _forget(connection, params["run"])
                elif rows != []:
                    _execute(connection, name, {key: _value(value) for key, value in params.items()}, rows)
        except duckdb.IntegrityError as error:
            raise StoreError(
                f"{self._journal.path}, line {entry.number}: cannot be replayed ({one_line(error)}). Restore the "
                "file, or remove this line, and start again"
            ) from error


def _execute(connection: duckdb.DuckDBPyConnection, name: str, params: Any, rows: list[dict[str, Any]] | None) -> None:
    if rows is not None:
        connection.register("incoming", pa.Table.from_pylist(rows))
    connection.execute(statement(name), params or None)
    if rows is not None:
        connection.unregister("incoming")


def _forget(connection: duckdb.DuckDBPyConnection, run: str) -> dict[str, int]:
    counts = {}
    for (table,) in connection.execute(statement("deletion_tables")).fetchall():
        counts[table] = int(connection.execute(_DELETE.format(table=table), {"run": run}).fetchall()[0][0])
    return {table: count for table, count in counts.items() if count}


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _said(value) for key, value in params.items()}


def _said(value: Any) -> Any:
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    return {_FLOAT: repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return datetime.fromisoformat(value[_TIME]) if _TIME in value else float(value[_FLOAT])
