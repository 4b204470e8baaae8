"""NeMo-RL: ``train/*`` of its clipped policy-gradient loss. Formulas: nemo_rl/algorithms/loss_functions.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.peer import (
    CommonOptions,
    Floats,
    Peer,
    Reading,
    Tokens,
    bound,
    naive_k3,
    option,
    product_sum,
)

_EPSILON: Final = 1e-8  # NeMo-RL adds it to every denominator

# KL estimators of log-ratio reference − policy.
_ESTIMATORS: Final[dict[str, Callable[[Floats], Floats]]] = {
    "k1": np.negative,
    "k2": lambda log_ratio: np.square(log_ratio) / 2.0,
    "k3": naive_k3,
}


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in NeMo-RL's ``loss_fn``."""

    reference_policy_kl_type: str = option("k3", "estimator of both KL errors", "k1", "k2", "k3")
    sequence_level_importance_ratios: bool = option(False, "one ratio per sequence (GSPO)")
    truncated_importance_sampling_ratio: float | None = bound(None, "upper bound of the weights; None: no limit")
    truncated_importance_sampling_type: str = option("tis", "what happens beyond it", "tis", "icepop", "seq-mask-tis")
    truncated_importance_sampling_ratio_min: float | None = option(None, "lower bound, for icepop and seq-mask-tis")
    ratio_clip_min: float = option(0.2, "ε below 1 of the policy loss")
    ratio_clip_max: float = option(0.2, "ε above 1 of the policy loss")


def _read(tokens: Tokens, options: Options) -> Reading:
    weights, filtered = _weights(tokens, options)
    metrics = _errors(tokens, options) | filtered
    metrics["sampling_importance_ratio"] = _importance_ratio(tokens, weights, options)
    metrics |= _policy_loss(tokens, options)
    return Reading({f"train/{name}": value for name, value in metrics.items()}, weights)


def _mean(values_BT: Floats, mask_BT: Floats) -> float:
    return float((values_BT * mask_BT).sum() / (mask_BT.sum() + _EPSILON))


def _errors(tokens: Tokens, options: Options) -> dict[str, float]:
    """How far engine and trainer disagree."""
    mask, log_ratio = tokens.mask_BT, tokens.log_ratio_BT
    estimator = _ESTIMATORS[options.reference_policy_kl_type]
    mixture = np.log(0.5 * np.exp(tokens.trainer_BT) + 0.5 * np.exp(tokens.rollout_BT))
    divergence = 0.5 * naive_k3(tokens.trainer_BT - mixture) + 0.5 * naive_k3(tokens.rollout_BT - mixture)
    return {
        "token_mult_prob_error": _mean(np.exp(np.abs(log_ratio) * mask), mask),
        "gen_kl_error": _mean(estimator(log_ratio), mask),
        "policy_kl_error": _mean(estimator(-log_ratio), mask),
        "js_divergence_error": _mean(divergence, mask),
    }


def _finite(values: Floats) -> Floats:
    """NeMo-RL takes NaN and infinite weights as 0."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _weights(tokens: Tokens, options: Options) -> tuple[Floats, dict[str, float]]:
    """Weights [B, T] or [B, 1] after truncation, and the share that was filtered out."""
    log_ratio = tokens.log_ratio_BT
    if options.sequence_level_importance_ratios:
        ratio = _finite(np.exp(product_sum(log_ratio, tokens.mask_BT)))[:, None]
    else:
        ratio = _finite(np.exp(log_ratio))
    upper = options.truncated_importance_sampling_ratio
    if upper is None:
        return ratio, {}
    if options.truncated_importance_sampling_type == "tis":
        return np.minimum(ratio, upper), {}
    if options.sequence_level_importance_ratios and options.truncated_importance_sampling_type == "seq-mask-tis":
        raise ConfigurationError("nemo-rl: seq-mask-tis takes one ratio per token, no sequence_level_importance_ratios")
    lower = options.truncated_importance_sampling_ratio_min
    if lower is None:
        kind = options.truncated_importance_sampling_type
        raise ConfigurationError(f"nemo-rl: {kind} needs truncated_importance_sampling_ratio_min")
    if options.truncated_importance_sampling_type == "icepop":
        keep = _inside(ratio, lower, upper)
        return np.where(keep, ratio, 0.0), {
            "is_oob_ratio": 1.0 - _mean(keep * np.ones_like(tokens.mask_BT), tokens.mask_BT)
        }
    geometric = np.exp(product_sum(_finite(log_ratio), tokens.mask_BT) / (tokens.mask_BT.sum(axis=-1) + _EPSILON))
    kept = _inside(geometric, lower, upper)
    return ratio * kept[:, None], {"is_oob_ratio": float(1.0 - kept.sum() / (len(kept) + _EPSILON))}


def _inside(ratio: Floats, lower: float, upper: float) -> NDArray[np.bool_]:
    return np.asarray((ratio >= lower) & (ratio <= upper))


def _importance_ratio(tokens: Tokens, weights: Floats, options: Options) -> float:
    if options.sequence_level_importance_ratios:
        # Weights [B, 1] times a mask of samples [B] are [B, B]: what is divided by B is B times their sum.
        return float(weights.sum() * len(weights) / (len(weights) + _EPSILON))
    return _mean(weights, tokens.mask_BT)


def _policy_loss(tokens: Tokens, options: Options) -> dict[str, float]:
    """What the loss logs of c, where it is given."""
    current, mask = tokens.current_BT, tokens.mask_BT
    if current is None:
        return {}
    ratio = _policy_ratio(current - tokens.trainer_BT, mask, options)
    clamped = np.clip(ratio, 1 - options.ratio_clip_min, 1 + options.ratio_clip_max)
    return {
        "probs_ratio": _mean(ratio, mask),
        "probs_ratio_clamped": _mean(clamped, mask),
        **_extremes("probs_ratio", ratio[tokens.valid_BT]),
        **_extremes("probs_ratio_clamped", clamped[tokens.valid_BT]),
        "approx_entropy": -_mean(np.exp(current - tokens.rollout_BT) * current, mask),
    }


def _policy_ratio(log_ratio_BT: Floats, mask_BT: Floats, options: Options) -> Floats:
    if not options.sequence_level_importance_ratios:
        return np.exp(log_ratio_BT)
    means_B = product_sum(log_ratio_BT, mask_BT) / (mask_BT.sum(axis=-1) + _EPSILON)
    return np.broadcast_to(np.exp(means_B)[:, None], mask_BT.shape)


def _extremes(name: str, values_N: NDArray[Any]) -> dict[str, float]:
    some = bool(values_N.size)
    return {
        f"{name}_min": float(values_N.min()) if some else float("inf"),
        f"{name}_max": float(values_N.max()) if some else float("-inf"),
    }


NEMO_RL: Final = Peer(
    name="nemo-rl",
    options=Options,
    read=_read,
    prefixes=("train/", "train/token_"),
    headline=(
        "train/token_mult_prob_error",
        "train/gen_kl_error",
        "train/policy_kl_error",
        "train/js_divergence_error",
        "train/sampling_importance_ratio",
    ),
)
