"""Users' SQL: single read-only statements with limits, each in a read-only transaction of the store.

DuckDB's parser checks the statement; its text is never searched. The store reads only raw files, loads no extension and
accepts no setting (``confine``). A statement may use tables, views and the functions listed here, but no file. DuckDB
handles an interrupt only between pieces of work, so a statement that builds one huge value allocates its memory first.
SQL is therefore limited to users who may also stop the service.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.monitor.store.budgets import query_memory, size
from logprobe.monitor.store.queries import BATCH_ROWS, beginning, limited
from logprobe.monitor.store.raw_damage import UNREADABLE

if TYPE_CHECKING:
    from logprobe.monitor.store.store import Store

# DESCRIBE, SHOW and SUMMARIZE are SELECTs to DuckDB's parser.
_READING_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_ASK: Final = "use SELECT, DESCRIBE or SHOW"
# Table functions that read nothing but their arguments and the catalog. All others are refused, but for the store's own
# macros: they read files, write logs, or run text as SQL.
TABLE_FUNCTIONS: Final = frozenset(
    {
        "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_tables", "duckdb_types", "duckdb_views",
        "generate_series", "histogram", "histogram_values", "json_each", "json_tree", "pragma_table_info",
        "pragma_version", "range", "repeat", "repeat_row", "summary", "unnest",
    }
)  # fmt: skip
# Functions that wait, or change what is not a row: sequences, the log.
REFUSED_FUNCTIONS: Final = frozenset(
    {"currval", "getenv", "nextval", "pg_sleep", "set_config", "setseed", "setval", "sleep_ms", "write_log"}
)
_SCHEMAS: Final = frozenset({"", "main", "information_schema", "pg_catalog", "temp"})
_FILE_SIGNS: Final = frozenset("./\\*?:")  # DuckDB reads a table of such a name from the file of that name
_TWO_GIB: Final = "maximum total string size for regular string buffers"  # of one batch
_OUT_OF_MEMORY: Final = ("Out of Memory Error", "std::bad_alloc", "failed to allocate")
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one statement. A statement that exceeds one is interrupted with an error.

    Attributes:
        seconds: maximum of waiting and running time, or None for no limit.
        rows: maximum rows of a result, or None for no limit.
        memory: maximum additional bytes of the process during the statement. A result may use half of it.
        waiting: maximum number of queued statements.
    """

    seconds: float | None = 55.0  # less than a reader waits, so that it hears the reason
    rows: int | None = 20_000_000
    memory: int = field(default_factory=query_memory)
    waiting: int = 32

    @property
    def result_bytes(self) -> int:
        """Maximum size of a result in bytes."""
        return self.memory // 2

    def too_much_memory(self) -> str:
        """Return the error for a statement that needs more memory."""
        return f"the query needs more than {size(self.memory)} of memory, the limit; narrow it down: WHERE run = … AND step …"

    def too_large_result(self) -> str:
        """Return the error for a statement whose result is too large."""
        return f"the result is larger than {size(self.result_bytes)}; aggregate, or add a LIMIT"

    def too_slow(self) -> str:
        """Return the error for a statement that takes too long."""
        return f"the query took longer than {self.seconds:g} s and was stopped; narrow it down"


