"""Arguments of `Recorder.training` for tests of what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np


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
