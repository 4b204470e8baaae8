"""Arguments of `Recorder.training` for tests of what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from logprobe.collectors import Recorder


def call(step: int, sequences: int = 40, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A packed call with lengths from 0 on, masks, and everything a trainer may say of a sequence."""
    rng = np.random.default_rng([seed, step])
    lengths = rng.integers(0, 60, sequences)
    size = int(lengths.sum())
    rollout = -rng.exponential(1.0, size).astype(np.float32)
    arguments = {
        "step": step,
        "sample_ids": [f"{step}/{row}" for row in range(sequences)],
        "token_ids": rng.integers(0, 1000, size),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + 0.03 * rng.standard_normal(size), 0).astype(np.float32),
        "current_logprobs": np.minimum(rollout + 0.05 * rng.standard_normal(size), 0).astype(np.float32),
        "mask": rng.random(size) < 0.9,
        "advantages": rng.standard_normal(size).astype(np.float32),
        "entropy": rng.random(size).astype(np.float32),
        "rewards": rng.random(sequences),
        "weight_version": str(step),
        "prompt_ids": [f"prompt {row // 4}" for row in range(sequences)],
        "tags": [{"env": f"e{row % 3}"} for row in range(sequences)],
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]),
    }
    return {**arguments, **changes}


def rows(
    step: int, shape: tuple[int, int] = (4, 16), *, spread: float = 0.01, vocabulary: int = 1000, **changes: Any
) -> dict[str, Any]:
    """A call with rows of one length, whose log-ratios are noise of this spread; others at each step."""
    rng = np.random.default_rng(step)
    rollout = -rng.exponential(1.0, shape).astype(np.float32)
    arguments = {
        "step": step,
        "sample_ids": [f"{step}-{row}" for row in range(shape[0])],
        "token_ids": rng.integers(0, vocabulary, shape),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + rng.normal(0, spread, shape), 0).astype(np.float32),
        "mask": np.ones(shape, bool),
    }
    return {**arguments, **changes}


HOSTILE = (
    '<img src=x onerror="window.hostile=1">"><script>window.hostile=1</script>[a](javascript:window.hostile=1)'
    "![b](http://foreign.invalid/b)\u202e"
)


def attack(recorder: Recorder, steps: Iterable[int], names: str = HOSTILE) -> None:
    """Steps of a run whose every name is markup."""
    for step in steps:
        sample_ids = [f"{names} {step} {row}" for row in range(4)]
        tags = {"environment": names, "dataset": names}
        recorder.training(**rows(step, (4, 3), spread=0.1, sample_ids=sample_ids, tags=tags))
        recorder.step(step, {names: 1.0, "loss": 0.5})
