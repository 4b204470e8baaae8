"""`monitor.live` and the jobs of the store on the same random runs: every value, bit for bit, in whatever order records come."""

from __future__ import annotations

import numpy as np
import pytest
from live_worlds import History, World
from shadow import compare

from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor.analysis.step_job import StepJob
from logprobe.monitor.ingest import ingest
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.ingest.join import Joiner
from logprobe.monitor.ingest.late_marks import LateMarks
from logprobe.monitor.store.store import Store

WORLDS = {
    "plain": World(),
    "received": World(received=1.0, parts=0),
    "missing": World(received=0.0),
    "labels": World(labels=True, marks=0),
    "renamed": World(renamed=True, parts=0, masked=0.2, odd_tokens=0.05),
    "attempts": World(attempts=3, parts=0),
    "again": World(again=0.3),
    "marks": World(decided=1.0, marks=8, odd_tokens=0),
    "stated": World(stated=0.8),
    "odd": World(odd_values=0.6, reduced=0.4),
}
ROUNDS = 3  # in which the records of a run come


def test_every_value_is_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    segments: dict[str, Segment] = {}
    read = ingest.read_segment

    def remembered(where: SegmentPath) -> Segment:
        segment = read(where)
        segments[segment.segment_id] = segment
        return segment

    monkeypatch.setattr(ingest, "read_segment", remembered)
    histories = [(name, History(world, seed).make()) for seed, (name, world) in enumerate(WORLDS.items())]
    rng = np.random.default_rng(1)
    coming = [
        (history.bring(store.home.path, name, rng.permutation(len(history.segments)).tolist()), len(history.segments))
        for name, history in histories
    ]
    jobs = [Ingester(store), LateMarks(store), Joiner(store), StepJob(store)]
    for _ in range(ROUNDS):
        for segment, count in coming:
            for _ in range(-(-count // ROUNDS)):
                next(segment, None)
        for job in (*jobs, jobs[-1]):  # a step may become dirty while steps are computed
            job.run_once()
    found = compare(store, segments)
    assert found.different == []
    assert found.left_out == {}
    assert found.values > 60_000
    known = store.query(
        "SELECT DISTINCT joined_by AS how, rollout_source AS source FROM training_sequences"
    ).to_pylist()
    assert {row["how"] for row in known} == {None, "id", "parts", "tokens", "ambiguous"}
    assert {row["source"] for row in known} == {"received", "joined", "missing", "unaligned"}
    assert store.query("SELECT 1 FROM older_sequences LIMIT 1").num_rows
