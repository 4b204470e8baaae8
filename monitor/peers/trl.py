"""TRL: ``sampling/*`` of its GRPO trainer. Formulas: trl/trainer/grpo_trainer.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.peers.peer import CommonOptions, Floats, Peer, Reading, Tokens, bound, naive_k3, option


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in TRL's `GRPOConfig`."""

    vllm_importance_sampling_mode: str = option(
        "sequence_mask", "correction", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    )
    vllm_importance_sampling_clip_min: float | None = option(None, "lower bound of the ratio")
    use_bias_correction_kl: bool = option(
        True, "the KL to the reference is weighted by current over old probabilities (TRL 1.16; older: False)"
    )
    vllm_importance_sampling_clip_max: float | None = bound(3.0, "upper bound of the ratio (formerly …_cap)")


def _read(tokens: Tokens, options: Options) -> Reading:
    mode = options.vllm_importance_sampling_mode
    # A token that vLLM could not score arrives as NaN and counts as ratio 1.
    log_ratio = np.nan_to_num(tokens.log_ratio_BT * tokens.mask_BT, nan=0.0)
    if mode.startswith("sequence"):
        log_ratio = log_ratio.sum(axis=-1, keepdims=True)
    ratio = _limited(np.exp(log_ratio), options)
    shown = ratio.ravel() if mode.startswith("sequence") else ratio[tokens.valid_BT]
    difference = np.abs(tokens.log_ratio_BT)[tokens.valid_BT]
    metrics = {
        "sampling/sampling_logp_difference/mean": _or_zero(difference, "mean"),
        "sampling/sampling_logp_difference/max": _or_zero(difference, "max"),
        **{f"sampling/importance_sampling_ratio/{of}": _or_zero(shown, of) for of in ("min", "mean", "max")},
        **_reference_kl(tokens, options),
    }
    return Reading(metrics, np.broadcast_to(ratio, tokens.mask_BT.shape))


def _reference_kl(tokens: Tokens, options: Options) -> dict[str, float]:
    """KL of the policy being trained to the reference, where there is one."""
    if tokens.reference_BT is None:
        return {}
    log_ratio = (tokens.reference_BT - tokens.newest_BT)[tokens.valid_BT]
    kl = naive_k3(log_ratio)
    if options.use_bias_correction_kl:
        kl = kl * np.exp((tokens.newest_BT - tokens.trainer_BT)[tokens.valid_BT])
    return {"kl": _or_zero(kl, "mean")}


def _limited(ratio: Floats, options: Options) -> Floats:
    low, high = options.vllm_importance_sampling_clip_min, options.vllm_importance_sampling_clip_max
    lower, upper = -np.inf if low is None else low, np.inf if high is None else high
    if options.vllm_importance_sampling_mode.endswith("truncate"):
        return np.clip(ratio, lower, upper)
    return np.where((ratio < lower) | (ratio > upper), 0.0, ratio)


def _or_zero(values_N: Floats, of: str) -> float:
    return float(getattr(values_N, of)()) if values_N.size else 0.0


TRL: Final = Peer(
    name="trl",
    options=Options,
    read=_read,
    prefixes=("sampling/",),
    headline=(
        "sampling/sampling_logp_difference/mean",
        "sampling/sampling_logp_difference/max",
        "sampling/importance_sampling_ratio/mean",
    ),
)
