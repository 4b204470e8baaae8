"""Export of steps and tokens as Parquet, CSV or JSON lines, step by step for runs larger than memory."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import CONTROL_RE2, INSTEAD
from logprobe.monitor import queries
from logprobe.monitor.analysis.steps_table import steps_table
from logprobe.monitor.plain_text import FORMULA, NUMBER, csv_cell
from logprobe.monitor.reader import Reader

SUFFIXES: Final = (".parquet", ".csv", ".jsonl")


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def export_table(reader: Reader, run: str, what: str, path: Path) -> int:
    """Write ``metrics`` (one row per step with metrics and scalars) or ``tokens`` of `run`. Return the number of rows.

    Texts in CSV pass through `plain_text.csv_cell`.

    Raises `ConfigurationError` if the run is unknown, is deleted during the export, or the suffix is not in `SUFFIXES`.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(f"{path}: unknown format; use a name that ends in {', '.join(SUFFIXES)} or .logprobe")
    extent = extent_of(reader, run)
    steps = steps_of(reader, run)
    parts = [steps] if what == "metrics" else _tokens(reader, run, steps["step"].to_pylist())
    rows = 0
    with replaced(path) as file:
        writer: _Writer | None = None
        for exact in parts:
            part = _csv_table(exact) if path.suffix == ".csv" else exact
            writer = writer or _writer(file, path.suffix, part.schema)
            writer.write_table(part)
            rows += part.num_rows
        if writer is not None:
            writer.close()
        require_all(reader, run, extent)
    return rows


def extent_of(reader: Reader, run: str) -> queries.ExportExtent:
    """Return the extent of a run. Raises `ConfigurationError` if it is unknown."""
    (extent,) = queries.export_extent(reader, run=run).to_pylist()
    if not extent["segments"]:
        raise ConfigurationError(f"no run {run!r} here; `logprobe runs` lists them")
    return extent


def require_all(reader: Reader, run: str, before: queries.ExportExtent) -> None:
    """Raise `ConfigurationError` if parts of the run were removed since `before`, which the export may lack."""
    (now,) = queries.export_extent(reader, run=run).to_pylist()
    fewer = now["segments"] < before["segments"] or now["raw_records"] < before["raw_records"]
    if fewer or now["since"] != before["since"]:
        raise ConfigurationError(
            f"run {run!r} was deleted, moved, or lost raw tokens while it was exported; nothing was written: repeat the "
            "command"
        )


def steps_of(reader: Reader, run: str) -> pa.Table:
    """Return all steps of a run, without columns that are always null."""
    table = steps_table(reader, run)
    return table.select(
        [name for name in table.column_names if table[name].null_count < table.num_rows or name == "step"]
    )


def _tokens(reader: Reader, run: str, steps: Iterable[int]) -> Iterator[pa.Table]:
    for step in steps:
        yield queries.export_tokens(reader, run=run, step=step)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` atomically. Raises `ConfigurationError` if the file cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:  # never through a link that another process put there
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be written ({error.strerror or error}); choose another FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _writer(file: BinaryIO, suffix: str, schema: pa.Schema) -> _Writer:
    if suffix == ".jsonl":
        return _JsonLines(file)
    columnar: _Writer = (
        pq.ParquetWriter(file, schema, compression="zstd") if suffix == ".parquet" else csv.CSVWriter(file, schema)
    )
    return columnar


def _csv_table(table: pa.Table) -> pa.Table:
    """Return `table` with `csv_cell` applied to texts and column names. Numbers stay unchanged."""
    columns = [_csv_column(column) for column in table.columns]
    return pa.Table.from_arrays(columns, [csv_cell(name) for name in table.column_names])


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    formula = pc.and_not(pc.match_substring_regex(column, FORMULA), pc.match_substring_regex(column, NUMBER))
    steered = pc.replace_substring_regex(column, CONTROL_RE2, INSTEAD)
    quote = pa.scalar("'", column.type)
    return pc.if_else(formula, pc.binary_join_element_wise(quote, steered, pa.scalar("", column.type)), steered)


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            self._file.write(json.dumps({name: _plain(value) for name, value in row.items()}).encode() + b"\n")

    def close(self) -> None:
        pass


def _plain(value: Any) -> Any:
    """Return a value in JSON form, with times in ISO 8601 and names for NaN and infinities."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124
        return str(value)
    return value
