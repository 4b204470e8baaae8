"""The recorder's path of tensors on a real device: what is recorded, and that nobody there waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from moving import moved
from spool_contents import by_sample
from test_device_tensors import PER_TOKEN, SHAPES, assert_same_records, broken_call, recorded
from training_calls import call

from logprobe.collectors import Recorder

WAIT_SECONDS = 0.2  # the device is busy for a second; who waited for it takes longer than this


def on(device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call with what has a value per token on the device."""
    return {name: moved(value, device) if name in PER_TOKEN else value for name, value in arguments.items()}


def tensors(step: int, sequences: int = 40) -> dict[str, Any]:
    arguments = call(step, sequences=sequences)
    return {k: torch.from_numpy(v) if k in PER_TOKEN else v for k, v in arguments.items()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("raw_fraction", [0.2, 1.0])
def test_it_is_recorded_and_reduced_as_tensors_of_the_host(
    tmp_path: Path, device: torch.device, shape: str, raw_fraction: float
) -> None:
    def calls() -> list[dict[str, Any]]:
        return [SHAPES[shape](broken_call(step)) for step in range(3)]

    here = [on(device, arguments) for arguments in calls()]
    raw, reduced, health = recorded(tmp_path / "device", here, raw_fraction=raw_fraction)
    expected_raw, expected, expected_health = recorded(tmp_path / "host", calls(), raw_fraction=raw_fraction)
    assert_same_records(raw, expected_raw)
    assert_same_records(reduced, expected)
    assert (health["dropped"], health["reduced"]) == ({}, expected_health["reduced"])


@pytest.mark.parametrize("raw_fraction", [1.0, 0.1])
def test_the_host_never_waits_for_the_device(
    tmp_path: Path, device: torch.device, busy: Callable[[], Any], raw_fraction: float
) -> None:
    calls = [on(device, tensors(step, sequences=400)) for step in range(12)]
    with Recorder(tmp_path, "run", raw_fraction=raw_fraction) as recorder:
        for arguments in calls[:6]:  # memory that is taken once
            assert recorder.training(**arguments)
        assert recorder.flush()
        end = busy()
        began = time.monotonic()
        for arguments in calls[6:]:
            assert recorder.training(**arguments)
        waited = time.monotonic() - began
        still_busy = not end.query()
        assert recorder.flush()
    assert still_busy
    assert waited < WAIT_SECONDS
    expected, _, _ = recorded(tmp_path / "host", [tensors(s, sequences=400) for s in range(12)], raw_fraction=1.0)
    found = by_sample(tmp_path, "training")
    assert_same_records(found, {name: expected[name] for name in found})
    assert len(found) + len(by_sample(tmp_path, "statistics")) == len(expected)


@pytest.mark.parametrize("raw_fraction", [1.0, 0.1])
def test_what_is_changed_right_after_the_call_is_recorded_as_it_was(
    tmp_path: Path, device: torch.device, busy: Callable[[], Any], raw_fraction: float
) -> None:
    with Recorder(tmp_path / "device", "run", raw_fraction=raw_fraction) as recorder:
        for step in range(20):
            arguments = on(device, tensors(step))
            if step % 5 == 0:
                busy()
            assert recorder.training(**arguments)
            for name in PER_TOKEN:
                arguments[name].zero_()
            del arguments  # and its memory is used for something else
            _ = [torch.full((4096,), 7.0, device=device) for _ in range(50)]
        assert recorder.flush()
    raw, reduced = by_sample(tmp_path / "device", "training"), by_sample(tmp_path / "device", "statistics")
    every, _, _ = recorded(tmp_path / "every", [tensors(step) for step in range(20)], raw_fraction=1.0)
    assert_same_records(raw, {name: every[name] for name in raw})
    _, sums, _ = recorded(tmp_path / "sums", [tensors(step) for step in range(20)], raw_fraction=0, worst_sequences=0)
    assert len(raw) + len(reduced) == len(every)
    assert_same_records(reduced, {name: sums[name] for name in reduced})


def test_a_stream_of_the_callers_own(tmp_path: Path, device: torch.device) -> None:
    with Recorder(tmp_path / "device", "run", raw_fraction=1.0) as recorder:
        stream = torch.cuda.Stream()
        for step in range(5):
            host = tensors(step)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                assert recorder.training(**on(device, host))
        assert recorder.flush()
    expected, _, _ = recorded(tmp_path / "host", [tensors(step) for step in range(5)], raw_fraction=1.0)
    assert_same_records(by_sample(tmp_path / "device", "training"), expected)


def test_a_call_inside_a_graph_capture_is_refused_and_the_capture_holds(tmp_path: Path, device: torch.device) -> None:
    inside = on(device, tensors(1))
    values = torch.ones(8, device=device)
    graph = torch.cuda.CUDAGraph()
    with Recorder(tmp_path, "run", raw_fraction=1.0) as recorder:
        with torch.cuda.graph(graph):
            assert not recorder.training(**inside)
            values.mul_(2)
        graph.replay()
        assert recorder.training(**on(device, tensors(2)))
        assert recorder.flush()
    assert values.tolist() == [2.0] * 8
    assert recorder.health["dropped"]["bad_input"]["calls"] == 1
    assert "CUDA graph" in recorder.health["last_error"]
    assert len(by_sample(tmp_path, "training")) == 40


@pytest.mark.parametrize("raw_fraction", [1.0, 0.1])
def test_a_capture_in_the_hosts_thread_is_not_spoiled(
    tmp_path: Path, device: torch.device, raw_fraction: float
) -> None:
    """CUDA's default way of capturing forbids other threads a wait for an event, and spoils the capture where one does."""
    values = torch.ones(8, device=device)
    with Recorder(tmp_path, "run", raw_fraction=raw_fraction, flush_interval=0.01) as recorder:
        for step in range(60):
            for part in range(4):
                assert recorder.training(**on(device, tensors(10 * step + part, sequences=200)))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(200):
                    values.add_(1)
                time.sleep(0.005)
            graph.replay()
        assert recorder.flush()
    assert values.tolist() == [1.0 + 60 * 200] * 8
    assert recorder.health["dropped"] == {}
    assert "thread_error" not in recorder.health["problems"]


def test_memory_is_given_back(tmp_path: Path, device: torch.device) -> None:
    def record(folder: Path) -> None:
        with Recorder(folder, "run", raw_fraction=0.1) as recorder:
            for step in range(10):
                assert recorder.training(**on(device, tensors(step, sequences=400)))
            assert recorder.flush()

    record(tmp_path / "first")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    record(tmp_path / "second")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_full_device_costs_the_host_nothing(tmp_path: Path, device: torch.device) -> None:
    calls = [on(device, tensors(step, sequences=2000)) for step in range(4)]
    with Recorder(tmp_path / "run", "run", raw_fraction=0.1) as recorder:
        assert recorder.training(**calls[0])
        assert recorder.flush()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction((total - free) / total)  # of which some is no tensor of ours
        filled = []
        try:
            size = 1 << 30
            while size >= 512:
                try:
                    filled.append(torch.empty(size, dtype=torch.uint8, device=device))
                except torch.OutOfMemoryError:
                    size //= 2
            for arguments in calls[1:3]:
                assert recorder.training(**arguments)
            assert recorder.flush()
        finally:
            filled.clear()
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.cuda.empty_cache()
        assert recorder.training(**calls[3])
        assert recorder.flush()
    assert recorder.health["dropped"] == {}
    expected, _, _ = recorded(tmp_path / "host", [tensors(step, sequences=2000) for step in range(4)], raw_fraction=1.0)
    raw, reduced = by_sample(tmp_path / "run", "training"), by_sample(tmp_path / "run", "statistics")
    assert len(raw) + len(reduced) == 8000
    assert_same_records(raw, {name: expected[name] for name in raw})
