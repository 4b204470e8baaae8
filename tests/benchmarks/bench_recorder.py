"""What recording costs the host, and how much one recorder takes."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figure import Figure

from logprobe.collectors import Recorder

BATCH, TIME = 64, 512
MICRO_BATCHES = 8  # of one step, recorded in a row, as a gradient accumulation does
STEPS = 30
TARGET_MICROSECONDS = 50.0
TARGET_RATIO = 1.5
NAMES = [f"sample {row}" for row in range(BATCH)]


def make_batch(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {
        "token_ids": random.integers(0, 150_000, (BATCH, TIME)),
        "trainer_logprobs": -random.random((BATCH, TIME), np.float32),
        "rollout_logprobs": -random.random((BATCH, TIME), np.float32),
        "mask": np.arange(TIME) < random.integers(1, TIME + 1, (BATCH, 1)),
    }


def durations(calls: dict[str, Callable[[int], object]], settle: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of every call, the kinds taking turns; between turns the host computes, so that no cache stays warm for us.

    `settle` runs after each round: no trainer makes 30 million tokens per second on two cores without a pause.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    work = torch.rand(700, 700)
    for step in range(STEPS):
        for name, call in calls.items():
            work = torch.sin(work @ work)
            for _ in range(MICRO_BATCHES):
                started = time.perf_counter()
                call(step)
                found[name].append(time.perf_counter() - started)
        settle()
    return found


def call_figures(home: Path) -> list[Figure]:
    """p50 of a `training` call, against copying the same arrays.

    `np.copy` whose result is dropped writes into the same memory each time, which stays in a cache. Who keeps the copies writes into
    memory that has left it: what that costs is "kept", a ring of buffers as large as all calls between two flushes.
    """
    torch.set_num_threads(1)  # idle workers of torch spin, on the core the recorder's thread wants
    arrays = make_batch(1)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ring = itertools.cycle([[np.zeros_like(array) for array in arrays.values()] for _ in range(2 * MICRO_BATCHES)])

    def keep(_: int) -> None:
        for target, array in zip(next(ring), arrays.values(), strict=True):
            np.copyto(target, array)

    with Recorder(home, "calls") as recorder:
        calls: dict[str, Callable[[int], object]] = {
            "torch": lambda step: recorder.training(step=step, sample_ids=NAMES, **tensors),
            "numpy": lambda step: recorder.training(step=step, sample_ids=NAMES, **arrays),
            "copy": lambda _: [np.copy(array) for array in arrays.values()],
            "kept": keep,
        }
        found = durations(calls, recorder.flush)
    p50 = {name: statistics.median(values) * 1e6 for name, values in found.items()}
    first = {name: statistics.median(values[::MICRO_BATCHES]) * 1e6 for name, values in found.items()}
    p99 = {name: statistics.quantiles(values, n=100)[98] * 1e6 for name, values in found.items()}
    ratios = {kind: p50[kind] / p50["kept"] for kind in ("torch", "numpy")}
    return [
        *(
            Figure(
                f"Recorder.training over copies that are kept, {kind}",
                ratio,
                "×",
                f"≤ {TARGET_RATIO}",
                ratio <= TARGET_RATIO,
            )
            for kind, ratio in ratios.items()
        ),
        *(call_figure(kind, p50, first, p99) for kind in ratios),
    ]


def call_figure(kind: str, p50: dict[str, float], first: dict[str, float], p99: dict[str, float]) -> Figure:
    return Figure(
        name=f"Recorder.training call, {kind}, {BATCH}×{TIME}, p50",
        value=p50[kind],
        unit="µs",
        target=f"≤ {TARGET_MICROSECONDS:.0f}",
        met=p50[kind] <= TARGET_MICROSECONDS,
        baseline="np.copy of the same arrays",
        baseline_value=p50["copy"],
        note=f"p99 {p99[kind]:.0f}; first of a step, caches cold: {first[kind]:.0f}, its np.copy {first['copy']:.0f}; "
        f"copies that are kept {p50['kept']:.0f}",
    )


def throughput_figure(home: Path) -> Figure:
    """Tokens per second through a recorder until they are durable, against writing the same arrays as they are."""
    batches = [make_batch(seed) for seed in range(4)]
    rounds = 24
    recorded, plain = [], []
    with Recorder(home, "throughput") as recorder:
        for number in range(5):
            started = time.perf_counter()
            for turn in range(rounds):
                recorder.training(step=number, sample_ids=NAMES, **batches[turn % 4])
            if not recorder.flush():
                raise RuntimeError(f"the recorder lost data: {recorder.health}")
            recorded.append(rounds * BATCH * TIME / (time.perf_counter() - started) / 1e6)
            plain.append(rounds * BATCH * TIME / write_plain(home / f"plain {number}", batches, rounds) / 1e6)
    return Figure(
        name="Recorder throughput until durable",
        value=statistics.median(recorded),
        unit="Mtok/s",
        baseline="the same arrays as bytes, written and fsynced every 4 calls",
        baseline_value=statistics.median(plain),
        note="padded tokens; the recorder's thread shares the machine with the benchmark's",
    )


def write_plain(path: Path, batches: list[dict[str, np.ndarray[Any, Any]]], rounds: int) -> float:
    started = time.perf_counter()
    with path.open("wb") as file:
        for turn in range(rounds):
            for array in batches[turn % 4].values():
                file.write(array.data)
            if turn % 4 == 3:
                file.flush()
                os.fsync(file.fileno())
    return time.perf_counter() - started


def measure() -> list[Figure]:
    """All figures of the recorder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        return [*call_figures(home), throughput_figure(home)]
