"""What a store and the folders beside it hold, for tests."""

from __future__ import annotations

from typing import Any

from logprobe.monitor.store.store import Store


def rows(store: Store, sql: str) -> list[dict[str, Any]]:
    """All rows."""
    return store.query(sql).to_pylist()


def value(store: Store, sql: str) -> Any:
    """The first row's first value."""
    return store.query(sql)[0][0].as_py()


def spool_files(store: Store) -> list[str]:
    """Files in the spool, relative to it."""
    return sorted(str(path.relative_to(store.home.spool)) for path in store.home.spool.rglob("*") if path.is_file())


def raw_paths(store: Store) -> list[str]:
    """Raw Parquet files, relative to the home."""
    return sorted(store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*"))
