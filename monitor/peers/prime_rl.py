"""prime-rl: ``mismatch_kl/*`` and the masked shares of its default (DPPO) loss.

Formulas: src/prime_rl/trainer/rl/loss.py, src/prime_rl/trainer/utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.peers.peer import (
    CommonOptions,
    Floats,
    Peer,
    Reading,
    Tokens,
    deviation,
    lower_median,
    naive_k3,
    option,
)


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in prime-rl's ``loss``."""

    dppo_mask_low: float = option(0.2, "drop a token of negative advantage whose probability fell by more")
    dppo_mask_high: float = option(0.2, "drop a token of positive advantage whose probability rose by more")


def _read(tokens: Tokens, options: Options) -> Reading:
    """prime-rl trains on the sampler's log-probs: its trainer side is the policy of now."""
    valid = tokens.valid_BT
    divergence = naive_k3(tokens.newest_BT - tokens.rollout_BT)
    metrics = _statistics("mismatch_kl", divergence[valid])
    advantages = tokens.advantages_BT
    if advantages is None:
        return Reading(metrics)
    low, high, dropped = _masked(tokens, advantages, options)
    for name, values, subset in (
        ("is_masked", dropped, valid),
        ("is_masked_low", low, valid),
        ("is_masked_high", high, valid),
        ("masked_mismatch_kl", divergence, valid & dropped),
        ("unmasked_mismatch_kl", divergence, valid & ~dropped),
    ):
        metrics |= _statistics(name, _means(values, subset))
    return Reading(metrics, None, tokens.mask_BT * ~dropped)


def _means(values_BT: NDArray[Any], subset_BT: NDArray[np.bool_]) -> Floats:
    """Mean of each sequence's subset of tokens [B], 0 for an empty one."""
    sums_B = np.where(subset_BT, values_BT, 0.0).sum(axis=-1)
    return np.asarray(sums_B / np.maximum(subset_BT.sum(axis=-1), 1))


def _masked(
    tokens: Tokens, advantages: Floats, options: Options
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Tokens beyond the lower bound, beyond the upper bound, and those dropped from the loss."""
    moved = np.exp(tokens.newest_BT) - np.exp(tokens.rollout_BT)
    fell, rose = moved < -options.dppo_mask_low, moved > options.dppo_mask_high
    return fell & (advantages < 0), rose & (advantages > 0), np.where(advantages > 0, rose, fell)


def _statistics(name: str, values: Floats) -> dict[str, float]:
    """Of all tokens or sequences of the step; NaN without any."""
    if not values.size:
        return {f"{name}/{kind}": float("nan") for kind in ("mean", "median", "std", "min", "max")}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/median": lower_median(values),
        f"{name}/std": deviation(values),
        f"{name}/min": float(values.min()),
        f"{name}/max": float(values.max()),
    }


PRIME_RL: Final = Peer(
    name="prime-rl",
    options=Options,
    read=_read,
    prefixes=("mismatch_kl/",),
    headline=(
        "mismatch_kl/mean",
        "mismatch_kl/median",
        "mismatch_kl/max",
    ),
)
