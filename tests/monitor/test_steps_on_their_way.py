"""One rule says for rules, controller and diagnosis which steps still wait for the engine's records, and until when."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from segments import RUN, records, sampled, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

WAITING = "SELECT step FROM steps_on_their_way($run, $at::TIMESTAMPTZ) ORDER BY step"


class Sides:
    """A run whose two sides are brought in by hand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spool = SpoolWriter(store.home.path, RUN, "w")
        self._pipeline = Pipeline(store, threading.Event())

    def bring(self, kind: str, *rows: dict) -> None:
        self._spool.write(kind, records(kind, *rows))
        self._pipeline.ingest(lambda _: None)

    def train(self, *steps: int) -> None:
        self.bring("training", *(trained(f"{step}", step, received=False) for step in steps))

    def waiting(self, after: timedelta = timedelta()) -> list[int]:
        """Steps that wait so long after the last one was computed."""
        known = self._store.query("SELECT max(computed_at) AS at FROM step_summaries").to_pylist()
        at = known[0]["at"] or datetime.now(UTC)
        rows = self._store.query(WAITING, {"run": RUN, "at": (at + after).isoformat()})
        return rows["step"].to_pylist()


@pytest.fixture
def sides(store: Store) -> Sides:
    return Sides(store)


def test_a_step_waits_until_three_later_ones_have_theirs_or_for_two_minutes(sides: Sides) -> None:
    assert sides.waiting() == []
    sides.train(0, 1, 2, 3, 4)
    assert sides.waiting() == []  # this engine has never sent any
    sides.bring("rollout", sampled("0"), sampled("3"))
    assert sides.waiting() == [1, 2, 4]
    assert sides.waiting(timedelta(minutes=1)) == [1, 2, 4]
    assert sides.waiting(timedelta(minutes=3)) == []
    sides.bring("rollout", sampled("4"))
    assert sides.waiting() == [2]


def test_the_diagnosis_waits_no_longer(sides: Sides, store: Store) -> None:
    sides.bring("rollout", sampled("0"))
    sides.train(0, 1)
    assert (gather(store, RUN).joins.sequences, gather(store, RUN).joins.missing) == (1, 0)
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET computed_at = computed_at - INTERVAL 3 MINUTES")
    assert (gather(store, RUN).joins.sequences, gather(store, RUN).joins.missing) == (2, 1)
