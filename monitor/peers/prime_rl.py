"""prime-rl: ``mismatch_kl/*`` and the masked shares of its default (DPPO) loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.peers.inputs import Tokens
from logprobe.monitor.peers.peer import CommonOptions, Difference, Peer, Reading, option
from logprobe.monitor.peers.reductions import Floats, deviation, lower_median, naive_k3


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
    for name, flags in (("is_masked", dropped), ("is_masked_low", low), ("is_masked_high", high)):
        metrics |= _statistics(name, flags[valid].astype(divergence.dtype), ("mean",))
    metrics |= _statistics("masked_mismatch_kl", divergence[valid & dropped], ("mean",))
    metrics |= _statistics("unmasked_mismatch_kl", divergence[valid & ~dropped], ("mean",))
    return Reading(metrics, None, tokens.mask_BT * ~dropped)


def _masked(
    tokens: Tokens, advantages: Floats, options: Options
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Tokens beyond the lower bound, beyond the upper bound, and those dropped from the loss."""
    moved = np.exp(tokens.newest_BT) - np.exp(tokens.rollout_BT)
    fell, rose = moved < -options.dppo_mask_low, moved > options.dppo_mask_high
    return fell & (advantages < 0), rose & (advantages > 0), np.where(advantages > 0, rose, fell)


def _statistics(
    name: str, values_N: Floats, kinds: tuple[str, ...] = ("mean", "median", "std", "min", "max")
) -> dict[str, float]:
    """Of all tokens of the step; NaN without any."""
    if not values_N.size:
        return {f"{name}/{kind}": float("nan") for kind in kinds}
    values = {
        "mean": float(values_N.mean()),
        "median": lower_median(values_N),
        "std": deviation(values_N),
        "min": float(values_N.min()),
        "max": float(values_N.max()),
    }
    return {f"{name}/{kind}": values[kind] for kind in kinds}


PRIME_RL: Final = Peer(
    name="prime-rl",
    options=Options,
    read=_read,
    prefixes=("mismatch_kl/",),
    source="src/prime_rl/trainer/rl/loss.py, src/prime_rl/trainer/utils.py",
    broken=(
        "Values under mask = 0 are ignored. A NaN on a valid token makes every statistic NaN, and that token is kept in the loss. "
        "Sentinels count as data. Empty sequences have no tokens and so no effect. A batch without a valid token gives NaN."
    ),
    differences=(
        Difference(
            "mismatch_kl/mean",
            "total.k3_kl (backend.k3_kl where the step has one update)",
            "exp(d) − d − 1, not clamped, in float32",
            "infinite from d = 89 on; holds the update where a step has several",
        ),
        Difference(
            "mismatch_kl/median",
            "–",
            "the lower median over tokens",
            "most tokens are nearly certain, so it stays near 0 when the tail is already broken",
        ),
        Difference(
            "is_masked/mean",
            "update.pg_clip_fraction",
            "share of tokens whose probability moved by more than 0.2 against the sign of the advantage",
            "on probabilities, not ratios: rare tokens are never masked",
        ),
    ),
)
