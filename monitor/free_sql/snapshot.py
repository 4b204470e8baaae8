"""What a statement may see of the store: the tables and views of one moment, and rows of the tables. Read only."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.monitor.home import Home
from logprobe.monitor.store import moved
from logprobe.monitor.store.sql_files import statement

_BATCH: Final = 65_536  # rows


class Snapshot:
    """One cursor within one read-only transaction. Not to be shared between threads."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, home: Home, reach_objects: Callable[[], None]) -> None:
        """`cursor`: in its transaction, which the caller ends. `reach_objects`: to be called before an object is read."""
        self._cursor = cursor
        self._home = home
        self._reach_objects = reach_objects

    def catalog(self, known: tuple[str, bytes] | None) -> tuple[str, bytes]:
        """Fingerprint and JSON of tables (Arrow schemas) and views (SQL); `known` again if nothing has changed."""
        objects = self._cursor.execute(statement("free_sql_catalog")).fetchall()
        mark = hashlib.sha256(json.dumps(objects).encode()).hexdigest()
        if known is not None and known[0] == mark:
            return known
        tables = {name: self._schema(name) for kind, name, _ in objects if kind == "table"}
        views = [sql for kind, _, sql in objects if kind != "table"]
        return mark, json.dumps({"tables": tables, "views": views}).encode()

    def _schema(self, table: str) -> str:
        with self._cursor.sql(f"FROM main.{_quoted(table)} LIMIT 0").to_arrow_reader() as reader:
            return base64.b64encode(reader.schema.serialize()).decode()

    def runs(self, table: str) -> pa.Table:
        """Rows (run, first, last): what a table has; without rows for a table that is not by run. Raises `QueryError`."""
        if moved.is_moved(table):
            return moved.runs(self._cursor, table)
        columns = self._columns(table)
        if "run" not in columns:
            return pa.table({"run": [], "first": [], "last": []})
        steps = "min(step), max(step)" if "step" in columns else "NULL::BIGINT, NULL::BIGINT"
        sql = f"SELECT run, {steps.replace(',', ' AS first,')} AS last FROM main.{_quoted(table)} GROUP BY run"  # noqa: S608
        with self._cursor.sql(sql).to_arrow_reader() as reader:
            return reader.read_all()

    def rows(self, asked: Mapping[str, Any]) -> pa.RecordBatchReader:
        """Rows of a table: `columns`; of `runs` and `steps` (first, last) unless these are None. Raises `QueryError`."""
        table, columns = str(asked["table"]), [str(name) for name in asked["columns"]]
        known = self._columns(table)
        if not columns or not known.issuperset(columns):
            raise QueryError(f"there are no columns {columns} in a table {table!r}")
        where, params = _where(asked.get("runs"), asked.get("steps"))
        source = f"main.{_quoted(table)}"
        if moved.is_moved(table) and (objects := self._objects(table, asked)):
            source, params = moved.source(table), {**params, "files": objects}
        sql = f"SELECT {', '.join(map(_quoted, columns))} FROM {source} WHERE {where}"  # noqa: S608 - quoted
        relation = self._cursor.sql(sql, params=params) if params else self._cursor.sql(sql)
        return relation.to_arrow_reader(batch_size=_BATCH)

    def _objects(self, table: str, asked: Mapping[str, Any]) -> list[str]:
        found = moved.files(self._cursor, table, asked.get("runs"), asked.get("steps"))
        if not found:
            return []
        self._reach_objects()
        return [moved.empty(self._home, table), *found]

    def _columns(self, table: str) -> set[str]:
        rows = self._cursor.execute(statement("free_sql_columns"), {"table": table}).fetchall()
        if not rows:
            raise QueryError(f"there is no table {table!r}")
        return {name for (name,) in rows}


def _where(runs: Sequence[str | None] | None, steps: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    conditions = ["true"]
    params: dict[str, Any] = {}
    if runs is not None:
        # One run, the usual case, lets DuckDB skip what others wrote.
        named = [run for run in runs if run is not None]
        of_runs = [] if not named else ["run = $run"] if len(named) == 1 else ["list_contains($run, run)"]
        conditions.append("(" + " OR ".join([*of_runs, *(["run IS NULL"] if None in runs else [])]) + ")")
        if named:
            params["run"] = named[0] if len(named) == 1 else named
    if steps is not None:
        conditions.append("step BETWEEN $first AND $last")
        params |= {"first": int(steps[0]), "last": int(steps[1])}
    return " AND ".join(conditions), params


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
