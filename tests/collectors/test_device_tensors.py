"""Tensors on an accelerator are recorded as if they lay on the host, and its stream never waits: tested on a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerator import Accelerator
from spool_contents import by_sample
from training_calls import call

from logprobe.collectors import Recorder
from logprobe.collectors.recorder import torch_bridge
from logprobe.collectors.recorder.torch_bridge import Block

FLOATS = ("rollout_logprobs", "trainer_logprobs", "current_logprobs", "entropy", "advantages")
PER_TOKEN = (*FLOATS, "token_ids", "mask")
Records = dict[str, dict[str, Any]]


def broken_call(step: int, **changes: Any) -> dict[str, Any]:
    """A packed call of tensors with broken tokens of several kinds."""
    arguments = call(step)
    arguments["rollout_logprobs"][::50] = np.nan
    arguments["rollout_logprobs"][7::90] = -9999.0
    arguments["trainer_logprobs"][3::70] = 1.0
    arguments["trainer_logprobs"][5::60] -= 30.0
    arguments["current_logprobs"] -= np.float32(0.3)
    arguments["entropy"][2::40] = np.inf
    tensors = {name: torch.from_numpy(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
    return {**arguments, **tensors, **changes}


def padded(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call as [batch, time], with holes and padding on both sides."""
    lengths = arguments["cu_seqlens"].diff().tolist()
    cells = torch.arange(max(lengths) + 4)[None, :] - 2
    inside = (cells >= 0) & (cells < torch.tensor(lengths)[:, None])

    def spread(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(inside.shape, dtype=values.dtype).masked_scatter(inside, values)

    return {**arguments, "cu_seqlens": None, **{name: spread(arguments[name]) for name in PER_TOKEN}}


def listed(arguments: dict[str, Any]) -> dict[str, Any]:
    lengths = arguments["cu_seqlens"].diff().tolist()
    return {**arguments, "cu_seqlens": None, **{name: list(arguments[name].split(lengths)) for name in PER_TOKEN}}


def of_type(dtype: torch.dtype) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arguments: {**arguments, **{name: arguments[name].to(dtype) for name in FLOATS}}


def without_mask(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        **arguments,
        "mask": None,
        "current_logprobs": None,
        "entropy": None,
        "token_ids": arguments["token_ids"].int(),
    }


def strided(arguments: dict[str, Any]) -> dict[str, Any]:
    wide = {name: torch.stack([arguments[name], torch.zeros_like(arguments[name])], -1) for name in PER_TOKEN}
    return {**arguments, **{name: pair[:, 0] for name, pair in wide.items()}}


def with_gradients(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, **{name: arguments[name].requires_grad_() * 1 for name in FLOATS}}


def advantage_per_sequence(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "advantages": torch.linspace(-1, 1, 40), "mask": arguments["mask"].float()}


def mixed_with_numpy(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, **{name: arguments[name].numpy() for name in ("token_ids", "mask", "entropy")}}


SHAPES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "packed": lambda arguments: arguments,
    "padded": padded,
    "list": listed,
    "bfloat16": of_type(torch.bfloat16),
    "float16": of_type(torch.float16),
    "float64": of_type(torch.float64),
    "no mask": without_mask,
    "strided": strided,
    "gradients": with_gradients,
    "advantage per sequence": advantage_per_sequence,
    "numpy beside torch": mixed_with_numpy,
}


def recorded(home: Path, calls: list[dict[str, Any]], **settings: Any) -> tuple[Records, Records, dict[str, Any]]:
    """Raw sequences, reduced sequences and the recorder's health."""
    with Recorder(home, "run", **{"raw_fraction": 0.2, "worst_sequences": 2, **settings}) as recorder:
        for arguments in calls:
            assert recorder.training(**arguments)
        assert recorder.flush() is True
    return by_sample(home, "training"), by_sample(home, "statistics"), recorder.health


def assert_same_records(found: Records, expected: Records) -> None:
    """To the last bit, NaN included."""
    assert found.keys() == expected.keys()
    for name, row in found.items():
        for key in row.keys() - {"time"}:
            assert repr(row[key]) == repr(expected[name][key]), (name, key)


