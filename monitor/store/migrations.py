"""Brings the store's schema up to what this version of the code expects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import duckdb

from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store.sql_files import Migration, migrations

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_versions (
    version    INTEGER PRIMARY KEY,
    name       VARCHAR NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)
"""


def current_version(connection: duckdb.DuckDBPyConnection) -> int:
    """The schema version of an open store; 0: empty."""
    tables = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'schema_versions'").fetchall()
    if not tables:
        return 0
    rows = connection.execute("SELECT coalesce(max(version), 0) FROM schema_versions").fetchall()
    return int(rows[0][0])


def migrate(connection: duckdb.DuckDBPyConnection, home: Home, steps: Sequence[Migration] | None = None) -> None:
    """Applies what is missing, all of it in one transaction: an upgrade that fails leaves the store as it was.

    Raises `StoreError` when the store is newer than this code.
    """
    all_steps = migrations() if steps is None else steps
    have = current_version(connection)
    check_not_newer(have, home, all_steps)
    missing = [step for step in all_steps if step.version > have]
    if not missing:
        return
    connection.execute("BEGIN TRANSACTION")
    try:
        connection.execute(_TABLE)
        for step in missing:
            connection.execute(step.sql)
            connection.execute("INSERT INTO schema_versions (version, name) VALUES (?, ?)", [step.version, step.name])
        connection.execute("COMMIT")
    except duckdb.Error as error:
        rollback(connection)
        raise StoreError(f"{home.database}: upgrade of the store failed and was rolled back ({error})") from error
    with suppress(duckdb.Error):  # a lost log must not take the schema, and with it the store's identity, away
        connection.execute("CHECKPOINT")


def check_not_newer(have: int, home: Home, steps: Sequence[Migration] | None = None) -> None:
    """Raises `StoreError` when a store of version `have` was written by a newer logprobe."""
    newest = (migrations() if steps is None else steps)[-1].version
    if have > newest:
        raise StoreError(
            f"{home.database} has schema version {have}, this logprobe supports versions up to {newest}; "
            "upgrade logprobe, or choose another home"
        )


def rollback(connection: duckdb.DuckDBPyConnection) -> None:
    """Rolls back, if there is anything left to roll back."""
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        return  # DuckDB has done so on its own: a failed COMMIT or a fatal error leaves no transaction behind
