"""The process that runs people's statements: started by `process`, asked through stdin.

It has a DuckDB instance in memory, without a file to write to or a folder to spill to. Raw tokens are read from their
Parquet files, which lie in the only folder that the process may read; rows of the store's tables are asked of the
service (`tables`). It ends when its stdin does, or when its parent is gone.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa
from duckdb.func import PythonUDFType

from logprobe.collectors.errors import QueryError
from logprobe.monitor.free_sql import confinement
from logprobe.monitor.free_sql.limits import Setting
from logprobe.monitor.free_sql.tables import Asking, StoreTable, registered
from logprobe.monitor.free_sql.validation import validated
from logprobe.monitor.free_sql.wire import BrokenWireError, Kind, packed, pieces, receive, send, send_document
from logprobe.monitor.store.queries import beginning, one_line
from logprobe.monitor.store.raw_damage import UNREADABLE, Compared, said_of
from logprobe.monitor.store.raw_files import RAW_KINDS
from logprobe.monitor.store.raw_places import escape_glob, literal

_SAME: Final = "logprobe_same_bytes"  # of a file: see `_register_comparison`
_BATCH: Final = 2048  # rows: DuckDB's own unit; a row may be a megabyte, and a larger batch would be computed in vain
_FRAME_BYTES: Final = 4 << 20  # batches are gathered until they are worth a frame
_FRAME_ROWS: Final = 32_768
_ORPHAN_SECONDS: Final = 1.0
_LONGEST: Final = 1 << 40
# What a statement may fail with. Anything else is a mistake of ours and ends the process.
_FAILURES: Final = (QueryError, duckdb.Error, pa.ArrowException, OSError, MemoryError, ValueError, TypeError)
_TWO_GIB: Final = "maximum total string size for regular string buffers"  # of one batch
_OUT_OF_MEMORY: Final = ("Out of Memory Error", "std::bad_alloc")


class Worker:
    """Answers statements until its stdin ends."""

    def __init__(self, setting: Setting, source: BinaryIO, to: BinaryIO) -> None:
        self._setting, self._source, self._to = setting, source, to
        self._asking = Asking(source, to)
        self._tables: dict[str, StoreTable] = {}
        self._missing: list[str] = []  # definitions of views that cannot be created: raw/ is not mounted
        self._compared = Compared()
        self._connection = _connect(setting, self._compared)

    def lock(self) -> None:
        """From here on nothing can be set any more, and SQL names no file but raw ones. Threads start here."""
        folders = {self._setting.raw, escape_glob(self._setting.raw), str(Path(self._setting.raw).resolve())}
        for setting in (
            f"threads = {self._setting.threads}",
            f"allowed_directories = [{', '.join(map(literal, sorted(folders)))}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def run(self) -> None:
        """Returns when the service has gone."""
        while True:
            kind, payload = receive(self._source, _LONGEST)
            document = json.loads(payload)
            if kind is Kind.CATALOG:
                self._learn(document)
            elif kind is Kind.QUERY:
                self._answer(document)

    def _learn(self, catalog: dict[str, Any]) -> None:
        """Other tables and views. What is gone stays as a name that the service refuses."""
        schemas = {name: _schema(text) for name, text in catalog["tables"].items()}
        self._tables |= registered(self._connection.register, schemas, self._asking)
        self._missing, _ = _create(self._connection, list(map(_with_comparison, catalog["views"])))

    def _answer(self, asked: dict[str, Any]) -> None:
        self._asking.refusal = None
        self._missing, why = _create(self._connection, self._missing)  # it may be mounted again
        try:
            self._connection.execute("BEGIN TRANSACTION READ ONLY")
            more = self._send_rows(asked["sql"], asked["params"], asked["first"])
        except _FAILURES as error:
            self._rollback()
            document = self._refusal(error)
            if self._missing and isinstance(error, duckdb.CatalogException):
                document["words"] = (
                    f"raw tokens cannot be read: {why}; mount raw/, or put it back ({document['words']})"
                )
            send_document(self._to, Kind.ERROR, document)
        else:
            self._rollback()
            send_document(self._to, Kind.END, {"more": more})

    def _rollback(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except duckdb.Error:
            return  # a statement that failed has ended it

    def _refusal(self, error: Exception) -> dict[str, object]:
        if self._asking.refusal is not None:
            return {"words": self._asking.refusal}
        # In the middle of a result DuckDB's errors arrive as Arrow's: what they are is in their text only.
        text = said_of(error, Path(self._setting.raw), self._compared)
        if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or text.startswith(_OUT_OF_MEMORY):
            return {"words": self._setting.too_much_memory, "spent": True}
        if _TWO_GIB in text:
            return {"words": self._setting.too_large}
        if text.startswith(UNREADABLE):
            return {"words": f"{text}; tokens of other runs, named by WHERE run = '…', can be read"}
        gone = isinstance(error, duckdb.IOException | OSError) and "No such file" in text
        return {"words": text, "again": gone}

    def _send_rows(self, sql: str, params: Any, first: int | None) -> bool:
        """Sends the result, its first batch also when that is empty; whether there is more of it."""
        text = validated(self._connection, sql)
        relation = self._connection.sql(text, params=params) if params else self._connection.sql(text)
        if relation is None:
            raise QueryError("the statement has no result; use SELECT, EXPLAIN, DESCRIBE or SHOW")
        with relation.to_arrow_reader(batch_size=_BATCH) as reader:
            if first is None:
                self._send_all(reader)
                return False
            table = beginning(reader, first)
            more = bool(table.schema.metadata)
            self._send_all(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))
            return more

    def _send_all(self, reader: pa.RecordBatchReader) -> None:
        rows = size = 0
        gathered: list[pa.RecordBatch] = []
        for batch in reader:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if self._setting.rows is not None and rows > self._setting.rows:
                raise QueryError(f"the result has more than {self._setting.rows} rows; aggregate, or add a LIMIT")
            if size > self._setting.result_bytes:
                raise QueryError(self._setting.too_large)
            gathered.append(batch)
            if sum(part.nbytes for part in gathered) > _FRAME_BYTES or sum(map(len, gathered)) >= _FRAME_ROWS:
                self._send_batches(gathered)
                gathered = []
        if gathered or rows == 0:
            self._send_batches(gathered or [pa.RecordBatch.from_pylist([], schema=reader.schema)])

    def _send_batches(self, batches: list[pa.RecordBatch]) -> None:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches() or batches:
            for piece in pieces(batch):
                send(self._to, Kind.ROWS, packed(piece))


def _connect(setting: Setting, compared: Compared) -> duckdb.DuckDBPyConnection:
    """An instance in memory; it reads what the kernel says of the machine, which a confined process may not."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{setting.duckdb_memory // 1024}KiB",
        "threads": 1,
        "async_threads": 0,  # no thread yet: rights are taken from the one that asks
        "temp_directory": "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    _register_comparison(connection, setting.raw, compared)
    return connection


