"""Readings of weights become records; the store says which version they are of, by labels and marks, or that none is known."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from segments import records

from logprobe.collectors import Recorder
from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.versions import Timeline
from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Fingerprints, Sight
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store


class Engine:
    """One engine's fingerprints, with the files through which its worker talks, and the marks of a trainer."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.exchange = Exchange(folder / "exchange")
        self.timeline = Timeline()
        self.now = time.monotonic() - 100
        clock = Clock()
        sight = Sight(clock, self.now - 10)
        self.found = Fingerprints(self.exchange, self.timeline, Adapters(), clock, sight, caches=True)
        self.recorder = Recorder(self.home, "run", component="vllm_plugin")

    def answer(self, at: float, value: int, reason: str = "check", of: str = machine() or "") -> None:
        shown = {"keys": ["w float32[64]"]}
        began = self.now + at
        line = {"reason": reason, "began": began, "ended": began + 0.01, "wall": Clock().offset, "machine": of}
        self.exchange.answers_of(None).append({**line, **shown, "hashes": [value]})
        self.found._next_look = 0.0
        self.found.write(self.recorder, None)

    def mark(self, at: float, version: str) -> None:
        moment = self.now + at
        self.recorder.weights(version, applied_at=Clock().wall(moment), moment=moment, machine=machine())

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """What the store says once everything is in it."""
        assert self.recorder.flush()
        with Store.open(Home(self.home)) as store:
            Pipeline(store, Event()).ingest(lambda _: None)
            return [tuple(row.values()) for row in store.query(query).to_pylist()]

    def read(self) -> list[tuple[Any, ...]]:
        """Version and reason of each reading, oldest first."""
        return self.stored("SELECT version, reason FROM fingerprints WHERE source = 'worker' ORDER BY applied_at")

    def sample(self, *at: float) -> None:
        """A sequence whose tokens' steps began then."""
        times = [round((self.now + each) * 1e6) for each in at]
        decisions = [{"end": len(at), "at": None, "first": times[0], "last": times[-1]}]
        row = {"sample_id": "a", "token_ids": [1] * len(at), "step_times": times, "decisions": decisions}
        about = self.found._sight.seen(0, 0, None)
        row |= {"machine": machine(), **{name: about[name] for name in ("clock_offset", "engine_started")}}
        SpoolWriter(self.home, "run", "w").write("rollout", records("rollout", row))

    def versions(self) -> list[Any]:
        return [span["version"] for (spans,) in self.stored("SELECT spans FROM rollouts") for span in spans]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_a_reading_has_the_version_of_its_time(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11, "load")
    engine.timeline.set(engine.now + 2, None)  # a load
    engine.answer(3, 12, "load")
    engine.mark(4, "5")
    engine.answer(65, 12)
    assert engine.read() == [("4", "load"), (None, "load"), ("5", "check")]


def test_a_label_is_known_without_a_mark(engine: Engine) -> None:
    engine.timeline.set(engine.now, "6")
    engine.answer(1, 11)
    assert engine.read() == [("6", "check")]


def test_without_marks_no_version_is_known(engine: Engine) -> None:
    engine.answer(1, 11)
    engine.answer(10, 12)
    assert engine.read() == [(None, "check"), (None, "check")]


@pytest.mark.parametrize("during", ["a mark", "a load"])
def test_a_reading_during_which_something_happened_has_no_version(engine: Engine, during: str) -> None:
    engine.mark(0, "4")
    if during == "a mark":
        engine.mark(1.005, "5")
    else:
        engine.timeline.set(engine.now + 1.005, None)
    engine.answer(1, 11, "load")
    assert engine.read() == [(None, "load")]


