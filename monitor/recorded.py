"""Run as a folder of Parquet files, for the demo, tests and notebooks.

`sample_data/tools/exporting.py` writes these folders.

    <folder>/RUN.json            manifest: origin, configuration and size of the recording
    <folder>/<kind>.parquet      all rows of a record kind, named and typed by the wire contract, in recorded order

The files contain all rows of each writer, unrounded and in order. Columns without a value are not stored and are read
as nulls. The column `writer` is added to those of the contract, because a segment has the writer in its path.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS
from logprobe.monitor.settings import limits

MANIFEST: Final = "RUN.json"
FORMAT: Final = 1
WRITER: Final = "writer"
# What a reader needs first comes first: tables are written to a spool in this order.
_ORDER: Final = ("config", "weights", "rollout", "statistics", "training", "step", "health")


class RecordedRun:
    """Exported run, read lazily. Raises `ConfigurationError` immediately if `folder` is not an exported run.

    Attributes:
        folder: folder of the run.
        manifest: content of ``RUN.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = read_manifest(folder)
        self._cache: dict[str, pa.Table] = {}

    @property
    def run(self) -> str:
        """Original name of the run."""
        return str(self.manifest["run"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Record kinds with rows, in the order for a spool."""
        return tuple(kind for kind in _ORDER if kind in self.manifest["kinds"])

    @cached_property
    def steps(self) -> list[int]:
        """Steps with training or step records, ascending."""
        columns = [self.table(kind)["step"] for kind in ("training", "step")]
        return sorted({step for column in columns for step in column.unique().to_pylist() if step is not None})

    def table(self, kind: str) -> pa.Table:
        """Return all rows of `kind` in recorded order, with exactly the columns of the wire contract."""
        stored = self._stored(kind)
        return stored.drop_columns(WRITER) if WRITER in stored.column_names else stored

    def writers(self, kind: str) -> pa.ChunkedArray:
        """Return the writer of each row of `table(kind)`."""
        return self._stored(kind)[WRITER]

    @property
    def ended(self) -> datetime:
        """Time of the last record of a step, in UTC."""
        newest = (pc.max(self.table(kind)["time"]).as_py() for kind in ("training", "step"))
        last: datetime = max(time for time in newest if time is not None)
        return last.replace(tzinfo=UTC)

    def _stored(self, kind: str) -> pa.Table:
        if kind not in self._cache:
            path = self.folder / f"{kind}.parquet"
            empty = pa.table({WRITER: pa.array([], pa.string())})
            self._cache[kind] = _with_contract_columns(kind, pq.read_table(path) if kind in self.kinds else empty)
        return self._cache[kind]


def shifted(table: pa.Table, by: timedelta) -> pa.Table:
    """Return `table` with every timestamp column moved by `by`."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            delta = pa.scalar(by, pa.duration(field.type.unit))
            table = table.set_column(index, field, pc.add(table.column(index), delta))
    return table


def _with_contract_columns(kind: str, stored: pa.Table) -> pa.Table:
    """Insert the columns that were not stored, as nulls in the order of the contract."""
    for index, field in enumerate(SCHEMAS[kind]):
        if field.name not in stored.column_names:
            stored = stored.add_column(index, field, pa.nulls(stored.num_rows, field.type))
    return stored


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of ``RUN.json``. Raises `ConfigurationError` if `folder` is not an exported run."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(limits.read_text(path, limits.SETTINGS))
        readable = manifest["format"] <= FORMAT and manifest["schema"] <= SCHEMA_VERSION
        missing = [kind for kind in manifest["kinds"] if not (folder / f"{kind}.parquet").is_file()]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{folder} is not an exported run: cannot read {MANIFEST} ({error}); name the folder that has it"
        ) from error
    if not readable:
        raise ConfigurationError(f"{folder}: exported by a newer logprobe; upgrade")
    if missing:
        raise ConfigurationError(f"{folder}: incomplete, no rows of {', '.join(missing)}; copy the folder again")
    return dict(manifest)
