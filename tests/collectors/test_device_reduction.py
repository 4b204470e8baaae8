"""Edge reduction by torch, where the tensors lie: the same sequences stay raw, and the statistics are those of numpy.

What is special about an accelerator, its streams, events and clones, is tested on a stand-in; everything behind it also on tensors of
the host, which is what `reduce_on="device"` is for.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerator import Accelerator
from spool_contents import by_sample, health_events
from training_calls import call

from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel import torch_arithmetic as kernel_torch
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.collectors.recorder import torch_bridge
from logprobe.collectors.recorder.buffers import Block

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
    """Everything but the pairs; tokens to the last bit."""
    assert found.keys() == expected.keys()
    for name, row in found.items():
        for key in row.keys() - {"time", *PAIRS}:
            value, reference = row[key], expected[name][key]
            if key in ("advantage_abs_sum", "entropy_sum") and value is not None:
                assert value == pytest.approx(reference, rel=1e-12), (name, key)
            else:
                assert repr(value) == repr(reference), (name, key)  # NaN included


def assert_same_statistics(found: Records, expected: Records) -> None:
    for name, row in found.items():
        for pair in PAIRS:
            assert (row[pair] is None) == (expected[name][pair] is None)
            for column in COLUMN_SPECS if row[pair] is not None else ():
                value, reference = row[pair][column.name], expected[name][pair][column.name]
                if column.count or column.reduction != "sum":
                    assert value == reference, (name, pair, column.name)
                else:  # Σ d may cancel; what rounding leaves is relative to its terms
                    scale = max(expected[name][pair]["sum_exp_abs_d"], expected[name][pair]["sum_abs_d"])
                    assert value == pytest.approx(reference, rel=1e-12, abs=1e-15 * scale), (name, pair, column.name)


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_reduces_to_what_numpy_reduces_to(tmp_path: Path, shape: str) -> None:
    def calls() -> list[dict[str, Any]]:
        return [SHAPES[shape](broken_call(step)) for step in range(3)]

    raw, reduced, health = recorded(tmp_path / "device", calls(), reduce_on="device")
    expected_raw, expected_reduced, expected_health = recorded(tmp_path / "host", calls(), reduce_on="host")
    assert len(raw) > 10
    assert len(reduced) > 60
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected_reduced)
    assert_same_statistics(reduced, expected_reduced)
    assert health["dropped"] == {}
    assert health["problems"] == expected_health["problems"]
    assert health["reduced"] == expected_health["reduced"]


def test_sequences_of_many_pieces_and_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.collectors.kernel.arithmetic.CHUNK", 16)
    monkeypatch.setattr("logprobe.collectors.kernel.torch_arithmetic.CHUNK", 50)
    _, reduced, _ = recorded(tmp_path / "device", [broken_call(1)], reduce_on="device", raw_fraction=0)
    _, expected, _ = recorded(tmp_path / "host", [broken_call(1)], reduce_on="host", raw_fraction=0)
    assert_same_records(reduced, expected)
    assert_same_statistics(reduced, expected)


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("out of memory\nand a long explanation")


def test_a_device_that_cannot_costs_nothing_and_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_raw, expected, _ = recorded(tmp_path / "host", [broken_call(s) for s in range(3)], reduce_on="host")
    monkeypatch.setattr(kernel_torch, "Workspace", refuse)
    with Recorder(tmp_path / "device", "run", raw_fraction=0.2, worst_sequences=2, reduce_on="device") as recorder:
        for step in range(3):
            assert recorder.training(**broken_call(step))
            assert recorder.flush() is True
    assert_same_records(by_sample(tmp_path / "device", "training"), expected_raw)
    assert_same_records(by_sample(tmp_path / "device", "statistics"), expected)
    assert recorder.health["dropped"] == {}
    (event,) = health_events(tmp_path / "device")["device_reduction_failed"]
    assert event["message"] == (
        "statistics cannot be computed on cpu (RuntimeError: out of memory); from now on numpy computes them on the host"
    )
    assert (event["severity"], event["count"], event["step"]) == ("warning", 1, 0)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({"reduce_on": "auto"}, broken_call(1)),
        ({"reduce_on": "host"}, broken_call(1)),
        ({"reduce_on": "device"}, call(1)),
        ({"reduce_on": "device", "raw_fraction": 1}, broken_call(1)),
        ({"reduce_on": "device"}, broken_call(1, rollout_logprobs=None)),
    ],
    ids=["auto, on the host", "host", "no tensors", "no reduction", "nothing to compare"],
)
def test_where_torch_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(kernel_torch, "Workspace", refuse)
    raw, reduced, health = recorded(home, [arguments], **settings)
    assert len(raw) + len(reduced) == 40
    assert "device_reduction_failed" not in health["problems"]


def test_wrong_contents_are_refused_as_on_the_host(home: Path) -> None:
    too_large = broken_call(1)
    too_large["token_ids"] = too_large["token_ids"] + 2**31
    with Recorder(home, "run", raw_fraction=0, reduce_on="device") as recorder:
        assert recorder.training(**too_large)
        assert recorder.flush() is False
        assert recorder.training(**broken_call(2))
    assert recorder.health["dropped"]["bad_input"]["sequences"] == 40
    assert recorder.health["last_error"] == "Recorder.training: token_ids: a value does not fit into 32 bits"
    assert len(by_sample(home, "statistics")) == 36


def test_a_wrong_place_raises_at_once(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"reduce_on='gpu': must be one of auto, device, host"):
        Recorder(home, "run", reduce_on="gpu")


def test_numpy_alone_never_loads_torch(home: Path) -> None:
    code = f"""
