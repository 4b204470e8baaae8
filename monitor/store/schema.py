"""Schema of the store. It is created in an empty file, and no other schema is opened."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import duckdb

from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store.said import Said
from logprobe.monitor.store.sql_files import schema

VERSION: Final = 50


def create(connection: duckdb.DuckDBPyConnection, home: Home, said: Said) -> None:
    """Create the tables in one transaction in an empty store, and replay the journal.

    Raises:
        StoreError: the store has another schema, the tables cannot be created, or the journal cannot be read.
    """
    if _has_schema(connection, home):
        said.open(connection, empty=False)
        return
    connection.execute("BEGIN TRANSACTION")
    try:
        connection.execute("CREATE TABLE schema_versions (version INTEGER PRIMARY KEY)")
        connection.execute(schema())
        connection.execute("INSERT INTO schema_versions VALUES (?)", [VERSION])
        said.open(connection, empty=True)
        connection.execute("COMMIT")
    except StoreError:
        rollback(connection)
        raise
    except duckdb.Error as error:
        rollback(connection)
        raise StoreError(
            f"{home.database}: its tables cannot be created ({error}); make room, or the folder writable"
        ) from error


def check(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Raise `StoreError` unless the open store is empty or has this code's schema."""
    _has_schema(connection, home)


def check_file(home: Home) -> None:
    """Raise `StoreError` if the store of a data directory has another schema. Change no file.

    A missing store passes. So does an unreadable one, since opening it reports the error.
    """
    if not home.database.exists():
        return
    with suppress(duckdb.Error), duckdb.connect(str(home.database), read_only=True) as connection:
        check(connection, home)


def check_version(version: int, place: str) -> None:
    """Raise `StoreError` if the store at `place` has another schema `version` than this code."""
    if version > VERSION:
        raise StoreError(
            f"{place} has schema {version}; this logprobe supports schema {VERSION}. Upgrade logprobe, or use a new "
            "data directory."
        )
    if version < VERSION:
        raise StoreError(
            f"{place} has schema {version} of an older logprobe. Export its runs with the version that wrote it "
            "(logprobe export), or use a new data directory."
        )


def rollback(connection: duckdb.DuckDBPyConnection) -> None:
    """Roll back the open transaction, if there is one."""
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        return  # DuckDB has done so on its own: a failed COMMIT or a fatal error leaves no transaction behind


def _has_schema(connection: duckdb.DuckDBPyConnection, home: Home) -> bool:
    """Return True for this code's schema and False for an empty store. Raise `StoreError` for any other schema."""
    try:
        (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_versions").fetchall()[0]
    except duckdb.CatalogException:  # no such table
        if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE NOT internal").fetchall():
            return False
        raise StoreError(
            f"{home.database} is a database of another program. Move it away, or use a new data directory."
        ) from None
    check_version(version, str(home.database))
    return True