class Desk:
    """Execution of users' statements on one store, one at a time. Safe to share between threads."""

    def __init__(self, store: Store, limits: Limits | None = None) -> None:
        self._store = store
        self._limits = limits or Limits()
        self._line = Line(self._limits.waiting)

    def answer(
        self, sql: str, params: Any = None, *, first: int | None = None, gone: Callable[[], bool] = lambda: False
    ) -> pa.Table:
        """Return the rows of one statement on one snapshot.

        Args:
            sql: one statement: SELECT, DESCRIBE, SHOW or SUMMARIZE.
            params: sequence for ``?``, or mapping for ``$name``.
            first: maximum number of rows, see `queries.beginning`.
            gone: function that returns true once nobody waits for the rows, which ends the statement.

        Raises:
            QueryError: the statement was refused, failed, was stopped or exceeded a limit. The message is one line.
            StoreError: the store is unusable.
        """
        limits = self._limits
        deadline = None if limits.seconds is None else time.monotonic() + limits.seconds

        def ended() -> str | None:
            if gone():
                return "the query was stopped"
            return limits.too_slow() if deadline is not None and time.monotonic() >= deadline else None

        def work(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
            text = checked(cursor, sql)
            relation = cursor.sql(text, params=params) if params else cursor.sql(text)
            with relation.to_arrow_reader(batch_size=BATCH_ROWS) as reader:
                if first is not None:
                    return beginning(reader, first)
                return limited(reader, limits.rows, limits.result_bytes, limits.too_large_result())

        with self._line.turn(ended):
            spent = self._spending()
            try:
                return self._store.read_watched(sql, work, lambda: ended() or spent())
            except QueryError as error:
                raise QueryError(self._said(str(error))) from None

    def _spending(self) -> Callable[[], str | None]:
        """Return a function that reports why the starting statement uses too much memory, or None if it does not."""
        before = _resident()

        def spent() -> str | None:
            much = _resident() - before > self._limits.memory or self._store.is_short_of_memory()
            return self._limits.too_much_memory() if much else None

        return spent

    def _said(self, text: str) -> str:
        if _TWO_GIB in text:
            return self._limits.too_large_result()
        if any(sign in text for sign in _OUT_OF_MEMORY):
            return self._limits.too_much_memory()
        if text.startswith(UNREADABLE):
            return f"{text}; tokens of other runs, named by WHERE run = '…', can be read"
        return text


class Line:
    """Queue for exclusive use, in order of arrival. Safe to share between threads."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # the first has its turn

    @contextmanager
    def turn(self, ended: Callable[[], str | None]) -> Iterator[None]:
        """Hold the queue for the block. Raises `QueryError` if too many wait, or with the reason of `ended`."""
        me = object()
        with self._changed:
            if len(self._line) > self._longest:
                raise QueryError(f"{self._longest} queries are waiting already; try again when they have finished")
            self._line.append(me)
        try:
            with self._changed:
                while self._line[0] is not me:
                    if (why := ended()) is not None:
                        raise QueryError(f"{why} (others came first: one query runs at a time); try again later")
                    self._changed.wait(_LOOK_SECONDS)
            yield
        finally:
            with self._changed:
                self._line.remove(me)
                self._changed.notify_all()


def _resident() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def checked(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return `sql` if it is a single statement that reads only the store.

    Raises `QueryError`, or `duckdb.Error` for invalid SQL.
    """
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"the query has {len(statements)} statements; send one statement at a time")
    _check_reads(connection, statements[0])
    return statements[0].query


def _check_reads(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    """Refuse a statement that does more than read. An INSERT within a WITH is part of a SELECT, so all nodes are
    checked."""
    if statement.type != duckdb.StatementType.SELECT:
        raise _refusal(statement.type.name)
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [statement.query]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise QueryError(f"the statement was rejected ({tree['error_message']}); correct it and retry")
    for node in _nodes(tree):
        _check_node(connection, node)


def _refusal(kind: str) -> QueryError:
    return QueryError(f"{kind} is refused: this store is read-only here; {_ASK}")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a serialised statement, without recursion, since users nest statements deeply."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _check_node(connection: duckdb.DuckDBPyConnection, node: dict[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READING_NODES:
        raise _refusal(kind.removesuffix("_NODE").removesuffix("_QUERY"))
    if kind == "TABLE_FUNCTION":
        _check_table_function(connection, str(node["function"].get("function_name", "")).lower())
    if str(node.get("function_name", "")).lower() in REFUSED_FUNCTIONS:
        raise QueryError(f"the function {node['function_name']} is refused: it waits or has side effects; leave it out")
    if kind in ("BASE_TABLE", "SHOW_REF"):
        names = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
        if _FILE_SIGNS.intersection("".join(names)) or names[1].lower() not in _SCHEMAS:
            raise QueryError(
                f"{'.'.join(filter(None, names))} is refused: SQL reads no files; use the tables and views of SHOW TABLES"
            )


def _check_table_function(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    if name in TABLE_FUNCTIONS:
        return
    ours = "SELECT 1 FROM duckdb_functions() WHERE NOT internal AND function_type = 'table_macro' AND function_name = ?"
    if not name.endswith("_in") and connection.execute(ours, [name]).fetchall():
        return
    raise QueryError(f"the table function {name} is refused; use the tables and views of SHOW TABLES")
