"""Marks that an engine read too late: versions are corrected in the store; which tokens, is in tests/unit/test_live.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from segments import RUN, at, records, sampled, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.versions import Decided, Decision, resolved
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

SECOND = 1_000_000
STARTED = 50 * SECOND


def steps(*seconds: float, decided: float | None, **more: Any) -> dict[str, Any]:
    """A rollout whose tokens' steps began at these seconds, all decided at once."""
    times = [round(second * SECOND) for second in seconds]
    known = None if decided is None else round(decided * SECOND)
    return {
        "step_times": times,
        "decisions": [{"end": len(times), "at": known, "first": times[0], "last": times[-1]}],
        "machine": "here",
        "clock_offset": 0,
        "engine_started": STARTED,
        **more,
    }


def mark(version: str, second: float, **more: Any) -> dict[str, Any]:
    moment = round(second * SECOND)
    wall = at(0) + (at(second) - at(0))
    return {
        "time": wall,
        "version": version,
        "source": "trainer",
        "applied_at": wall,
        "moment": moment,
        "machine": "here",
    } | more


class Run:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = SpoolWriter(store.home.path, RUN, "w")
        self.pipeline = Pipeline(store, Event())

    def feed(self, kind: str, *rows: dict[str, Any]) -> None:
        self.writer.write(kind, records(kind, *rows))
        self.pipeline.ingest(lambda _: None)


@pytest.fixture
def run(home: Path) -> Iterator[Run]:
    with Store.open(Home(home)) as store:
        yield Run(store)


def test_a_late_mark_reaches_its_tokens(run: Run) -> None:
    run.feed("training", trained("a", weight_version="3"))
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100)))
    run.feed("weights", mark("3", 103))
    (row,) = run.store.query("SELECT spans FROM rollouts").to_pylist()
    assert [tuple(span.values()) for span in row["spans"]] == [(0, 2, "1"), (2, 4, "3")]
    lag = run.store.query("SELECT value FROM metrics WHERE metric = 'weight_lag_mean'")
    assert lag["value"].to_pylist() == [1]


@pytest.mark.parametrize("ends", [[4, 2], [2, 2, 4], [3], [2, 9], [0, 4]])
def test_a_record_that_does_not_fit_together_is_unknown_and_holds_up_nothing(run: Run, ends: list[int]) -> None:
    decisions = [{"end": end, "at": 100 * SECOND, "first": 101 * SECOND, "last": 104 * SECOND} for end in ends]
    odd = sampled("a", version="1", **(steps(101, 102, 103, 104, decided=100) | {"decisions": decisions}))
    run.feed("rollout", odd, sampled("b", version="1", **steps(101, 102, 103, 104, decided=100)))
    run.feed("weights", mark("3", 103))
    rows = run.store.query("SELECT sample_id, spans FROM rollouts ORDER BY ALL").to_pylist()
    assert [len(row["spans"]) for row in rows] == [0, 2]


def test_without_the_times_of_steps_tokens_of_a_late_mark_are_unknown() -> None:
    decisions = (Decision(2, 10, 11, 12), Decision(4, 13, 14, 16))
    record = Decided(((0, 2, "1"), (2, 4, "2")), decisions, 4, "here", 0, None, 0, None, None)
    assert resolved(record, [[], [(15, "3")]], None) == ((0, 2, "1"), (2, 4, None))
    assert resolved(record, [[], [(14, "3")]], None) == ((0, 2, "1"), (2, 4, "3")), "all of these tokens came later"


def test_a_run_whose_tokens_cannot_be_read_holds_up_no_other(run: Run) -> None:
    other = SpoolWriter(run.store.home.path, "other", "w")
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100)))
    other.write("rollout", records("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100))))
    run.pipeline.ingest(lambda _: None)
    run.store.archive.merge()
    (damaged,) = (run.store.home.raw / RUN / "rollout").rglob("*.parquet")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    run.pipeline = Pipeline(run.store, Event())  # one that has them in memory asks nobody
    for writer in (run.writer, other):
        writer.write("weights", records("weights", mark("3", 103)))
    run.pipeline.ingest(lambda _: None)
    found = {row["run"]: row["spans"] for row in run.store.query("SELECT run, spans FROM rollouts").to_pylist()}
    assert [span["version"] for span in found["other"]] == ["1", "3"]
    assert [span["version"] for span in found[RUN]] == [None]  # whichever of its tokens the mark is about