def test_weights_that_changed_unannounced_are_unknown_since_they_were_last_seen(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.sample(0.5, 2, 20)  # and what was written before anybody knew
    assert engine.versions() == ["4"]
    engine.answer(10, 12)
    assert engine.read() == [("4", "check"), (None, "unannounced")]
    assert engine.versions() == ["4", None]


def test_a_mark_that_comes_after_the_change_announces_it(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.answer(10, 12)
    assert engine.read() == [("4", "check"), (None, "unannounced")]
    engine.mark(11, "5")
    engine.answer(12, 12, "label")
    assert engine.read() == [("4", "check"), (None, "check"), ("5", "label")]


def test_a_mark_of_the_time_of_the_change_is_its_announcement(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.sample(2, 20)
    engine.answer(10, 12)
    assert engine.versions() == [None]
    engine.mark(9, "5")  # comes late
    assert engine.read() == [("4", "check"), ("5", "check")]
    assert engine.versions() == ["4", "5"]


def test_checksums_of_the_engine_are_readings_of_their_own(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    for at, digest, replica in ((2, "0a" * 32, "dp0"), (3, "0b" * 32, "dp1")):
        ranks = [{f"{replica}:pp0:pcp0:tp{rank}:w": digest} for rank in (0, 1)]
        engine.found.write_checksums((engine.now + at, engine.now + at + 0.1, ranks), engine.recorder, replica)
    rows = engine.stored("SELECT worker, version, reason, tensor_hashes FROM fingerprints ORDER BY applied_at, worker")
    assert rows == [
        (None, "4", "check", [11]),
        *[(f"checksums-{rank}", "4", "checksum", [0x0A0A0A0A]) for rank in (0, 1)],
        *[(f"checksums-{rank}", "4", "checksum", [0x0B0B0B0B]) for rank in (0, 1)],
    ]
    layouts = engine.stored("SELECT worker, count(DISTINCT layout) FROM fingerprints GROUP BY 1 ORDER BY 1 NULLS FIRST")
    assert layouts == [(None, 1), ("checksums-0", 1), ("checksums-1", 1)], "replicas are compared"


def test_checks_that_say_nothing_new_are_recorded_once_a_minute(engine: Engine) -> None:
    engine.mark(0, "4")
    for at in (1, 11, 21, 60, 61, 62):
        engine.answer(at, 11)
    assert engine.stored("SELECT version FROM fingerprints") == [("4",)] * 2


def test_what_did_not_change_with_a_mark_is_said_before_what_did(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.mark(5, "5")  # and nothing is loaded
    engine.answer(11, 11)
    assert engine.read() == [("4", "check")]
    engine.answer(21, 12, "load")
    assert engine.read() == [("4", "check"), ("5", "check"), (None, "unannounced")]
    assert engine.stored("SELECT count(DISTINCT fingerprint) FROM fingerprints WHERE version IS NOT NULL") == [(1,)]


def test_what_an_engine_ends_with_is_said(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.mark(5, "5")
    engine.answer(11, 11)
    engine.found.write(engine.recorder, None, everything=True)
    assert engine.read() == [("4", "check"), ("5", "check")]


def test_of_another_machine_clocks_may_differ(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.mark(10, "5")
    engine.answer(5, 11, of="elsewhere")
    engine.answer(9.5, 12, of="elsewhere")
    assert [row[0] for row in engine.read()] == ["4", None]


def test_an_engine_whose_loads_nobody_sees_has_the_version_with_which_it_goes_on(engine: Engine) -> None:
    """Since it was marked; and what it keeps of prefixes, it keeps."""
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.mark(9, "5")
    assert engine.stored("SELECT version FROM weights WHERE source = 'engine'") == [("4",)]
    engine.answer(10, 12)
    updates = "SELECT version, cache_cleared FROM weights WHERE source = 'engine' ORDER BY applied_at"
    assert engine.stored(updates) == [("4", None), ("5", False)]
    late = "SELECT epoch(w.applied_at - t.applied_at) < 0.001 FROM weights AS w JOIN weights AS t USING (version) "
    assert engine.stored(late + "WHERE w.source = 'engine' AND t.source = 'trainer'") == [(True,)] * 2
