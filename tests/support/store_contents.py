"""What a store and the folders beside it hold, for tests."""

from __future__ import annotations

import math
from typing import Any

from logprobe.monitor.store.store import Store


def rows(store: Store, sql: str) -> list[dict[str, Any]]:
    """All rows."""
    return store.query(sql).to_pylist()


def value(store: Store, sql: str) -> Any:
    """The first row's first value."""
    return store.query(sql)[0][0].as_py()


def same(a: Any, b: Any, rel: float = 1e-9) -> bool:
    """Equal, numbers within rounding: DuckDB adds in no fixed order."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=rel, abs_tol=1e-12)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], rel) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(*pair, rel) for pair in zip(a, b, strict=True))
    return bool(a == b)


def spool_files(store: Store) -> list[str]:
    """Files in the spool, relative to it, but for those that were taken in and wait for the archive."""
    files = [path for path in store.home.spool.rglob("*") if path.is_file() and not store.archive.waits(str(path))]
    return sorted(str(path.relative_to(store.home.spool)) for path in files)


def raw_paths(store: Store) -> list[str]:
    """Raw Parquet files, relative to the home."""
    return sorted(store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*"))
