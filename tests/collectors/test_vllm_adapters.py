"""Versions of LoRA adapters: what was marked since they were loaded, as the monitor has them."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np

from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.versions import Run
from logprobe.collectors.vllm import adapters as engine
from logprobe.collectors.vllm.adapters import Load
from logprobe.collectors.vllm.emitter import decisions
from logprobe.monitor.live.versions import Decided, Decision, Mark, Marks, Seen, Spans, resolved


def request(name: str = "red", number: int = 1, path: str = "/a") -> SimpleNamespace:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


class Adapters(engine.Adapters):
    """An engine's adapters, with the marks that the monitor knows."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks()

    def mark(self, at: float, version: str, name: str = "red") -> None:
        self.marks.add(Mark(micros(at), None, "here", None, name, version))

    def changed(self, load: Load, name: str) -> None:
        at = micros(load.moment)
        about = {"machine": "here", "clock_offset": 0, "clock_set": None, "engine_started": 0, "replica": None}
        span = {"began": at, "ended": at, "decided": None, "moment": at, "since": micros(load.since), "until": at}
        seen = Seen(reading=True, version=None, touched=False, adapter=name, **about, **span)
        self.marks.add(Mark(at, at, "here", None, name, None, of=seen))

    def named(self, times: list[float], runs: list[Run]) -> Spans:
        said = tuple(Decision(*each) for each in decisions(runs, array("d", times)))
        record = Decided(((0, len(times), None),), said, len(times), "here", 0, None, 0, None, "red")
        marks = self.marks.about(record)
        return resolved(record, marks, np.array([micros(time) for time in times])) if marks else record.spans


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


def versions(adapters: Adapters, which: SimpleNamespace, *times: float) -> list[tuple[int, int, str | None]]:
    return list(adapters.named(list(times), adapters.runs(which, array("d", times))))


def loaded(
    adapters: Adapters, which: SimpleNamespace, at: float, content: int | None = 0, written: float | None = None
) -> bool:
    """A worker read an adapter; `content`: None where it could not be hashed."""
    hashed = None if content is None else Fingerprint(("w",), np.array([content], np.uint32))
    load = adapters.read(which.lora_int_id, Load(at, which.lora_path, hashed), written)
    if load is not None:
        adapters.changed(load, which.lora_name)
    return load is not None


def test_requests_of_an_adapter_that_was_replaced_under_them_are_unknown_from_there() -> None:
    adapters = Adapters()
    old, new = request(), request(number=2, path="/b")
    loaded(adapters, old, 1.0)
    loaded(adapters, new, 3.0)
    adapters.used(old, 1.0)
    adapters.mark(1.5, "1")
    adapters.used(new, 3.0)  # while the old one is in flight
    assert versions(adapters, old, 2.0, 4.0) == [(0, 1, "1"), (1, 2, None)]
    assert versions(adapters, new, 4.0) == [(0, 1, None)]
    adapters.mark(5.0, "2")
    assert versions(adapters, old, 2.0, 6.0) == [(0, 1, "1"), (1, 2, None)], "the mark is about the new one"
    assert versions(adapters, new, 4.0, 6.0) == [(0, 1, None), (1, 2, "2")]


def test_a_mark_between_the_old_and_the_new_one_is_about_the_new_one() -> None:
    adapters = Adapters()
    loaded(adapters, request(number=2, path="/b"), 4.0)
    adapters.used(request(), 1.0)
    adapters.ended(request(), 2.0)
    adapters.mark(3.0, "2")
    adapters.used(request(number=2, path="/b"), 4.0)
    assert versions(adapters, request(number=2, path="/b"), 5.0) == [(0, 1, "2")]


def test_a_mark_before_another_one_is_loaded_under_the_name_is_about_the_old_one() -> None:
    adapters = Adapters()
    new = request(number=2, path="/b")
    loaded(adapters, new, 3.5)
    adapters.used(request(), 1.0)
    adapters.ended(request(), 2.0)
    adapters.mark(3.0, "2")
    adapters.added(new, 3.5)
    adapters.used(new, 4.0)
    assert versions(adapters, new, 5.0) == [(0, 1, None)]


def test_weights_that_changed_before_an_adapter_was_heard_of_count_for_it() -> None:
    adapters = Adapters()
    loaded(adapters, request(), 0.5)
    adapters.weights_changed(2.0)
    adapters.mark(1.0, "1")  # a mark that was read late
    adapters.used(request(), 0.5)
    assert versions(adapters, request(), 1.5, 2.5) == [(0, 1, "1"), (1, 2, None)]


def test_what_is_left_of_a_replaced_adapter_takes_no_late_mark() -> None:
    adapters = Adapters()
    loaded(adapters, request(), 1.0)
    adapters.used(request(), 1.0)
    adapters.used(request(number=2), 2.0)
    runs = adapters.runs(request(), array("d", [1.5, 2.5]))
    assert [(run.end, run.at) for run in runs] == [(1, None), (2, float("inf"))]