def test_wrong_contents_are_refused_as_on_the_host(home: Path) -> None:
    too_large = broken_call(1)
    too_large["token_ids"] = too_large["token_ids"] + 2**31
    with Recorder(home, "run", raw_fraction=0) as recorder:
        assert recorder.training(**too_large)
        assert recorder.flush() is False
        assert recorder.training(**broken_call(2))
    assert recorder.health["dropped"]["bad_input"]["sequences"] == 40
    assert (
        recorder.health["last_error"]
        == "Recorder.training: token_ids: a value does not fit into 32 bits; pass int32 ids"
    )
    assert len(by_sample(home, "statistics")) == 36


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """In place of the GPU that is not there."""
    stand_in = Accelerator()
    monkeypatch.setattr("logprobe.collectors.recorder.torch_bridge._backend", lambda _: stand_in)
    monkeypatch.setattr("logprobe.collectors.recorder.torch_bridge.pinned_block", pageable_block)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    return stand_in


def pageable_block(size: int) -> Block:
    memory = torch.empty(size, dtype=torch.uint8)
    return Block(memory.numpy(), memory)


def moved(accelerator: Accelerator, value: Any) -> Any:
    if isinstance(value, list) and isinstance(value[0], torch.Tensor):
        return [accelerator.on(item) for item in value]
    return accelerator.on(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    ("shape", "raw_fraction"), [*((shape, 0.2) for shape in SHAPES), ("padded", 1.0), ("list", 1.0)]
)
def test_they_are_recorded_as_from_the_host_and_its_stream_only_clones(
    tmp_path: Path, accelerator: Accelerator, shape: str, raw_fraction: float
) -> None:
    arguments = SHAPES[shape](broken_call(1))
    large = set(PER_TOKEN) - ({"advantages"} if shape == "advantage per sequence" else set())
    on_device = {name: moved(accelerator, value) if name in large else value for name, value in arguments.items()}
    raw, reduced, health = recorded(tmp_path / "device", [on_device], raw_fraction=raw_fraction)
    expected_raw, expected, expected_health = recorded(tmp_path / "host", [arguments], raw_fraction=raw_fraction)
    assert len(raw) + len(reduced) == 40
    assert bool(reduced) == (raw_fraction < 1)
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected)
    assert health["dropped"] == {}
    assert (health["problems"], health["reduced"]) == (expected_health["problems"], expected_health["reduced"])
    of_block = {"slice", "view"}  # of the host's memory that is copied to
    assert accelerator.operations[threading.current_thread().name] <= {"detach", "clone", "copy_", *of_block}
    assert "logprobe" not in accelerator.operations, "the recorder's thread reads the copies only"
    assert accelerator.recorded
    assert accelerator.host_stream not in accelerator.recorded


@pytest.mark.parametrize("raw_fraction", [0.2, 1.0])
def test_where_not_even_a_clone_fits_the_hosts_own_stream_copies(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, raw_fraction: float
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch_bridge, "_clone", full)
    arguments = broken_call(1)
    on_device = {
        k: accelerator.on(v) if isinstance(v, torch.Tensor) and k in PER_TOKEN else v for k, v in arguments.items()
    }
    raw, reduced, health = recorded(tmp_path / "device", [on_device], raw_fraction=raw_fraction)
    expected_raw, expected, _ = recorded(tmp_path / "host", [arguments], raw_fraction=raw_fraction)
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected)
    assert health["dropped"] == {}
    assert not accelerator.recorded, "no stream but the host's own"


def test_what_a_failing_device_costs_is_counted(
    home: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch_bridge, "_clone", fail)
    arguments = broken_call(1)
    tokens = accelerator.on(arguments["token_ids"])
    with Recorder(home, "run", raw_fraction=1.0) as recorder:
        assert not recorder.training(**{**arguments, "token_ids": tokens})
    assert recorder.health["dropped"]["internal_error"] == {
        "calls": 1,
        "sequences": 40,
        "tokens": len(arguments["token_ids"]),
    }
    assert "illegal memory access" in recorder.health["last_error"]