def _register_comparison(connection: duckdb.DuckDBPyConnection, raw: str, compared: Compared) -> None:
    """Has statements fail on raw files whose bytes are not those that were written; a file is compared before its rows
    count."""

    def same_bytes(files: pa.ChunkedArray) -> pa.Array:
        for file in files.unique().to_pylist():
            if file.startswith(f"{raw}/") and (fault := compared.fault(Path(file))):
                raise ValueError(f"{file}: {fault}")
        return pa.repeat(True, len(files))

    # DuckDB asks a function without side effects about files that a statement does not need.
    connection.create_function(_SAME, same_bytes, ["VARCHAR"], "BOOLEAN", type=PythonUDFType.ARROW, side_effects=True)


def _with_comparison(definition: str) -> str:
    """The definition of a view, which ends in a condition on ``filename`` if it reads raw files (``view_raw``)."""
    if not definition.startswith(tuple(f"CREATE VIEW raw_{kind} AS" for kind in RAW_KINDS)):
        return definition
    return f"{definition.rstrip(';')} AND {_SAME}(filename)"


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _create(connection: duckdb.DuckDBPyConnection, definitions: list[str]) -> tuple[list[str], str]:
    """Creates views that may rest on each other, in whatever order works; → those that cannot be, and why the first one
    cannot."""
    waiting = definitions
    while waiting:
        failed, reasons = [], []
        for sql in waiting:
            try:
                connection.execute(sql.replace("CREATE ", "CREATE OR REPLACE ", 1))
            except duckdb.Error as error:
                failed.append(sql)
                if not isinstance(error, duckdb.CatalogException):  # that of a view on which it rests
                    reasons.append(one_line(error))
        if len(failed) == len(waiting):
            return failed, reasons[0] if reasons else "they rest on views that there are not"
        waiting = failed
    return [], ""


def _end_with(parent: int) -> None:
    """Ends the process when its parent is gone: a statement that is running does not see that stdin has ended."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


def _listed(raw: Path) -> Path | None:
    """DuckDB looks for files of a pattern from the first folder whose name looks like a pattern."""
    for folder in reversed(raw.parents):
        if escape_glob(folder.name) != folder.name:
            return folder.parent
    return None


def main(argument: str) -> None:
    """Becomes a worker. Returns when its service is gone."""
    setting = Setting(**json.loads(argument))
    source, to = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the frames
    pa.set_cpu_count(1)
    confinement.yield_to_others()
    confinement.limit(setting.memory)
    worker = Worker(setting, source, to)
    layers = confinement.confine(Path(setting.raw), listed=_listed(Path(setting.raw)))
    worker.lock()
    threading.Thread(target=_end_with, args=(os.getppid(),), name="logprobe-orphan", daemon=True).start()
    try:
        send_document(to, Kind.READY, {"layers": layers})
        worker.run()
    except BrokenWireError:
        os._exit(0)
