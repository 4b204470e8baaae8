"""The store's tables as a worker sees them: datasets that ask the service for the columns, runs and steps that a
statement needs.

DuckDB's optimizer pushes columns and constant conditions down to a dataset's scan. Which runs and steps a condition
leaves is asked of Arrow itself, as it prunes the files of a partitioned dataset; what remains of the condition is
applied to the rows that came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from logprobe.collectors.errors import QueryError
from logprobe.monitor.free_sql.wire import BrokenWireError, Kind, receive, send_document, unpacked

Range = tuple[int, int]
Runs = list[tuple[str | None, int | None, int | None]]  # run, first step, last step

_BLOCKS: Final = 64  # ranges of steps looked at in one round
_LONGEST: Final = 1 << 40  # the service is trusted


class Asking:
    """Asks the service for rows, one question at a time: a statement's scans run beside each other in DuckDB's
    threads."""

    def __init__(self, source: BinaryIO, to: BinaryIO) -> None:
        self._source, self._to = source, to
        self._lock = threading.Lock()
        self.refusal: str | None = None  # why the service did not give what the statement needed

    def runs(self, table: str) -> Runs:
        """Which runs there are in a table, with first and last step (null where it has no steps)."""
        with self._lock:
            send_document(self._to, Kind.RUNS, {"table": table})
            _, payload = self._answer(Kind.RUNS)
            return [tuple(row.values()) for row in unpacked(payload).to_pylist()]

    def rows(
        self, table: str, columns: Sequence[str], runs: Sequence[str | None] | None, steps: Range | None
    ) -> list[pa.RecordBatch]:
        """Rows of a table. Raises `QueryError` when they are too many."""
        batches: list[pa.RecordBatch] = []
        with self._lock:
            send_document(self._to, Kind.TABLE, {"table": table, "columns": columns, "runs": runs, "steps": steps})
            while True:
                kind, payload = self._answer(Kind.ROWS, Kind.END)
                if kind is Kind.END:
                    return batches
                batches += unpacked(payload).to_batches()

    def _answer(self, *expected: Kind) -> tuple[Kind, bytes]:
        kind, payload = receive(self._source, _LONGEST)
        if kind is Kind.ERROR:
            self.refusal = payload.decode()
            raise QueryError(self.refusal)
        if kind not in expected:
            raise BrokenWireError(f"{kind.name} where {expected} was expected")
        return kind, payload


class StoreTable(ds.Dataset):  # type: ignore[misc]
    """One table of the store, for DuckDB to scan."""

    def __init__(self, name: str, schema: pa.Schema, asking: Asking) -> None:  # pyarrow's own is for its own datasets
        self._name, self._columns, self._asking = name, schema, asking

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self._columns

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002 - DuckDB calls it so
        **_: Any,
    ) -> ds.Scanner:
        """The rows that meet `filter`."""
        names = self._columns.names
        wanted = names if columns is None else list(columns)
        # A condition names its columns in its text; one that is named by chance is read in vain.
        text = "" if filter is None else str(filter)
        read = [name for name in names if name in wanted or name in text] or names[:1]
        batches = self._rows(read, filter)
        if not columns and columns is not None:
            wanted = read
        table = pa.Table.from_batches(batches, schema=pa.schema([self._columns.field(name) for name in read]))
        return ds.dataset(table).scanner(columns=wanted, filter=filter, use_threads=False)

    def _rows(self, read: Sequence[str], condition: ds.Expression | None) -> list[pa.RecordBatch]:
        if condition is None or "run" not in self._columns.names:
            return self._asking.rows(self._name, read, None, None)
        narrowed = "run" in str(condition) or "step" in str(condition)
        spans = self._asking.runs(self._name) if narrowed else []
        if not spans:
            return self._asking.rows(self._name, read, None, None)
        runs, steps = needed(self._columns, spans, condition)
        if not runs:
            return []
        return self._asking.rows(self._name, read, runs, steps)


def needed(schema: pa.Schema, spans: Runs, condition: ds.Expression) -> tuple[list[str | None], Range | None]:
    """Which runs of `spans`, and which steps of these, may meet a condition: never too few."""
    possible = _possible(schema, {number: _of_run(*span) for number, span in enumerate(spans)}, condition)
    chosen = [spans[number] for number in sorted(possible)]
    runs = [run for run, _, _ in chosen]
    firsts = [first for _, first, _ in chosen if first is not None]
    lasts = [last for _, _, last in chosen if last is not None]
    if len(firsts) < len(chosen) or not chosen:
        return runs, None
    return runs, _steps(schema, min(firsts), max(lasts), condition)


def _steps(schema: pa.Schema, first: int, last: int, condition: ds.Expression) -> Range:
    """The first and last step that may meet `condition`, by looking at ever smaller ranges."""
    field = ds.field("step")
    while True:
        width = max(1, -(-(last - first + 1) // _BLOCKS))
        ranges = {start: min(start + width - 1, last) for start in range(first, last + 1, width)}
        possible = _possible(
            schema, {start: (field >= start) & (field <= end) for start, end in ranges.items()}, condition
        )
        if not possible:
            return first, first
        span = min(possible), ranges[max(possible)]
        if span == (first, last) or width == 1:
            return span
        first, last = span


def _of_run(run: str | None, first: int | None, last: int | None) -> ds.Expression:
    of_run = ds.field("run").is_null() if run is None else ds.field("run") == run
    if first is None or last is None:
        return of_run
    return of_run & (ds.field("step") >= first) & (ds.field("step") <= last)


def _possible(schema: pa.Schema, parts: Mapping[int, ds.Expression], condition: ds.Expression) -> set[int]:
    """Which of `parts`, each described by what holds in it, do not contradict `condition`. No file of these names is
    looked at."""
    files = ds.FileSystemDataset.from_paths(
        [str(number) for number in parts],
        schema=schema,
        format=ds.IpcFileFormat(),
        filesystem=fs.LocalFileSystem(),
        partitions=list(parts.values()),
    )
    return {int(part.path) for part in files.get_fragments(filter=condition)}


def registered(
    register: Callable[[str, Any], Any], schemas: Mapping[str, pa.Schema], asking: Asking
) -> dict[str, StoreTable]:
    """Makes the tables known to a connection; to be kept as long as that is in use."""
    tables = {name: StoreTable(name, schema, asking) for name, schema in schemas.items()}
    for name, table in tables.items():
        register(name, table)
    return tables
