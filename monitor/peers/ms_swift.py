"""ms-swift: ``rollout_correction/*`` of its GRPO trainer. Formulas: swift/trainers/rlhf_trainer/grpo_trainer.py."""

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
    clamped_exp,
    option,
    perplexities,
    product_mean,
    product_means,
)

_K3_LIMIT: Final = 10.0
_TINY: Final = 1e-10


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in ms-swift's command line."""

    rollout_importance_sampling_mode: str | None = option(
        None,
        "correction; None: diagnostics only",
        None,
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    )
    rollout_importance_sampling_threshold: float = bound(2.0, "upper bound of the weights")
    off_policy_sequence_mask_delta: float | None = option(
        None, "drop sequences of negative advantage whose mean(r − c) is above"
    )


def _read(tokens: Tokens, options: Options) -> Reading:
    metrics = _off_policy(tokens)
    weights = None
    if options.rollout_importance_sampling_mode is not None:
        weights, logged = _correction(
            tokens, options.rollout_importance_sampling_mode, options.rollout_importance_sampling_threshold
        )
        metrics |= logged
    mask = tokens.mask_BT * _kept_sequences(tokens, options.off_policy_sequence_mask_delta)[:, None]
    return Reading({f"rollout_correction/{name}": value for name, value in metrics.items()}, weights, mask)


def _off_policy(tokens: Tokens) -> dict[str, float]:
    mask = tokens.mask_BT
    log_ratio = tokens.log_ratio_BT * mask
    safe = np.clip(log_ratio, -SAFETY_BOUND, SAFETY_BOUND)
    geometric_B = clamped_exp(product_means(log_ratio, mask))
    return perplexities(product_means(tokens.trainer_BT, mask), product_means(tokens.rollout_BT, mask)) | {
        "kl": product_mean(-log_ratio, mask),
        "k3_kl": product_mean(np.clip(np.exp(safe) - safe - 1.0, -_K3_LIMIT, _K3_LIMIT), mask),
        "chi2_token": product_mean(np.square(np.exp(safe)), mask) - 1.0,
        "chi2_seq": float(np.square(geometric_B).mean() - 1.0),
    }


def _correction(tokens: Tokens, mode: str, threshold: float) -> tuple[Floats, dict[str, float]]:
    """Weights [B, T], and what is logged of them."""
    ratio = clamped_exp(tokens.log_ratio_BT)
    sequences_B = _sequence_ratios(ratio, tokens.mask_BT)
    weights = _weights(mode, ratio, sequences_B, threshold)
    limited = np.clip(weights, 1.0 / threshold, threshold)
    normalized = limited / (product_mean(limited, tokens.mask_BT) + 1e-8)
    if mode == "token_truncate":
        clipped = product_mean((ratio > threshold).astype(ratio.dtype), tokens.mask_BT)
    elif mode == "token_mask":
        clipped = product_mean((weights == 0).astype(ratio.dtype), tokens.mask_BT)
    else:
        clipped = float((sequences_B > threshold).mean())
    return weights, {
        "is_weight_mean": product_mean(weights, tokens.mask_BT),
        "ess": float(1.0 / np.maximum(product_mean(np.square(normalized), tokens.mask_BT), _TINY)),
        "clipped_frac": clipped,
    }


def _sequence_ratios(ratio_BT: Floats, mask_BT: Floats) -> Floats:
    """Geometric mean of each sequence's ratios [B]."""
    return np.asarray(np.exp(product_means(np.log(np.maximum(ratio_BT, _TINY)), mask_BT)))


def _weights(mode: str, ratio_BT: Floats, sequences_B: Floats, threshold: float) -> Floats:
    if mode == "token_truncate":
        return np.minimum(ratio_BT, threshold)
    if mode == "token_mask":
        return np.where(ratio_BT <= threshold, ratio_BT, 0.0)
    if mode == "sequence_truncate":
        return np.broadcast_to(np.minimum(sequences_B, threshold)[:, None], ratio_BT.shape)
    return ratio_BT * (sequences_B <= threshold)[:, None]


def _kept_sequences(tokens: Tokens, delta: float | None) -> Floats:
    """1 for the sequences that off-policy masking (DeepSeek-V3.2) leaves in the loss [B]."""
    advantages = tokens.advantages_BT
    if delta is None or advantages is None:
        return np.ones(len(tokens.mask_BT), tokens.mask_BT.dtype)
    drift_B = product_means(tokens.rollout_BT - tokens.newest_BT, tokens.mask_BT)
    dropped = (drift_B > delta) & (product_means(advantages, tokens.mask_BT) < 0)
    return (~dropped).astype(tokens.mask_BT.dtype)


MS_SWIFT: Final = Peer(
    name="ms-swift",
    options=Options,
    read=_read,
    prefixes=("rollout_correction/",),
    headline=(
        "rollout_correction/kl",
        "rollout_correction/k3_kl",
        "rollout_correction/ppl_ratio",
        "rollout_correction/chi2_token",
        "rollout_correction/chi2_seq",
    ),
)
