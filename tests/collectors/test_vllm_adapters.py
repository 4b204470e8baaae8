"""Versions of LoRA adapters: what was marked since they were loaded, as the monitor has them."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.versions import Run
from logprobe.collectors.vllm import adapters as engine
from logprobe.collectors.vllm.adapters import Load
from logprobe.collectors.vllm.emitter import decisions
from logprobe.monitor.live.versions import Decided, Decision, Mark, Marks, Seen, Spans, resolved


def request(number: int = 1, path: str = "/a", name: str = "red") -> SimpleNamespace:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


RED, NEW, STRANGER = request(), request(2, "/b"), request(path="/c", name="stranger")
SAME_FILES, OTHER_PATH = request(2), request(path="/b")


class Adapters(engine.Adapters):
    """An engine's adapters, with the marks that the monitor knows."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks()

    def mark(self, at: float, version: str, name: str = "red") -> None:
        self.marks.add(Mark(micros(at), None, "here", None, name, version))

    def load(
        self, which: SimpleNamespace, at: float, content: int | None = 0, written: float | None = None
    ) -> None:  # fmt: skip
        """A worker read an adapter; `content`: None where it could not be hashed."""
        hashed = None if content is None else Fingerprint(("w",), np.array([content], np.uint32))
        load = self.read(which.lora_int_id, Load(at, which.lora_path, hashed), written)
        if load is None:
            return
        moment = micros(load.moment)
        about = {"machine": "here", "clock_offset": 0, "clock_set": None, "engine_started": 0, "replica": None}
        span = {"began": moment, "ended": moment, "decided": None, "moment": moment, "until": moment}
        seen = Seen(
            reading=True, version=None, touched=False, adapter=which.lora_name, since=micros(load.since), **about, **span
        )  # fmt: skip
        self.marks.add(Mark(moment, moment, "here", None, which.lora_name, None, of=seen))

    def named(self, times: list[float], runs: list[Run]) -> Spans:
        said = tuple(Decision(*each) for each in decisions(runs, array("d", times)))
        record = Decided(((0, len(times), None),), said, len(times), "here", 0, None, 0, None, "red")
        marks = self.marks.about(record)
        return resolved(record, marks, np.array([micros(time) for time in times])) if marks else record.spans

    def versions(self, which: SimpleNamespace, times: list[float]) -> list[str | None]:
        """Of each token of a request whose steps began then."""
        spans = self.named(times, self.runs(which, array("d", times)))
        return [version for start, end, version in spans for _ in range(start, end)]


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


Happened = tuple[Any, ...]  # a method and its arguments; or a request and times, with the versions that its tokens have
USED: list[Happened] = [("load", RED, 1), ("used", RED, 1)]
MARKED: list[Happened] = [*USED, ("mark", 1.5, "1")]
TWICE: list[Happened] = [*MARKED, ("mark", 2.5, "2")]