def test_a_request_that_is_written_after_its_adapter_was_replaced_keeps_its_version() -> None:
    adapters = Adapters()
    loaded(adapters, request(), 1.0)
    adapters.mark(0.5, "1")
    adapters.used(request(), 1.0)
    adapters.ended(request(), 2.0)  # its last step
    adapters.used(request(number=2, path="/b"), 3.0)
    assert versions(adapters, request(), 1.5, 2.0) == [(0, 2, "1")]


# --- What a worker read ---


def marked(*marks: tuple[float, str]) -> Adapters:
    """The adapter is used, and loaded at 1."""
    adapters = Adapters()
    loaded(adapters, request(), 1.0)
    adapters.used(request(), 1.0)
    for moment, version in marks:
        adapters.mark(moment, version)
    return adapters


def test_without_a_load_that_was_seen_nothing_is_known() -> None:
    adapters = Adapters()
    adapters.mark(0.5, "1")
    adapters.used(request(), 1.0)
    assert versions(adapters, request(), 2.0) == [(0, 1, None)]
    loaded(adapters, request(), 3.0)
    assert versions(adapters, request(), 2.0, 3.0) == [(0, 1, None), (1, 2, "1")]


def test_the_same_content_read_again_changes_nothing() -> None:
    adapters = marked((1.5, "1"))
    assert not loaded(adapters, request(), 3.0, written=2.0)
    assert versions(adapters, request(), 2.0, 4.0) == [(0, 2, "1")]


def test_other_content_is_unknown_until_it_is_marked() -> None:
    adapters = marked((1.5, "1"))
    assert loaded(adapters, request(), 3.0, content=1)
    assert versions(adapters, request(), 2.0, 3.0, 5.0) == [(0, 1, "1"), (1, 3, None)]
    adapters.mark(4.0, "2")
    assert versions(adapters, request(), 2.0, 3.0, 5.0) == [(0, 1, "1"), (1, 2, None), (2, 3, "2")]


def test_content_that_cannot_be_hashed_is_other_content() -> None:
    adapters = marked((1.5, "1"))
    assert loaded(adapters, request(), 3.0, content=None)
    assert loaded(adapters, request(), 4.0, content=None)
    assert versions(adapters, request(), 5.0) == [(0, 1, None)]


def test_a_mark_made_when_the_files_were_there_is_about_them() -> None:
    adapters = marked((1.5, "1"), (2.5, "2"))
    loaded(adapters, request(), 3.0, content=1, written=2.0)
    # Between 2 and 3 the old content was still in use, and marks are about the new one.
    assert versions(adapters, request(), 1.7, 2.2, 2.7, 3.0) == [(0, 1, "1"), (1, 3, None), (3, 4, "2")]
    runs = adapters.runs(request(), array("d", [1.7, 2.2, 2.7, 3.0]))
    assert [run.at for run in runs] == [None, float("inf"), 2.0]


def test_so_it_is_for_what_was_written_before_the_load_was_heard_of() -> None:
    adapters = marked((1.5, "1"), (2.5, "2"))
    times = [1.7, 2.2, 2.7, 3.0]
    before = adapters.runs(request(), array("d", times))
    assert adapters.named(times, before) == ((0, 2, "1"), (2, 4, "2"))
    loaded(adapters, request(), 3.0, content=1, written=2.0)
    assert adapters.named(times, before) == ((0, 2, "1"), (2, 3, None), (3, 4, "2"))


def test_other_content_leaves_unknown_what_was_written_before() -> None:
    adapters = marked((1.5, "1"))
    before = adapters.runs(request(), array("d", [2.0, 3.0]))
    loaded(adapters, request(), 3.0, content=1)
    assert adapters.named([2.0, 3.0], before) == ((0, 1, "1"), (1, 2, None))


def test_a_mark_made_before_the_files_were_changed_is_about_what_was_there() -> None:
    adapters = marked((1.5, "1"), (2.5, "2"))
    loaded(adapters, request(), 4.0, content=1, written=3.0)
    assert versions(adapters, request(), 4.5) == [(0, 1, None)]
    [run] = adapters.runs(request(), array("d", [4.5]))
    assert run.at == 3.0, "a mark since then that comes late may still decide"


def test_a_number_that_was_given_to_another_path_serves_nobody_else() -> None:
    adapters = marked((1.5, "1"))
    loaded(adapters, request("stranger", path="/c"), 3.0)
    adapters.mark(4.0, "2")
    assert versions(adapters, request(), 2.0, 5.0) == [(0, 1, "1"), (1, 2, None)]
    loaded(adapters, request(), 6.0)
    assert versions(adapters, request(), 7.0) == [(0, 1, None)], "a mark of the time of the other one"
    adapters.mark(8.0, "3")
    assert versions(adapters, request(), 9.0) == [(0, 1, "3")]


def test_a_request_for_a_path_that_was_not_loaded_is_unknown() -> None:
    """vLLM goes by the number alone."""
    adapters = marked((1.5, "1"))
    asked = request(path="/b")
    adapters.used(asked, 2.0)
    adapters.mark(3.0, "2")
    assert versions(adapters, asked, 4.0) == [(0, 1, None)]
