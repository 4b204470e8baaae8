"""OpenRLHF: ``train/vllm_kl`` and the policy loss's own keys. Formulas: openrlhf/models/loss.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.peers.peer import (
    SAFETY_BOUND,
    CommonOptions,
    Floats,
    Peer,
    Reading,
    Tokens,
    bound,
    option,
    product_mean,
    product_means,
)


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in OpenRLHF's arguments."""

    vllm_is_correction_type: str = option("tis", "correction", "tis", "icepop", "seq-mask-tis")
    vllm_is_truncated_threshold_low: float = option(0.5, "first of vllm_is_truncated_threshold")
    vllm_is_truncated_threshold_high: float = bound(5.0, "second of vllm_is_truncated_threshold")
    eps_clip_low: float = option(0.2, "ε below 1 of the policy loss")
    eps_clip_high: float = option(0.2, "ε above 1 of the policy loss")


def _read(tokens: Tokens, options: Options) -> Reading:
    metrics = {"vllm_kl": product_mean(-tokens.log_ratio_BT, tokens.mask_BT)} | _policy_loss(tokens, options)
    return Reading({f"train/{name}": value for name, value in metrics.items()}, _weights(tokens, options))


def _weights(tokens: Tokens, options: Options) -> Floats:
    low, high = options.vllm_is_truncated_threshold_low, options.vllm_is_truncated_threshold_high
    ratio = np.exp(tokens.log_ratio_BT)
    if options.vllm_is_correction_type == "tis":
        return np.clip(ratio, low, high)
    if options.vllm_is_correction_type == "icepop":
        return ratio * ((ratio >= low) & (ratio <= high))
    geometric_B = np.exp(product_means(tokens.log_ratio_BT, tokens.mask_BT))
    return np.asarray(ratio * ((geometric_B >= low) & (geometric_B <= high))[:, None])


def _policy_loss(tokens: Tokens, options: Options) -> dict[str, float]:
    """What the PPO loss logs of c against t, where they are given."""
    if tokens.current_BT is None:
        return {}
    log_ratio = tokens.current_BT - tokens.trainer_BT
    metrics = {"ppo_kl": product_mean(-log_ratio, tokens.mask_BT)}
    if tokens.advantages_BT is not None:
        ratio = np.exp(np.clip(log_ratio, -SAFETY_BOUND, SAFETY_BOUND))
        clipped = np.clip(ratio, 1 - options.eps_clip_low, 1 + options.eps_clip_high)
        lower = clipped * tokens.advantages_BT < ratio * tokens.advantages_BT
        metrics["ppo_clip_ratio"] = product_mean(lower.astype(ratio.dtype), tokens.mask_BT)
    return metrics


OPENRLHF: Final = Peer(
    name="openrlhf",
    options=Options,
    read=_read,
    prefixes=("train/",),
    headline=("train/vllm_kl",),
)
