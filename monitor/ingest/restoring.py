"""Take in files of the archive that stand for records whose tokens are gone: the very rows that the store had."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.live.store import Within
from logprobe.monitor.live.writing import write_stored
from logprobe.monitor.store.archive_file import Merged
from logprobe.monitor.store.store import Store

StepKey = tuple[str, int]
_TRAINED: Final = (
    "restore_training",
    "restore_statistics",
    "restore_older",
    "restore_older_statistics",
    "restore_made",
    "insert_training_parts",
)
_LEDGER: Final = pa.schema(
    [(name, pa.string()) for name in ("segment_id", "run", "writer", "kind")]
    + [(name, pa.int64()) for name in ("sequence", "rows", "tokens", "bytes")]
    + [("ingested_at", pa.timestamp("us", "UTC"))]
)


def restore_sequences(store: Store, file: Merged, table: pa.Table, unknown: Collection[str]) -> set[StepKey]:
    """Take in the sequences of segments that the store does not know; return their steps, whose metrics are to follow.

    Raises `StoreError`.
    """
    table = table.filter(pc.is_in(table["segment_id"], pa.array(sorted(unknown), pa.string()))).combine_chunks()
    is_trained = "statistics" in table.column_names
    tokens = "n_total" if is_trained else "n_tokens"
    with store.standing_still():
        with store.transaction() as cursor:
            to = Within(store, cursor)
            to.execute("insert_segments", _ledger(store, file, table, tokens, unknown))
            for name in _TRAINED if is_trained else ("restore_rollouts",):
                to.execute(name, table)
        store.rewritten.note([file.run])
    return {(file.run, step) for step in table["step"].unique().to_pylist()} if is_trained else set()


def compute(store: Store, steps: Iterable[StepKey]) -> None:
    """Compute the metrics of steps from what the store has of their sequences. Raises `StoreError`."""
    wanted = sorted(steps)
    if wanted:
        with store.standing_still(), store.transaction() as cursor:
            write_stored(Within(store, cursor), wanted, datetime.now(UTC))


def _ledger(store: Store, file: Merged, table: pa.Table, tokens: str, segments: Collection[str]) -> pa.Table:
    counts = table.group_by("segment_id").aggregate([(tokens, "sum"), (tokens, "count")])
    by_segment = {row["segment_id"]: row for row in counts.to_pylist()}
    now = datetime.now(UTC)

    def row(segment: str) -> dict[str, Any]:
        where = SegmentPath.parse(store.home.spool / segment)
        found = by_segment.get(segment, {})
        return {
            "segment_id": segment,
            "run": file.run,
            "writer": where.writer,
            "sequence": where.sequence,
            "kind": where.kind,
            "rows": found.get(f"{tokens}_count", 0),
            "tokens": found.get(f"{tokens}_sum", 0),
            "bytes": 0,  # of the segment, which is gone
            "ingested_at": now,
        }

    return pa.Table.from_pylist([row(segment) for segment in sorted(segments)], _LEDGER)
