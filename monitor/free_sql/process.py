"""One worker of free SQL, from outside: started, asked, watched, killed.

A statement sees the tables and views of one moment of the store, and rows of the tables. Read only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import LogprobeError, QueryError
from logprobe.monitor.budgets import GIB
from logprobe.monitor.free_sql.limits import MIB, Limits, Setting
from logprobe.monitor.free_sql.wire import BrokenWireError, Kind, packed, pieces, receive, send, send_document, unpacked
from logprobe.monitor.home import Home
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.sql_files import statement

_WATCH_SECONDS: Final = 0.02  # a statement takes some GiB a second
_STATEMENTS: Final = 100  # then another process takes over: what a statement left behind does not pile up
_START_SECONDS: Final = 60.0
_IDLE_MEMORY: Final = 256 * MIB  # one that keeps more after a statement is replaced
_DEATH_SECONDS: Final = 2.0
_OWN_MEMORY: Final = 512 * MIB  # that libraries, threads and buffers take besides the data
_RESERVED: Final = 4 * GIB  # address space that DuckDB's and the system's allocators reserve and do not use
# No thread may run before rights are taken, and none is needed for what little numpy and Arrow do there.
_ALONE: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")


_PROGRAM: Final = (
    "import sys; from logprobe.monitor.pandas_guard import without_pandas; without_pandas(); "
    "from logprobe.monitor.free_sql.worker import main; main(sys.argv[1])"
)
_BATCH: Final = 65_536  # rows


class AgainError(QueryError):
    """No fault of the statement: a file went away while it was read, or the process ended before it began. It is tried
    again."""


class WorkerProcess:
    """A process that runs one statement at a time. Not to be shared between threads, but for `kill`."""

    def __init__(self, home: Home, limits: Limits) -> None:
        """Starts it, and returns at once. Raises `QueryError` when it cannot be started."""
        self._limits = limits
        command = [sys.executable, "-P", "-c", _PROGRAM, _setting(home, limits).argument()]
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**kept, **_ALONE},
            )
        except OSError as error:
            raise QueryError(f"no process for queries can be started ({error}); try again") from error
        self._to = cast("BinaryIO", self._process.stdin)
        self._source = cast("BinaryIO", self._process.stdout)
        self._ready = False
        self._catalog = ""
        self._asked = 0
        self._settled = True
        self.layers: list[str] = []

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def used_up(self) -> bool:
        """Whether it has ended, or answered so many statements that another one takes over."""
        return self._asked >= _STATEMENTS or self._process.poll() is not None or _resident(self.pid) > _IDLE_MEMORY

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """Ends it and lets go of its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._to, self._source):
            with suppress(OSError):  # what could not be written any more
                pipe.close()

    def await_ready(self) -> None:
        """Returns when it can take a statement. Raises `QueryError` when it cannot."""
        if self._ready:
            return
        try:
            with self._watched(_START_SECONDS, None) as why:
                kind, payload = receive(self._source, MIB)
        except BrokenWireError as error:
            raise AgainError(f"the process for queries did not start ({why[0] if why else error}); try again") from None
        if kind is not Kind.READY:
            raise QueryError(f"the process for queries said {kind.name}; try again")
        self.layers = json.loads(payload)["layers"]
        self._ready = True

    def answer(
        self,
        snapshot: Snapshot,
        catalog: tuple[str, bytes],
        query: Mapping[str, Any],
        *,
        seconds: float | None,
        stop: threading.Event | None,
    ) -> Iterator[pa.RecordBatch | bool]:
        """The batches of a result, at least one, and at last whether there is more than was asked for.

        Raises `QueryError`, `AgainError`; the process is of use afterwards only if it has not ended.
        """
        self._asked += 1
        self._settled = False
        with self._watched(seconds, stop) as why:
            try:
                if self._catalog != catalog[0]:
                    send(self._to, Kind.CATALOG, catalog[1])
                    self._catalog = catalog[0]
                send_document(self._to, Kind.QUERY, query)
                yield from self._replies(snapshot)
            except BrokenWireError:
                raise QueryError(self._died(why)) from None
            finally:
                if not self._settled:  # it is in the middle of something that nobody wants any more
                    self.close()

    def _replies(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch | bool]:
        while True:
            kind, payload = receive(self._source, self._limits.result_bytes + MIB)
            if kind is Kind.ROWS:
                yield from unpacked(payload).to_batches() or [_empty(payload)]
            elif kind is Kind.END:
                self._settled = True
                yield bool(json.loads(payload)["more"])
                return
            elif kind is Kind.ERROR:
                problem = json.loads(payload)
                self._settled = not problem.get("spent")  # what it has taken it would keep
                raise AgainError(problem["words"]) if problem.get("again") else QueryError(problem["words"])
            else:
                self._serve(kind, json.loads(payload), snapshot)

    def _serve(self, kind: Kind, asked: Mapping[str, Any], snapshot: Snapshot) -> None:
        try:
            if kind is Kind.RUNS:
                self._send_runs(snapshot.runs(str(asked["table"])))
            elif kind is Kind.TABLE:
                self._send_rows(asked, snapshot)
            else:
                raise BrokenWireError(f"{kind.name} is no question")
        except LogprobeError as error:
            send(self._to, Kind.ERROR, str(error).encode())
        except duckdb.Error as error:
            send(self._to, Kind.ERROR, one_line(error).encode())
            raise

    def _send_runs(self, table: pa.Table) -> None:
        (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        send(self._to, Kind.RUNS, packed(batch))

    def _send_rows(self, asked: Mapping[str, Any], snapshot: Snapshot) -> None:
        size = 0
        with snapshot.rows(asked) as reader:
            for batch in reader:
                size += batch.nbytes
                if size > self._limits.table_bytes:
                    raise QueryError(self._limits.too_large_tables(str(asked["table"])))
                for piece in pieces(batch):
                    send(self._to, Kind.ROWS, packed(piece))
        send(self._to, Kind.END)

    def _died(self, why: list[str]) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_SECONDS)
        if why:
            return why[0]
        code = self._process.returncode
        if code is None or code >= 0:
            return f"the query's process ended unexpectedly (exit code {code}); try again"
        return f"the query's process died (signal {-code}), most likely out of memory: {self._limits.too_much_memory()}"

    @contextmanager
    def _watched(self, seconds: float | None, stop: threading.Event | None) -> Iterator[list[str]]:
        """Kills the process when a limit is reached or someone sets `stop`; the reason is in the list by then."""
        why: list[str] = []
        done = threading.Event()
        deadline = time.monotonic() + (math.inf if seconds is None else seconds)
        most = self._limits.statement_memory + _OWN_MEMORY

        def watch() -> None:
            while not done.wait(_WATCH_SECONDS):
                if stop is not None and stop.is_set():
                    why.append("the query was stopped")
                elif time.monotonic() >= deadline:
                    why.append(self._limits.too_slow())
                elif _resident(self.pid) > most:
                    why.append(self._limits.too_much_memory())
                if why:
                    return self.kill()
            return None

        watcher = threading.Thread(target=watch, name="logprobe-query-watch", daemon=True)
        watcher.start()
        try:
            yield why
        finally:
            done.set()
            watcher.join()


