"""Readings of weights become records: of the version that the engine was said to have, or of none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from spool_contents import rows as rows_of

from logprobe.collectors import Recorder
from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.health import Health
from logprobe.collectors.versions import Timeline, spans_of
from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Fingerprints


class Engine:
    """One engine's fingerprints, with the files through which its worker talks."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.exchange = Exchange(folder / "exchange")
        self.timeline = Timeline()
        self.health = Health()
        self.found = Fingerprints(self.exchange, self.timeline, Adapters(), Clock())
        self.recorder = Recorder(self.home, "run", component="vllm_plugin")
        self.now = time.monotonic() - 100

    def answer(self, at: float, value: int, reason: str = "check", of: str = machine() or "") -> None:
        shown = {"keys": ["w float32[64]"]}
        began = self.now + at
        line = {"reason": reason, "began": began, "ended": began + 0.01, "wall": Clock().offset, "machine": of}
        self.exchange.answers_of(None).append({**line, **shown, "hashes": [value]})
        self.found._next_look = 0.0
        for worker, answer in self.exchange.new_answers():
            self.found._take(worker, answer)

    def mark(self, at: float, version: str | None) -> None:
        self.timeline.set(self.now + at, version)
        self.found.marked(self.now + at)

    def written(self) -> list[tuple[Any, ...]]:
        self.found.write(self.recorder, self.health, None, everything=True)
        assert self.recorder.close()
        rows = rows_of(self.home, "weights")
        return [(row["version"], row["reason"], row["fingerprint"] is not None) for row in rows]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_a_reading_has_the_version_of_its_time(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11, "mark")
    engine.timeline.set(engine.now + 2, None)  # a load
    engine.answer(3, 12, "load")
    engine.mark(4, "5")
    engine.answer(5, 12, "mark")
    assert engine.written() == [("4", "mark", True), (None, "load", True), ("5", "mark", True)]


def test_a_reading_during_which_something_happened_has_no_version(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.mark(1.005, "5")
    engine.answer(1, 11, "mark")
    assert engine.written() == [(None, "mark", True)]


def test_weights_that_changed_unannounced_are_unknown_since_they_were_last_seen(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.answer(10, 12)
    assert [version for _, _, version in spans_of(engine.timeline.runs([engine.now + at for at in (0.5, 2, 20)]))] == [
        "4",
        None,
    ]
    assert engine.written() == [("4", "check", True), (None, None, False), (None, "unannounced", True)]
    mark = next(row for row in rows_of(engine.home, "weights") if row["moment"] is not None)
    assert mark["moment"] == pytest.approx((engine.now + 1.01) * 1e6, abs=1), "for records that are written already"
    assert (mark["source"], mark["machine"], mark["adapter"]) == ("engine", machine(), None)
    assert engine.health.counts()["problems"] == {"weights_changed_unannounced": 1}


def test_a_mark_that_comes_after_the_change_announces_it(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.answer(10, 12)
    engine.mark(11, "5")
    engine.answer(12, 12, "mark")
    written = engine.written()
    assert written == [("4", "check", True), (None, None, False), (None, "check", True), ("5", "mark", True)]
    assert engine.health.counts()["problems"] == {}


def test_a_mark_of_the_time_of_the_change_is_taken_for_its_announcement(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.answer(1, 11)
    engine.answer(10, 12)
    engine.mark(9, "5")  # read late
    assert engine.written() == [("4", "check", True), ("5", "check", True)]


def test_checks_that_say_nothing_new_are_not_recorded(engine: Engine) -> None:
    engine.mark(0, "4")
    for at in (1, 11, 21):
        engine.answer(at, 11)
    assert engine.written() == [("4", "check", True)]


def test_of_another_machine_clocks_may_differ(engine: Engine) -> None:
    engine.mark(0, "4")
    engine.mark(10, "5")
    engine.answer(5, 11, of="elsewhere")
    engine.answer(9.5, 12, of="elsewhere")
    assert [row[0] for row in engine.written()] == ["4", None]
