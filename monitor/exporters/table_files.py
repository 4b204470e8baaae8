"""Steps and tokens of a run as Parquet, CSV or JSON lines, step by step, so that a run larger than memory can leave."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.reader import Reader

SUFFIXES: Final = (".parquet", ".csv", ".jsonl")


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def export_table(reader: Reader, run: str, what: str, path: Path) -> int:
    """Writes ``metrics`` (one row per step: metrics and scalars) or ``tokens`` of `run`; returns the number of rows.

    Raises `ConfigurationError` when the run is not known or the suffix none of `SUFFIXES`.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(f"{path}: which format? end the name in {', '.join(SUFFIXES)} or .logprobe")
    steps = steps_of(reader, run)
    parts = [steps] if what == "metrics" else _tokens(reader, run, steps["step"].to_pylist())
    rows = 0
    with replaced(path) as file:
        writer: _Writer | None = None
        for part in parts:
            writer = writer or _writer(file, path.suffix, part.schema)
            writer.write_table(part)
            rows += part.num_rows
        if writer is not None:
            writer.close()
    return rows


def steps_of(reader: Reader, run: str) -> pa.Table:
    """All steps of a run, without the columns that only other runs have. Raises `ConfigurationError` for an unknown run."""
    table = reader.read("export_steps", run=run)
    known = reader.read("export_segments", run=run)
    if not table.num_rows and not known.num_rows:
        raise ConfigurationError(f"no run {run!r} here; `logprobe runs` lists them")
    return table.select(
        [name for name in table.column_names if table[name].null_count < table.num_rows or name == "step"]
    )


def _tokens(reader: Reader, run: str, steps: Iterable[int]) -> Iterator[pa.Table]:
    for step in steps:
        yield reader.read("export_tokens", run=run, step=step)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name as a whole, or not at all. Raises `ConfigurationError` when it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
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


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            self._file.write(json.dumps({name: _plain(value) for name, value in row.items()}).encode() + b"\n")

    def close(self) -> None:
        pass


def _plain(value: Any) -> Any:
    """As JSON has it: times in ISO 8601; NaN and infinities, which JSON does not know, by name."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124
        return str(value)
    return value