def _empty(payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=unpacked(payload).schema)


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _setting(home: Home, limits: Limits) -> Setting:
    return Setting(
        raw=str(home.raw),
        duckdb_memory=limits.statement_memory // 2,
        memory=limits.statement_memory + _OWN_MEMORY + _RESERVED,
        threads=max(1, min(4, (os.cpu_count() or 2) // 2)),
        rows=limits.rows,
        result_bytes=limits.result_bytes,
        too_large=limits.too_large_result(),
        too_much_memory=limits.too_much_memory(),
    )


class Snapshot:
    """One cursor within one read-only transaction. Not to be shared between threads."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """`cursor`: in its transaction, which the caller ends."""
        self._cursor = cursor

    def catalog(self, cached: tuple[str, bytes] | None) -> tuple[str, bytes]:
        """Fingerprint and JSON of tables (Arrow schemas) and views (SQL); `cached` again if nothing has changed."""
        objects = self._cursor.execute(statement("free_sql_catalog")).fetchall()
        mark = hashlib.sha256(json.dumps(objects).encode()).hexdigest()
        if cached is not None and cached[0] == mark:
            return cached
        tables = {name: self._schema(name) for kind, name, _ in objects if kind == "table"}
        views = [sql for kind, _, sql in objects if kind != "table"]
        return mark, json.dumps({"tables": tables, "views": views}).encode()

    def _schema(self, table: str) -> str:
        with self._cursor.sql(f"FROM main.{_quoted(table)} LIMIT 0").to_arrow_reader() as reader:
            return base64.b64encode(reader.schema.serialize()).decode()

    def runs(self, table: str) -> pa.Table:
        """Rows (run, first, last): what a table has; without rows for a table that is not by run. Raises
        `QueryError`."""
        columns = self._columns(table)
        if "run" not in columns:
            return pa.table({"run": [], "first": [], "last": []})
        steps = "min(step), max(step)" if "step" in columns else "NULL::BIGINT, NULL::BIGINT"
        sql = f"SELECT run, {steps.replace(',', ' AS first,')} AS last FROM main.{_quoted(table)} GROUP BY run"  # noqa: S608
        with self._cursor.sql(sql).to_arrow_reader() as reader:
            return reader.read_all()

    def rows(self, asked: Mapping[str, Any]) -> pa.RecordBatchReader:
        """Rows of a table: `columns`; of `runs` and `steps` (first, last) unless these are None. Raises
        `QueryError`."""
        table, columns = str(asked["table"]), [str(name) for name in asked["columns"]]
        existing = self._columns(table)
        if not columns or not existing.issuperset(columns):
            raise QueryError(f"there are no columns {columns} in a table {table!r}")
        where, params = _where(asked.get("runs"), asked.get("steps"))
        sql = f"SELECT {', '.join(map(_quoted, columns))} FROM main.{_quoted(table)} WHERE {where}"  # noqa: S608 - quoted
        relation = self._cursor.sql(sql, params=params) if params else self._cursor.sql(sql)
        return relation.to_arrow_reader(batch_size=_BATCH)

    def _columns(self, table: str) -> set[str]:
        rows = self._cursor.execute(statement("free_sql_columns"), {"table": table}).fetchall()
        if not rows:
            raise QueryError(f"there is no table {table!r}")
        return {name for (name,) in rows}


def _where(runs: Sequence[str | None] | None, steps: Sequence[int] | None) -> tuple[str, dict[str, object]]:
    conditions = ["true"]
    params: dict[str, object] = {}
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
