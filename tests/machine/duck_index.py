"""The index of the model service in a real DuckDB file, which a test deletes or tears."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from model_service import Number

from logprobe.collectors.spool.segments import run_name

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (run VARCHAR, id VARCHAR, PRIMARY KEY (run, id));
CREATE TABLE IF NOT EXISTS numbers (run VARCHAR, source VARCHAR, step BIGINT, sample VARCHAR, value DOUBLE);
CREATE TABLE IF NOT EXISTS frozen (run VARCHAR, step BIGINT, value DOUBLE, PRIMARY KEY (run, step));
CREATE TABLE IF NOT EXISTS files (path VARCHAR PRIMARY KEY);
"""


class DuckIndex:
    """As `model_service.MemoryIndex`, one transaction a call."""

    def __init__(self, path: Path) -> None:
        self._connection = duckdb.connect(str(path))
        self._connection.execute(_SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _column(self, statement: str, *values: object) -> list[str]:
        return [row[0] for row in self._connection.execute(statement, values).fetchall()]

    def known(self, run: str) -> set[str]:
        return set(self._column("SELECT id FROM segments WHERE run = $1", run))

    def files(self) -> set[str]:
        return set(self._column("SELECT path FROM files"))

    def take_in(self, run: str, rows: dict[str, list[Number]], files: Iterable[str]) -> None:
        with self._transaction() as cursor:
            for segment, numbers in rows.items():
                cursor.execute("INSERT INTO segments VALUES ($1, $2)", [run, segment])
                self._insert(run, segment, numbers)
            self._list(files)

    def replace(self, run: str, segments: set[str], path: str, rows: list[Number]) -> None:
        with self._transaction():
            self._gone(run, segments)
            self._insert(run, path, rows)
            self._list([path])

    def freeze(self, run: str, segments: set[str], path: str, steps: dict[int, float]) -> None:
        with self._transaction() as cursor:
            self._gone(run, segments)
            for step, value in steps.items():
                cursor.execute("INSERT OR IGNORE INTO frozen VALUES ($1, $2, $3)", [run, step, value])
            self._list([path])

    def _insert(self, run: str, source: str, numbers: list[Number]) -> None:
        for step, sample, value in numbers:
            self._connection.execute(
                "INSERT INTO numbers VALUES ($1, $2, $3, $4, $5)", [run, source, step, sample, value]
            )

    def _list(self, files: Iterable[str]) -> None:
        for path in files:
            self._connection.execute("INSERT OR IGNORE INTO files VALUES ($1)", [path])

    def _gone(self, run: str, segments: set[str]) -> None:
        for segment in sorted(segments):
            self._connection.execute("INSERT OR IGNORE INTO segments VALUES ($1, $2)", [run, segment])
            self._connection.execute("DELETE FROM numbers WHERE run = $1 AND source = $2", [run, segment])

    def drop_files(self, paths: Iterable[str]) -> None:
        with self._transaction() as cursor:
            for path in paths:
                cursor.execute("DELETE FROM files WHERE path = $1", [path])
                cursor.execute("DELETE FROM numbers WHERE source = $1", [path])

    def forget(self, run: str) -> None:
        with self._transaction() as cursor:
            for table in ("segments", "numbers", "frozen"):
                cursor.execute(f"DELETE FROM {table} WHERE run = $1", [run])
            for path in sorted(self.files()):
                if run_name(path.partition("/")[0]) == run:
                    cursor.execute("DELETE FROM files WHERE path = $1", [path])

    def numbers(self, run: str) -> list[Number]:
        statement = "SELECT step, sample, value FROM numbers WHERE run = $1 AND step NOT IN (SELECT step FROM frozen WHERE run = $1)"
        found = self._connection.execute(statement, [run]).fetchall()
        return [(step, sample, math.nan if value is None else value) for step, sample, value in found]

    def frozen(self, run: str) -> dict[int, float]:
        return dict(self._connection.execute("SELECT step, value FROM frozen WHERE run = $1", [run]).fetchall())

    def runs(self) -> set[str]:
        return set(self._column("SELECT run FROM segments UNION SELECT run FROM numbers UNION SELECT run FROM frozen"))

    def close(self) -> None:
        self._connection.close()
