"""Steps that a later attempt trained again under the run's name: the newest attempt counts, older ones are set aside.

An older attempt is known by what a trainer says of itself (`Recorder.begins`), never by what its records look like: other ranks,
micro-batches and sessions at work at the same time are one attempt. What is set aside lies in the tables ``older_*``, where no metric looks,
and comes back when its writer turns out to have been at work still. A step of the older attempt counts until the newest has recorded it, too.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.monitor.store.store import Store

_SET_ASIDE: Final = ("attempts_statistics", "attempts_forget_statistics", "attempts_records", "attempts_forget_records")


def settle(store: Store, marks: pa.Table) -> None:
    """Sets aside, or brings back, sequences of the dirty steps in `marks` (``run``, ``step``). Raises `StoreError`, `QueryError`."""
    steps = marks.select(["run", "step"]).group_by(["run", "step"]).aggregate([])
    runs = store.read("attempts_runs", steps)["run"] if steps.num_rows else None
    if not runs:
        return
    steps = steps.filter(pc.is_in(steps["run"], runs.combine_chunks()))
    _bring_back(store, store.read("attempts_disproved", steps))
    _set_aside(store, steps, store.read("attempts_older", steps))


def _set_aside(store: Store, steps: pa.Table, older: pa.Table) -> None:
    with store.transaction() as cursor:
        if older.num_rows:
            store.execute(cursor, "attempts_set_aside", older)
            store.execute(cursor, "attempts_forget", older, table="training_sequences")
        for name in _SET_ASIDE:
            store.execute(cursor, name, steps)


def _bring_back(store: Store, sequences: pa.Table) -> None:
    if not sequences.num_rows:
        return
    with store.transaction() as cursor:
        for name in ("attempts_bring_back", "attempts_bring_back_statistics", "attempts_bring_back_records"):
            store.execute(cursor, name, sequences)
        for table in ("older_sequences", "older_statistics"):
            store.execute(cursor, "attempts_forget", sequences, table=table)
        store.execute(cursor, "attempts_forget_older_records", sequences)
        store.execute(cursor, "mark_dirty", sequences)
