"""Versions of LoRA adapters: what was marked since they were loaded."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

from logprobe.collectors.vllm.adapters import Adapters


def request(name: str = "red", number: int = 1, path: str = "/a") -> SimpleNamespace:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


def versions(adapters: Adapters, which: SimpleNamespace, *times: float) -> list[tuple[int, int, str | None]]:
    return adapters.spans(which, array("d", times))[0]


def test_requests_of_an_adapter_that_was_replaced_under_them_are_unknown_from_there() -> None:
    adapters = Adapters()
    old, new = request(), request(number=2, path="/b")
    adapters.used(old, 1.0)
    adapters.timeline("red").set(1.5, "1")
    adapters.used(new, 3.0)  # while the old one is in flight
    assert versions(adapters, old, 2.0, 4.0) == [(0, 1, "1"), (1, 2, None)]
    assert versions(adapters, new, 4.0) == [(0, 1, None)]
    adapters.timeline("red").set(5.0, "2")
    assert versions(adapters, old, 2.0, 6.0) == [(0, 1, "1"), (1, 2, None)], "the mark is about the new one"
    assert versions(adapters, new, 4.0, 6.0) == [(0, 1, None), (1, 2, "2")]


def test_a_mark_between_the_old_and_the_new_one_is_about_the_new_one() -> None:
    adapters = Adapters()
    adapters.used(request(), 1.0)
    adapters.ended(request(), 2.0)
    adapters.timeline("red").set(3.0, "2")
    adapters.used(request(number=2, path="/b"), 4.0)
    assert versions(adapters, request(number=2, path="/b"), 5.0) == [(0, 1, "2")]


def test_weights_that_changed_before_an_adapter_was_heard_of_count_for_it() -> None:
    adapters = Adapters()
    adapters.weights_changed(2.0)
    adapters.timeline("red").set(1.0, "1")  # a mark that was read late
    adapters.used(request(), 0.5)
    assert versions(adapters, request(), 1.5, 2.5) == [(0, 1, "1"), (1, 2, None)]


def test_what_is_left_of_a_replaced_adapter_takes_no_late_mark() -> None:
    adapters = Adapters()
    adapters.used(request(), 1.0)
    adapters.used(request(number=2), 2.0)
    _, decisions = adapters.spans(request(), array("d", [1.5, 2.5]))
    assert [(decision.end, decision.at) for decision in decisions] == [(1, None), (2, float("inf"))]


def test_a_request_that_is_written_after_its_adapter_was_replaced_keeps_its_version() -> None:
    adapters = Adapters()
    adapters.timeline("red").set(0.5, "1")
    adapters.used(request(), 1.0)
    adapters.ended(request(), 2.0)  # its last step
    adapters.used(request(number=2, path="/b"), 3.0)
    assert versions(adapters, request(), 1.5, 2.0) == [(0, 2, "1")]