SITUATIONS: dict[str, list[Happened]] = {
    "replaced under its requests: unknown from there, and marks are about the new one": [
        ("load", RED, 1), ("load", NEW, 3), ("used", RED, 1), ("mark", 1.5, "1"), ("used", NEW, 3),
        (RED, [2, 4], ["1", None]), (NEW, [4], [None]), ("mark", 5, "2"),
        (RED, [2, 6], ["1", None]), (NEW, [4, 6], [None, "2"]),
    ],
    "a mark between the old and the new one is about the new one": [
        ("load", NEW, 4), ("used", RED, 1), ("ended", RED, 2), ("mark", 3, "2"), ("used", NEW, 4), (NEW, [5], ["2"]),
    ],
    "a mark before another one is loaded under the name is about the old one": [
        ("load", NEW, 3.5), ("used", RED, 1), ("ended", RED, 2), ("mark", 3, "2"), ("added", NEW, 3.5), ("used", NEW, 4), (NEW, [5], [None]),
    ],
    "weights that changed before it was heard of count for it": [
        ("load", RED, 0.5), ("weights_changed", 2), ("mark", 1, "1"), ("used", RED, 0.5), (RED, [1.5, 2.5], ["1", None]),
    ],
    "a request that is written after its adapter was replaced keeps its version": [
        ("load", RED, 1), ("mark", 0.5, "1"), ("used", RED, 1), ("ended", RED, 2), ("used", NEW, 3), (RED, [1.5, 2], ["1", "1"]),
    ],
    "without a load that was seen nothing is known": [
        ("mark", 0.5, "1"), ("used", RED, 1), (RED, [2], [None]), ("load", RED, 3), (RED, [2, 3], [None, "1"]),
    ],
    "the same content read again changes nothing": [*MARKED, ("load", RED, 3, 0, 2), (RED, [2, 4], ["1", "1"])],
    "other content is unknown until it is marked": [
        *MARKED, ("load", RED, 3, 1), (RED, [2, 3, 5], ["1", None, None]), ("mark", 4, "2"), (RED, [2, 3, 5], ["1", None, "2"]),
    ],
    "content that cannot be hashed is other content": [
        *MARKED, ("load", RED, 3, None), ("load", RED, 4, None), (RED, [5], [None]),
    ],
    "a mark made when the files were there is about them, and not about what was still in use": [
        *TWICE, ("load", RED, 3, 1, 2), (RED, [1.7, 2.2, 2.7, 3], ["1", None, None, "2"]),
    ],
    "a mark made before the files were changed is about what was there": [*TWICE, ("load", RED, 4, 1, 3), (RED, [4.5], [None])],
    "a mark made when the files of another path were there is about what had the number": [
        *TWICE, ("load", OTHER_PATH, 3, 1, 2), ("used", OTHER_PATH, 0), (OTHER_PATH, [4], [None]),
    ],
    "a mark made before the last load is about what was there before": [
        ("mark", 0.7, "1"), *USED, ("load", RED, 3, 1, 0.5), (RED, [4], [None]),
    ],
    "a number that was given to another path serves nobody else": [
        *MARKED, ("load", STRANGER, 3), ("mark", 4, "2"), (RED, [2, 5], ["1", None]),
        ("load", RED, 6), (RED, [7], [None]), ("mark", 8, "3"), (RED, [9], ["3"]),
    ],
    "a request for a path that was not loaded is unknown: vLLM goes by the number alone": [
        *MARKED, ("used", OTHER_PATH, 2), ("mark", 3, "2"), (OTHER_PATH, [4], [None]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_versions_of_an_adapter(situation: str) -> None:
    adapters = Adapters()
    for what, *given in SITUATIONS[situation]:
        if isinstance(what, str):
            getattr(adapters, what)(*given)
        else:
            times, expected = given
            assert adapters.versions(what, times) == expected, times


@pytest.mark.parametrize(
    ("happened", "times", "expected"),
    [
        ([*USED, ("used", SAME_FILES, 2)], [1.5, 2.5], [None, math.inf]),  # what is left of a replaced one takes no late mark
        ([*TWICE, ("load", RED, 3, 1, 2)], [1.7, 2.2, 2.7, 3], [None, math.inf, 2]),
        ([*TWICE, ("load", RED, 4, 1, 3)], [4.5], [3]),  # a mark since then that comes late may still decide
    ],
)  # fmt: skip
def test_since_when_a_late_mark_may_decide(happened: Any, times: list[float], expected: list[float | None]) -> None:
    adapters = Adapters()
    for what, *given in happened:
        getattr(adapters, what)(*given)
    assert [run.at for run in adapters.runs(RED, array("d", times))] == expected


@pytest.mark.parametrize(
    ("happened", "load", "expected"),
    [
        (TWICE, (3, 1, 2), ["1", "1", None, "2"]),
        (MARKED, (3, 1), ["1", "1", "1", None]),
    ],
)
def test_a_load_that_is_heard_of_later_counts_for_what_was_written_before(
    happened: list[Happened], load: Any, expected: list[str | None]
) -> None:
    adapters, times = Adapters(), [1.7, 1.9, 2.7, 3.0]
    for what, *given in happened:
        getattr(adapters, what)(*given)
    before = adapters.runs(RED, array("d", times))
    adapters.load(RED, *load)
    spans = adapters.named(times, before)
    assert [version for start, end, version in spans for _ in range(start, end)] == expected
