"""Batches for the tests of corrections."""

from __future__ import annotations

import numpy as np

from logprobe.collectors.correction import CorrectionConfig

NAN, INF = float("nan"), float("inf")


def batch(seed: int = 0, sequences: int = 5, time: int = 7, spread: float = 0.6) -> tuple[np.ndarray, ...]:
    """Rollout and trainer log-probs, mask and advantages [batch, time]; the last sequence has no token."""
    rng = np.random.default_rng(seed)
    rollout = -rng.exponential(1.0, (sequences, time)) - 0.05
    trainer = np.minimum(rollout + spread * rng.standard_normal(rollout.shape), -1e-3)
    mask = rng.random(rollout.shape) < 0.8
    mask[:-1, 0], mask[-1] = True, False
    return rollout, trainer, mask, rng.standard_normal(rollout.shape)


LEVELS = ("token", "sequence", "geometric")
EVERYTHING = CorrectionConfig(
    is_level="token",
    is_mode="clip",
    is_lower=0.5,
    rs_level="geometric",
    rs_lower=0.7,
    rs_upper=1.4,
    veto=0.05,
    normalize=True,
)
