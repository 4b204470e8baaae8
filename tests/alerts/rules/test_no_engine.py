"""A run in which nothing but the trainer's model generates: that is told once, and goes when records come."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

from recorded_home import take_in
from segments import RUN, records, sampled, trained

from logprobe.alerts.rules.watch import Watch
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.store.store import Store


def test_the_absence_of_an_engine_is_told_once_and_ends_with_its_records(home: Path, store: Store) -> None:
    spool = SpoolWriter(home, RUN, "w")
    for step in range(12):
        spool.write("training", records("training", trained(f"{step}/0", step, received=False)))
    take_in(store)

    def told(minutes: float) -> list[tuple[str, str, str]]:
        (row,) = store.query("SELECT max(computed_at) AS at FROM step_summaries").to_pylist()
        Watch(store, tuple, threading.Event(), clock=lambda: row["at"] + timedelta(minutes=minutes)).run_once()
        rows = store.query("SELECT rule, state, severity FROM notifications ORDER BY number").to_pylist()
        return [tuple(row.values()) for row in rows]

    assert told(1) == []
    assert told(3) == told(4) == [("liveness", "firing", "warning")]
    spool.write("rollout", records("rollout", sampled("11/0")))
    take_in(store)
    assert told(5)[1:] == [("liveness", "resolved", "warning")]
