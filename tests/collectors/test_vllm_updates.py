"""Weight updates put together from the calls an engine process sees."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from logprobe.collectors.vllm.weights.loads import may_change_weights
from logprobe.collectors.vllm.weights.updates import UpdateObserver, count_tensors, method_name


def test_an_update_while_paused() -> None:
    observer = UpdateObserver()
    observer.step(1.0)
    observer.paused(2.0, "wait")
    observer.step(2.5)  # requests in flight drain
    observer.loaded("update_weights", 3.0, 4.0, 10)
    observer.loaded("update_weights", 4.0, 5.0, 20)
    observer.cache_reset(successful=True)
    observer.labelled(5.5)
    observer.resumed(6.0)
    observer.step(7.0)
    [update] = observer.closed
    assert (update.after, update.requested_at, update.started_at, update.applied_at) == (1.0, 2.0, 3.0, 5.0)
    assert (update.resumed_at, update.closed_at, update.pause_mode) == (6.0, 7.0, "wait")
    assert (update.cache_reset, update.tensors, update.touched_weights) == (True, 30, True)
    assert update.calls == {"update_weights": 2}


def test_a_failed_reset_cleared_nothing() -> None:
    observer = UpdateObserver()
    observer.cache_reset(successful=False)
    assert observer.open is not None
    assert observer.open.cache_reset is False
    observer.cache_reset(successful=True)
    assert observer.open.cache_reset is True
    assert not observer.open.touched_weights


def test_an_engine_ends_once_and_resuming_what_was_not_paused_is_no_update() -> None:
    observer = UpdateObserver()
    observer.resumed(1.0)
    assert observer.open is None
    observer.loaded("reload_weights", 2.0, 3.0, None)
    observer.end(9.0)
    observer.end(10.0)
    assert [update.closed_at for update in observer.closed] == [9.0]


@pytest.mark.parametrize(
    "method",
    [
        "reload_weights", "update_weights", "load_model", "receive_weights", "broadcast_from_trainer", "load_state_dict", "pull_weights",
        "load_from_trainer", "apply_model", "get_rid_of_the_weights", "", None, lambda worker: None, functools.partial(print, 1),
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_harmless_may_change_weights(method: object) -> None:
    assert may_change_weights(method)


@pytest.mark.parametrize("method", ["execute_model", "compute_weight_checksums", "add_lora", "wake_up", "profile"])
def test_calls_of_vllm_that_leave_weights_alone(method: str) -> None:
    assert not may_change_weights(method)


@pytest.mark.parametrize(("kwargs", "expected"), [(None, False), ({"level": 1}, False), ({"level": 2}, True)])
def test_deep_sleep_forgets_the_weights(kwargs: dict[str, object] | None, expected: bool) -> None:
    assert may_change_weights("sleep", kwargs) is expected


def test_functions_are_named_in_records() -> None:
    assert method_name(print) == "print"
    assert method_name(SimpleNamespace()) == "SimpleNamespace"


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        (None, None),
        ({}, None),
        ({"update_info": {"names": ["a", "b"]}}, 2),
        ({"update_info": SimpleNamespace(names=("a",))}, 1),
        ({"update_info": {"names": 3}}, None),
    ],
)
def test_count_tensors(kwargs: dict[str, object] | None, expected: int | None) -> None:
    assert count_tensors(kwargs) == expected
