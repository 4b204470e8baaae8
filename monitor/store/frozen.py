"""Frozen steps in the index: the content of an archive file replaces their sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from logprobe.monitor.store.store import Store

_REPLACED: Final = ("step_metrics", "step_summaries")
_UNKNOWN: Final = pa.struct([("missing", pa.int64())])
_GOING: Final = {
    "all_sequences": "freeze_forget",
    "all_statistics": "freeze_forget",
    "profiles": "forget_steps",
}


def write(store: Store, cursor: Any, run: str, rows: pa.Table) -> None:
    """Write the steps of a frozen file within a transaction. Steps in the index stay unchanged.

    For a step that was frozen again after a later attempt, the newer records count.
    """
    known = store.read_within(cursor, "freeze_known", rows.select(["run", "step", "time"]))
    there = known.filter(pc.invert(pc.fill_null(known["replaced"], False)))["step"]
    rows = rows.filter(pc.invert(pc.is_in(rows["step"], there.combine_chunks()))).combine_chunks()
    if not rows.num_rows:
        return
    if "counts" not in rows.column_names:  # a file from before they were kept
        rows = rows.append_column("counts", pa.nulls(rows.num_rows, _UNKNOWN))
    keys = rows.select(["run", "step"])
    again = keys.filter(pc.is_in(keys["step"], known["step"].combine_chunks()))
    for table in _REPLACED if again.num_rows else ():
        store.execute(cursor, "forget_steps", again, table=table)
    steps = keys["step"].to_pylist()
    rollouts = store.read_within(cursor, "freeze_rollouts_due", run=run, steps=steps)
    for name in ("freeze_steps", "freeze_metrics", "freeze_summaries"):
        store.execute(cursor, name, rows)
    store.execute(cursor, "freeze_forget_rollouts", rollouts)
    for table, name in _GOING.items():
        store.execute(cursor, name, keys, table=table)
    store.rewritten.note([run])