import sys
import threading
import numpy as np
from logprobe.collectors import Recorder
with Recorder({str(home)!r}, "run", raw_fraction=0, reduce_on="device") as recorder:
    logprobs = [np.full(5, -1.0), np.full(3, -2.0)]
    ids = [np.arange(5), np.arange(3)]
    assert recorder.training(step=1, sample_ids=["a", "b"], token_ids=ids, trainer_logprobs=logprobs, rollout_logprobs=logprobs)
    assert recorder.flush()
assert not {{"torch", "array_api_compat.torch"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- Beside the trainer's stream ---


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """In place of the GPU that is not there."""
    stand_in = Accelerator()
    monkeypatch.setattr("logprobe.collectors.recorder.torch_bridge._backend", lambda _: stand_in)
    monkeypatch.setattr("logprobe.collectors.recorder.capture.pinned_block", pageable_block)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    return stand_in


def pageable_block(size: int) -> Block:
    memory = torch.empty(size, dtype=torch.uint8)
    return Block(memory.numpy(), memory, memory.numpy().data)


@pytest.mark.parametrize(
    "shape", ["packed", "padded", "list", "bfloat16", "advantage per sequence", "numpy beside torch"]
)
def test_on_an_accelerator_only_statistics_and_chosen_sequences_travel(
    tmp_path: Path, accelerator: Accelerator, shape: str
) -> None:
    def moved(value: Any) -> Any:
        if isinstance(value, list) and isinstance(value[0], torch.Tensor):
            return [accelerator.on(item) for item in value]
        return accelerator.on(value) if isinstance(value, torch.Tensor) else value

    arguments = SHAPES[shape](broken_call(1))
    large = set(PER_TOKEN) - ({"advantages"} if shape == "advantage per sequence" else set())
    on_device = {name: moved(value) if name in large else value for name, value in arguments.items()}
    raw, reduced, health = recorded(tmp_path / "device", [on_device], worst_sequences=1)
    expected_raw, expected, _ = recorded(tmp_path / "host", [arguments], worst_sequences=1, reduce_on="host")
    assert "device_reduction_failed" not in health["problems"], health["last_error"]
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected)
    assert_same_statistics(reduced, expected)
    here = accelerator.operations[threading.current_thread().name]
    assert here <= {"detach", "clone", "cat"}, "all that the trainer's stream does"
    assert "segment_reduce" in accelerator.operations["logprobe"]
    raw_tokens = sum(len(row["token_ids"]) for row in raw.values())
    of_statistics = 40 * 8 * (3 * len(COLUMN_SPECS) + 12)
    assert accelerator.bytes_to_host <= of_statistics + 40 * raw_tokens
    assert set(accelerator.recorded) != {accelerator.host_stream}


def test_an_accelerator_without_memory_hands_over_to_numpy(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_torch, "Workspace", refuse)
    arguments = broken_call(1)
    on_device = {
        k: accelerator.on(v) if isinstance(v, torch.Tensor) and k in PER_TOKEN else v for k, v in arguments.items()
    }
    raw, reduced, health = recorded(tmp_path / "device", [on_device])
    expected_raw, expected, _ = recorded(tmp_path / "host", [arguments], reduce_on="host")
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected)
    assert health["problems"]["device_reduction_failed"] == 1
    assert health["dropped"] == {}


@pytest.mark.parametrize("raw_fraction", [0.2, 1.0])
def test_where_not_even_a_clone_fits_the_hosts_own_stream_copies(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, raw_fraction: float
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch_bridge, "_clone", full)
    monkeypatch.setattr(torch_bridge, "_joined_clone", full)
    arguments = broken_call(1)
    on_device = {
        k: accelerator.on(v) if isinstance(v, torch.Tensor) and k in PER_TOKEN else v for k, v in arguments.items()
    }
    raw, reduced, health = recorded(tmp_path / "device", [on_device], raw_fraction=raw_fraction)
    expected_raw, expected, _ = recorded(tmp_path / "host", [arguments], raw_fraction=raw_fraction, reduce_on="host")
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
