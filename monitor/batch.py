"""One batch of ingest: many segments, their raw files, and the one transaction that makes them count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import StoreError
from logprobe.collectors.schema import HEALTH
from logprobe.collectors.spool import Segment
from logprobe.monitor.raw_files import RAW_KINDS, RAW_SCHEMAS, RawFile, remove_files, write_raw
from logprobe.monitor.sequence_rows import reduce_rollout, reduce_training
from logprobe.monitor.soundness import SoundRows
from logprobe.monitor.sql_files import statement
from logprobe.monitor.store import Store

# Record kind → statements that store its rows, in order; each reads the Arrow table `incoming`.
_STATEMENTS: Final[dict[str, tuple[str, ...]]] = {
    "training": ("insert_training_sequences", "insert_statistics", "queue_join", "mark_dirty"),
    "statistics": ("insert_training_sequences", "insert_statistics", "queue_join", "mark_dirty"),
    "rollout": ("insert_rollout_sequences", "queue_join"),
    "step": ("insert_step_records", "mark_dirty"),
    "weights": ("insert_weight_records", "mark_dirty_by_weights"),
    "config": ("insert_config_records",),
    "health": ("insert_health_records",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a batch and its usable rows."""

    segment: Segment
    rows: SoundRows


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw rows of one run and kind: the content of one new Parquet file."""

    run: str
    kind: str
    table: pa.Table
    tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments to be committed together."""

    parts: Sequence[Part]
    raws: Sequence[Raw]


def assemble(parts: Sequence[Part]) -> Batch:
    """Groups the raw rows of a batch by run and kind."""

    def key(part: Part) -> tuple[str, str]:
        return part.segment.where.run, part.segment.where.kind

    with_tokens = [part for part in parts if part.segment.where.kind in RAW_KINDS and part.rows.table.num_rows]
    groups = groupby(sorted(with_tokens, key=key), key=key)
    return Batch(parts, [_raw(run, kind, list(group)) for (run, kind), group in groups])


def write_batch(store: Store, batch: Batch) -> None:
    """Makes a batch count, or leaves no trace of it. Raises `StoreError`; what a segment's content may provoke passes through."""
    with ThreadPoolExecutor(1, thread_name_prefix="logprobe-parquet") as pool:
        # Parquet compresses in its thread while the statistics are computed in this one; both let go of the interpreter.
        pending = [pool.submit(write_raw, store.home, raw.run, raw.kind, raw.table, raw.tokens) for raw in batch.raws]
        try:
            tables = dict(_tables(batch))
            files = [future.result() for future in pending]
            with store.transaction() as cursor:
                _insert(cursor, batch, files, tables)
        except BaseException as error:
            _discard(store, pending)
            if isinstance(error, OSError):
                raise StoreError(f"raw tokens could not be written ({error}); the spool keeps them") from error
            raise


def _raw(run: str, kind: str, parts: list[Part]) -> Raw:
    table = pa.concat_tables([part.rows.table for part in parts]).combine_chunks()
    return Raw(run, kind, table.cast(RAW_SCHEMAS[kind]), sum(part.rows.tokens for part in parts))


def _tables(batch: Batch) -> Iterator[tuple[str, pa.Table]]:
    """Record kind → what is stored of it, all runs together."""
    reduce = {"training": reduce_training, "rollout": reduce_rollout}
    for kind, function in reduce.items():
        tables = [function(raw.table) for raw in batch.raws if raw.kind == kind]
        if tables:
            yield kind, pa.concat_tables(tables)
    for kind in _STATEMENTS.keys() - reduce.keys():
        tables = [_small_table(part) for part in batch.parts if part.segment.where.kind == kind]
        if kind == "health":
            tables += [_bad_rows_record(part) for part in batch.parts if part.rows.bad_rows]
        if tables:
            yield kind, pa.concat_tables(tables)


