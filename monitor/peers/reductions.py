"""Means, sums and extremes as torch code takes them, NaN and empty sets included.

Two ways of leaving out masked tokens are in use, and they differ where it matters: a product with the mask lets a NaN under
the mask through (0 · NaN is NaN), a selection does not. Each peer says which one it uses.

Dimensions: ``_BT`` padded batch × time, ``_B`` one value per sequence, ``_N`` a flat selection.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
SAFETY_BOUND: Final = 20.0  # most peers clamp a log-ratio to ±20 before they exponentiate it


def clamped_exp(log_ratio: Floats) -> Floats:
    """ρ: exp with its argument clamped to ±20; NaN stays NaN."""
    return np.exp(np.clip(log_ratio, -SAFETY_BOUND, SAFETY_BOUND))


def naive_k3(log_ratio: Floats) -> Floats:
    """K3 as everybody writes it, exp(d) − d − 1: unclamped, and cancelling when d is small."""
    return np.exp(log_ratio) - log_ratio - 1.0


def product_sum(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Σ values·mask of each sequence [B]; NaN under the mask makes it NaN."""
    return np.asarray((values_BT * mask_BT).sum(axis=-1))


def product_means(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Mean of each sequence [B], 0 for an empty one."""
    return np.asarray(product_sum(values_BT, mask_BT) / np.maximum(mask_BT.sum(axis=-1), 1.0))


def product_mean(values_BT: Floats, mask_BT: Floats) -> float:
    """Mean over all tokens, 0 without any."""
    return float((values_BT * mask_BT).sum() / np.maximum(mask_BT.sum(), 1.0))


def deviation(values_N: Floats) -> float:
    """Standard deviation with n − 1 in the denominator; NaN for fewer than two values."""
    return float(values_N.std(ddof=1)) if values_N.size > 1 else float("nan")


def lower_median(values_N: Floats) -> float:
    """The lower of the two middle values, as `torch.median` takes it; NaN if any value is."""
    if not values_N.size or np.isnan(values_N).any():
        return float("nan")
    return float(np.sort(values_N)[(values_N.size - 1) // 2])


def pearson(first_N: Floats, second_N: Floats) -> float:
    """Correlation; NaN for fewer than two values or a constant side."""
    if first_N.size <= 1:
        return float("nan")
    first, second = first_N - first_N.mean(), second_N - second_N.mean()
    scale = np.sqrt((first * first).sum()) * np.sqrt((second * second).sum())
    return float(np.clip((first * second).sum() / scale, -1.0, 1.0))


def clipped_branch(ratio_BT: Floats, advantages_BT: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where the PPO minimum takes its clipped branch: −A·clip(ρ) > −A·ρ."""
    return np.asarray(-advantages_BT * np.clip(ratio_BT, 1 - low, 1 + high) > -advantages_BT * ratio_BT)


def perplexities(trainer_B: Floats, rollout_B: Floats) -> dict[str, float]:
    """Of mean log-probs per sequence; an empty sequence comes with 0 and so counts as perplexity 1."""
    difference_B = rollout_B - trainer_B
    return {
        "training_ppl": float(np.exp(-trainer_B).mean()),
        "training_log_ppl": float((-trainer_B).mean()),
        "rollout_ppl": float(np.exp(-rollout_B).mean()),
        "rollout_log_ppl": float((-rollout_B).mean()),
        "log_ppl_diff": float(difference_B.mean()),
        "log_ppl_abs_diff": float(np.abs(difference_B).mean()),
        "log_ppl_diff_max": float(difference_B.max()),
        "log_ppl_diff_min": float(difference_B.min()),
        "ppl_ratio": float(np.exp(difference_B).mean()),
    }
