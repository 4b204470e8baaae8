"""A run as a folder of Parquet files, read by the demo, tests and notebooks; `sample_data/tools/exporting.py` writes
them.

    <folder>/RUN.json            the manifest: what was recorded, how, and how much of it
    <folder>/<kind>.parquet      all rows of a record kind, named and typed by the wire contract, in recorded order

Nothing is rounded, re-ordered within a writer or left out. Columns without a single value are not stored and come back
as nulls; `writer` stands next to the columns of the contract, because in a segment it is part of the place and not of
the rows.
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
    """An exported run, read lazily. Raises `ConfigurationError` immediately if `folder` is not one.

    Attributes:
        folder: its folder.
        manifest: the content of ``RUN.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = read_manifest(folder)
        self._cache: dict[str, pa.Table] = {}

    @property
    def run(self) -> str:
        """Name of the run when it was recorded."""
        return str(self.manifest["run"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Record kinds with rows, in the order in which they are written to a spool."""
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
    """Put back, as nulls and in their place, the columns that were not stored."""
    for index, field in enumerate(SCHEMAS[kind]):
        if field.name not in stored.column_names:
            stored = stored.add_column(index, field, pa.nulls(stored.num_rows, field.type))
    return stored


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of ``RUN.json``. Raises `ConfigurationError` when `folder` is no exported run."""
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