def _small_table(part: Part) -> pa.Table:
    table = part.rows.table.append_column("writer", pa.repeat(part.segment.where.writer, part.rows.table.num_rows))
    if part.segment.where.kind == "statistics":
        # Reduced next to the collector from calls that carried both log-probs, or neither.
        received = pa.compute.if_else(table["backend"].is_valid(), "received", "missing")
        return table.append_column("rollout_source", received)
    return table


def _bad_rows_record(part: Part) -> pa.Table:
    where, rows = part.segment.where, part.rows
    why = "; ".join(f"{reason} ({count})" for reason, count in rows.reasons.items())
    values: dict[str, Any] = {
        "time": datetime.now(UTC),
        "component": "ingest",
        "event": "bad_rows",
        "severity": "error",
        "message": f"{rows.bad_rows} rows of a {where.kind} segment do not fit together and were left out: {why}",
        "count": 1,
        "sequences": rows.bad_rows,
        "tokens": rows.bad_tokens,
        "step": rows.first_bad_step,
        "details": json.dumps({"segment": where.segment_id, "reasons": rows.reasons}),
    }
    key = {"run": where.run, "segment_id": where.segment_id, "row": -1, "writer": where.writer}
    schema = pa.schema(
        [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int32()), *HEALTH, ("writer", pa.string())]
    )
    return pa.Table.from_pylist([key | values], schema=schema)


def _insert(
    cursor: duckdb.DuckDBPyConnection, batch: Batch, files: Sequence[RawFile], tables: dict[str, pa.Table]
) -> None:
    now = datetime.now(UTC)
    _run(cursor, "insert_segments", _ledger(batch, files, now))
    if files:
        _run(cursor, "insert_raw_files", _registration(batch, files, now))
    for kind, table in tables.items():
        for name in _STATEMENTS[kind]:
            _run(cursor, name, table)


def _run(cursor: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    cursor.register("incoming", table)
    try:
        cursor.execute(statement(name))
    finally:
        cursor.unregister("incoming")


def _ledger(batch: Batch, files: Sequence[RawFile], now: datetime) -> pa.Table:
    places = {(raw.run, raw.kind): file.path for raw, file in zip(batch.raws, files, strict=True)}

    def row(part: Part) -> dict[str, Any]:
        where, rows = part.segment.where, part.rows
        return {
            "segment_id": where.segment_id,
            "run": where.run,
            "writer": where.writer,
            "sequence": where.sequence,
            "kind": where.kind,
            "rows": rows.table.num_rows,
            "tokens": rows.tokens,
            "bytes": part.segment.nbytes,
            "raw_file": places.get((where.run, where.kind)) if rows.table.num_rows else None,
            "ingested_at": now,
        }

    schema = pa.schema(
        [(name, pa.string()) for name in ("segment_id", "run", "writer", "kind", "raw_file")]
        + [(name, pa.int64()) for name in ("sequence", "rows", "tokens", "bytes")]
        + [("ingested_at", pa.timestamp("us", "UTC"))]
    )
    return pa.Table.from_pylist([row(part) for part in batch.parts], schema=schema)


def _registration(batch: Batch, files: Sequence[RawFile], now: datetime) -> pa.Table:
    rows = [
        {
            "path": file.path,
            "run": raw.run,
            "kind": raw.kind,
            **_step_range(raw),
            "rows": raw.table.num_rows,
            "tokens": raw.tokens,
            "bytes": file.nbytes,
            "created_at": now,
        }
        for raw, file in zip(batch.raws, files, strict=True)
    ]
    return pa.Table.from_pylist(rows)


def _step_range(raw: Raw) -> dict[str, int | None]:
    if raw.kind != "training":
        return {"min_step": None, "max_step": None}
    extremes = pa.compute.min_max(raw.table["step"]).as_py()
    return {"min_step": extremes["min"], "max_step": extremes["max"]}


def _discard(store: Store, pending: Sequence[Future[RawFile]]) -> None:
    """Removes the raw files of a batch that came to nothing."""
    done = [future for future in pending if not future.cancel() and future.exception() is None]
    remove_files(store.home, [future.result().path for future in done])
