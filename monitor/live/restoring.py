"""Restore archive files that replace records without tokens. The restored rows equal those of the previous store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor import ragged
from logprobe.monitor.live.batch import LEDGER
from logprobe.monitor.live.memory import StepKey
from logprobe.monitor.live.tick import STEPS_PER_BATCH, Live
from logprobe.monitor.live.writing import Within, write
from logprobe.monitor.store.archive_file import Merged
from logprobe.monitor.store.store import Store


def restore_sequences(store: Store, file: Merged, table: pa.Table, unknown: Collection[str]) -> set[StepKey]:
    """Restore the sequences of segments unknown to the store, and return the steps whose metrics must be computed.

    Raises `StoreError`.
    """
    table = table.filter(pc.is_in(table["segment_id"], pa.array(sorted(unknown), pa.string())))
    if "step" in table.column_names:
        steps = store.read("past_frozen", run=file.run)["step"].combine_chunks()
        table = table.filter(pc.invert(pc.is_in(table["step"], steps)))
    table = table.combine_chunks()
    is_trained = "statistics" in table.column_names
    with store.standing_still():
        with store.transaction() as cursor:
            to = Within(store, cursor)
            to.execute("append", _ledger(store, file, unknown), table="segments")
            for name, rows in (_trained(table) if is_trained else {"rollout_sequences": table}).items():
                to.execute("append", rows, table=name)
        store.rewritten.note([file.run])
    return {(file.run, step) for step in table["step"].unique().to_pylist()} if is_trained else set()


def _trained(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each table for training records with their statistics, see ``archive_trained``."""
    statistics, made = (ragged.one_array(table[name]) for name in ("statistics", "made"))
    repeated_by = table["repeated_by"].take(pc.list_parent_indices(statistics))
    rows = pa.Table.from_struct_array(statistics.flatten()).append_column("repeated_by", repeated_by)
    kept = table.drop_columns(["statistics", "made", "raw_kept"])
    return {
        "all_sequences": kept.append_column("raw_kept", pa.repeat(False, table.num_rows)),
        "all_statistics": rows,
        "rollout_sequences": pa.Table.from_struct_array(made.filter(pc.struct_field(made, "segment_id").is_valid())),
    }


def restore_frozen(store: Store, file: Merged, unknown: Collection[str]) -> None:
    """Restore frozen steps, of which a later attempt may train some again.

    Raises `StoreError`, or `OSError` if the file cannot be read.
    """
    ledger = _ledger(store, file, unknown)
    with store.standing_still():
        with store.transaction() as cursor:
            store.execute(cursor, "append", ledger, table="segments")
        store.archive.note()  # the index has all segments of the file now


def compute(store: Store, live: Live, steps: Iterable[StepKey]) -> None:
    """Compute the metrics of steps from their stored sequences. Raises `StoreError`."""
    wanted = sorted(steps)
    for first in range(0, len(wanted), STEPS_PER_BATCH):
        with store.standing_still():
            live.forget(store.rewritten.take())
            outcome = live.again(wanted[first : first + STEPS_PER_BATCH])
            with store.transaction() as cursor:
                revisions = write(Within(store, cursor), outcome, store.time.now())
            live.written(outcome, revisions)
            live.keep()


def _ledger(store: Store, file: Merged, segments: Collection[str]) -> pa.Table:
    counts = store.archive.counts(file)
    now = store.time.now()

    def row(segment: str) -> dict[str, Any]:
        where = SegmentPath.parse(store.home.spool / segment)
        rows, tokens = counts[segment]
        return {
            "segment_id": segment,
            "run": file.run,
            "writer": where.writer,
            "sequence": where.sequence,
            "kind": where.kind,
            "rows": rows,
            "tokens": tokens,
            "bytes": 0,  # of the segment, which is gone
            "ingested_at": now,
        }

    return pa.Table.from_pylist([row(segment) for segment in sorted(segments)], LEDGER)
