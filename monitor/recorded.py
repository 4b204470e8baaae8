"""A run as a folder of Parquet files, read for replay, tests and notebooks; `sample_data/tools/exporting.py` writes
them.

    <folder>/RUN.json            the manifest: what was recorded, how, and how much of it
    <folder>/<kind>.parquet      all rows of a record kind, named and typed by the wire contract, in recorded order

Nothing is rounded, re-ordered within a writer or left out. Columns without a single value are not stored and come back
as nulls; `writer` stands next to the columns of the contract, because in a segment it is part of the place and not of
the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS
from logprobe.monitor import limits

MANIFEST: Final = "RUN.json"
FORMAT: Final = 1
WRITER: Final = "writer"
# What a reader needs first comes first: a frame's tables are written to a spool in this order.
_ORDER: Final = ("config", "weights", "rollout", "statistics", "training", "step", "health")


@dataclass(frozen=True, slots=True)
class Frame:
    """What became known up to the end of one step: the unit of a replay."""

    step: int
    time: datetime  # when the step's last record was made, as recorded
    tables: dict[str, pa.Table]  # by kind, in the order in which to write them; only kinds with rows


class RecordedRun:
    """An exported run. Reads lazily; raises `ConfigurationError` at once when `folder` is not one.

    Attributes:
        folder: where it lies.
        manifest: the content of ``RUN.json``.
    """

    def __init__(self, folder: Path, read: Callable[[Path], pa.Table] = pq.read_table) -> None:
        """`read`: reads a Parquet file; another one for folders that come from elsewhere."""
        self.folder = folder
        self._read = read
        self.manifest: dict[str, Any] = read_manifest(folder)
        self._cache: dict[str, pa.Table] = {}

    @property
    def run(self) -> str:
        """Name of the run when it was recorded."""
        return str(self.manifest["run"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Record kinds with rows, in the order in which a replay writes them."""
        return tuple(kind for kind in _ORDER if kind in self.manifest["kinds"])

    @cached_property
    def steps(self) -> list[int]:
        """Steps with training or step records, ascending."""
        columns = [self.table(kind)["step"] for kind in ("training", "step")]
        return sorted({step for column in columns for step in column.unique().to_pylist() if step is not None})

    def table(self, kind: str) -> pa.Table:
        """All rows of `kind` in recorded order, with exactly the columns of the wire contract."""
        stored = self._stored(kind)
        return stored.drop_columns(WRITER) if WRITER in stored.column_names else stored

    def writers(self, kind: str) -> pa.ChunkedArray:
        """Who wrote each row of `table(kind)`."""
        return self._stored(kind)[WRITER]

    def frames(self, start: int = 0) -> Iterator[Frame]:
        """The run step by step, as it grew; from the `start`-th of its steps on.

        A rollout row comes in the frame of the first step that trains on it. What has no step (weights, configurations,
        health, rollouts that no one trained on) comes in the first frame that ended after it, the last frame if none
        did.
        """
        for index in range(start, len(self.steps)):
            yield self._frame(self.table, index, index)

    def up_to(self, count: int) -> Frame:
        """The first `count` steps (at least one) as one frame, named after the last of them; its rows say who wrote
        them (`WRITER`)."""
        return self._frame(self._stored, 0, count - 1)

    def _frame(self, rows: Callable[[str], pa.Table], first: int, last: int) -> Frame:
        tables = {
            kind: rows(kind).take(np.flatnonzero((places >= first) & (places <= last)))
            for kind, places in self._places.items()
        }
        moment = self._ends[last].item().replace(tzinfo=UTC)
        return Frame(self.steps[last], moment, {kind: table for kind, table in tables.items() if table.num_rows})

    @cached_property
    def _places(self) -> dict[str, np.ndarray]:
        """Of each row of a kind, the index of its frame."""
        return {kind: self._frames_of(kind, self._ends) for kind in self.kinds}

    @cached_property
    def _ends(self) -> np.ndarray:
        """When the last record of each step was made, datetime64[us], never going back."""
        newest = dict.fromkeys(self.steps, np.datetime64(0, "us"))
        for kind in ("training", "step"):
            table = self.table(kind).select(["step", "time"]).group_by("step").aggregate([("time", "max")])
            for step, time in zip(table["step"].to_pylist(), _times(table["time_max"]), strict=True):
                newest[step] = max(newest[step], time)
        return np.maximum.accumulate(np.array([newest[step] for step in self.steps]))

    def _frames_of(self, kind: str, ends: np.ndarray) -> np.ndarray:
        table = self.table(kind)
        by_time = np.minimum(np.searchsorted(ends, _times(table["time"])), len(ends) - 1)
        if kind == "rollout":
            used = self._first_use
            uses = [used.get(sample) for sample in table["sample_id"].to_pylist()]
        elif "step" in table.column_names and kind in {"training", "step", "statistics"}:
            places = {step: index for index, step in enumerate(self.steps)}
            uses = [places.get(step) for step in table["step"].to_pylist()]
        else:
            return by_time
        return np.array([late if use is None else use for use, late in zip(uses, by_time, strict=True)], np.int64)

    @cached_property
    def _first_use(self) -> dict[str, int]:
        places = {step: index for index, step in enumerate(self.steps)}
        table = self.table("training").select(["sample_id", "step"]).group_by("sample_id").aggregate([("step", "min")])
        pairs = zip(table["sample_id"].to_pylist(), table["step_min"].to_pylist(), strict=True)
        return {sample: places[step] for sample, step in pairs if step is not None}

    def _stored(self, kind: str) -> pa.Table:
        if kind not in self._cache:
            path = self.folder / f"{kind}.parquet"
            empty = pa.table({WRITER: pa.array([], pa.string())})
            self._cache[kind] = _with_contract_columns(kind, self._read(path) if kind in self.kinds else empty)
        return self._cache[kind]


def shifted(table: pa.Table, by: timedelta) -> pa.Table:
    """`table` with every timestamp column moved by `by`, as a replay needs it to look live."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            delta = pa.scalar(by, pa.duration(field.type.unit))
            table = table.set_column(index, field, pc.add(table.column(index), delta))
    return table


def _times(column: pa.ChunkedArray) -> np.ndarray:
    """Microseconds since the epoch as datetime64[us]; an unknown time counts as the epoch."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0)).astype("datetime64[us]")


def _with_contract_columns(kind: str, stored: pa.Table) -> pa.Table:
    """Puts back, as nulls and in their place, the columns that were not stored."""
    for index, field in enumerate(SCHEMAS[kind]):
        if field.name not in stored.column_names:
            stored = stored.add_column(index, field, pa.nulls(stored.num_rows, field.type))
    return stored


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of ``RUN.json``. Raises `ConfigurationError` when `folder` is no exported run."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(limits.read_text(path, limits.SETTINGS))
        readable = manifest["format"] <= FORMAT and manifest["schema"] <= SCHEMA_VERSION
        missing = [kind for kind in manifest["kinds"] if not (folder / f"{kind}.parquet").is_file()]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{folder} is not an exported run: cannot read {MANIFEST} ({error})") from error
    if not readable:
        raise ConfigurationError(f"{folder}: exported by a newer logprobe; upgrade")
    if missing:
        raise ConfigurationError(f"{folder}: incomplete, no rows of {', '.join(missing)}; copy the folder again")
    return dict(manifest)
