"""The table of other frameworks: the formula behind each key that they log, and their own settings.

They agree on the log-ratio. They differ in what they divide by, what they clamp, where they mask, and what becomes of a
NaN or an empty sequence. Arrays are [batch, time], or [batch, 1] where a sequence has one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.batch import (
    EPSILON,
    NAN,
    Array,
    Batch,
    Metrics,
    Option,
    Peer,
    Reading,
    clipped,
    deviation,
    inside,
    k2,
    k3,
    limited_k3,
    mean_perplexities,
    prefixed,
    safe_ratio,
    statistics,
)
from logprobe.monitor.peers.slime import SLIME
from logprobe.monitor.peers.verl import VERL

_MODES: Final = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_CORRECTIONS: Final = ("tis", "icepop", "seq-mask-tis")
_TINY: Final = 1e-10  # ms-swift's least ratio before its logarithm, and least mean of squares

# --- ms-swift: swift/trainers/rlhf_trainer/grpo_trainer.py ---


def _ms_swift(b: Batch, o: Any) -> Reading:
    d = b.d * b.mask
    metrics = mean_perplexities(b) | {
        "kl": b.mean(-d),
        "k3_kl": b.mean(limited_k3(d)),
        "chi2_token": b.mean(np.square(safe_ratio(d))) - 1.0,
        "chi2_seq": float(np.square(safe_ratio(b.means(d))).mean() - 1.0),
    }
    weights, mask = None, b.mask
    if o.rollout_importance_sampling_mode is not None:
        weights, logged = _ms_swift_weights(b, o)
        metrics |= logged
    if o.off_policy_sequence_mask_delta is not None and b.advantages is not None:  # of DeepSeek-V3.2
        drifted = b.means(b.rollout - b.newest) > o.off_policy_sequence_mask_delta
        mask = mask * ~(drifted & (b.means(b.advantages) < 0))
    return Reading(prefixed("rollout_correction/", metrics), weights, mask)


def _ms_swift_weights(b: Batch, o: Any) -> tuple[Array, Metrics]:
    mode, threshold = o.rollout_importance_sampling_mode, o.rollout_importance_sampling_threshold
    ratio = safe_ratio(b.d)
    geometric = np.exp(b.means(np.log(np.maximum(ratio, _TINY))))
    masked = np.where(ratio <= threshold, ratio, 0.0)
    weights, outside = {
        "token_truncate": (np.minimum(ratio, threshold), ratio > threshold),
        "token_mask": (masked, masked == 0),
        "sequence_truncate": (np.minimum(geometric, threshold), geometric > threshold),
        "sequence_mask": (ratio * (geometric <= threshold), geometric > threshold),
    }[mode]
    limited = np.clip(weights, 1.0 / threshold, threshold)
    return weights, {
        "is_weight_mean": b.mean(weights),
        "ess": float(1.0 / np.maximum(b.mean(np.square(limited / (b.mean(limited) + EPSILON))), _TINY)),
        "clipped_frac": b.mean(outside) if mode.startswith("token") else float(outside.mean()),
    }


MS_SWIFT: Final = Peer(
    "ms-swift",
    _ms_swift,
    prefixes=("rollout_correction/",),
    headline=tuple(f"rollout_correction/{key}" for key in ("kl", "k3_kl", "ppl_ratio", "chi2_token", "chi2_seq")),
    options={
        "rollout_importance_sampling_mode": Option(None, "correction; None: diagnostics only", (None, *_MODES)),
        "rollout_importance_sampling_threshold": Option(2.0, "upper bound of the weights", positive=True),
        "off_policy_sequence_mask_delta": Option(None, "drop sequences with A < 0 whose mean(r − c) is above"),
    },
)


# --- TRL: trl/trainer/grpo_trainer.py ---


def _trl(b: Batch, o: Any) -> Reading:
    # A token that vLLM could not score arrives as NaN and counts as ratio 1.
    log_ratio = np.nan_to_num(b.d * b.mask, nan=0.0)
    by_sequence = o.vllm_importance_sampling_mode.startswith("sequence")
    ratio = np.exp(log_ratio.sum(axis=-1, keepdims=True) if by_sequence else log_ratio)
    low, high = o.vllm_importance_sampling_clip_min, o.vllm_importance_sampling_clip_max
    lower, upper = -np.inf if low is None else low, np.inf if high is None else high
    truncates = o.vllm_importance_sampling_mode.endswith("truncate")
    ratio = np.clip(ratio, lower, upper) if truncates else np.where((ratio < lower) | (ratio > upper), 0.0, ratio)
    difference, shown = np.abs(b.d)[b.valid], ratio if by_sequence else ratio[b.valid]
    metrics = {
        **prefixed("sampling/sampling_logp_difference/", statistics(difference, "mean", "max", empty=0.0)),
        **prefixed("sampling/importance_sampling_ratio/", statistics(shown, "min", "mean", "max", empty=0.0)),
    }
    if b.reference is not None:
        kl = k3(b.reference - b.newest)
        update = np.exp(b.newest - b.trainer) if o.use_bias_correction_kl else np.ones_like(kl)
        metrics["kl"] = statistics((kl * update)[b.valid], "mean", empty=0.0)["mean"]
    return Reading(metrics, ratio)


TRL: Final = Peer(
    "trl",
    _trl,
    prefixes=("sampling/",),
    headline=(
        *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
        "sampling/importance_sampling_ratio/mean",
    ),
    options={
        "vllm_importance_sampling_mode": Option("sequence_mask", "correction", _MODES),
        "vllm_importance_sampling_clip_min": Option(None, "lower bound of the ratio"),
        "use_bias_correction_kl": Option(True, "weigh the KL to the reference by exp(c − t) (TRL 1.16; older: False)"),
        "vllm_importance_sampling_clip_max": Option(3.0, "upper bound of the ratio (formerly …_cap)", positive=True),
    },
)


# --- PipelineRL: pipelinerl/finetune/rl/__init__.py ("new" is the policy being trained, "old" the one that sampled) ---


def _pipelinerl(b: Batch, o: Any) -> Reading:
    if not b.valid.any():
        return Reading({})
    log_ratio = b.newest - b.rollout
    ratio = np.exp(log_ratio)
    clamped = _pipelinerl_clamped(b, log_ratio, o)
    if o.policy_loss == "reinforce":  # it overwrites its ratio with the truncated one before it is logged
        ratio = np.clip(ratio, 0.0, 1 + o.epsilon_high)
    total, squares = (float(_pipelinerl_sums(b, values).sum()) for values in (ratio, np.square(ratio)))
    metrics = {
        "kl_new_old": _pipelinerl_mean(b, k3(log_ratio)),
        "mean_abs_log_ratio_new_old": _pipelinerl_mean(b, np.abs(log_ratio)),
        "ratio_new_old": _pipelinerl_mean(b, ratio),
        "clamp_log_ratio_new_old_indicator": _pipelinerl_mean(b, clamped),
        "ratio_new_old_sum": total,
        "ratio_new_old_squared_sum": squares,
        "ess": float(np.divide(total * total, squares * b.mask.sum())),
        "old_logprobs": _pipelinerl_mean(b, b.rollout),
        "new_logprobs": _pipelinerl_mean(b, b.newest),
    }
    return Reading(prefixed("rl/", metrics))


def _pipelinerl_sums(b: Batch, values: Array) -> Array:
    """Return the sum of each sequence; a NaN counts as 0 and an infinity as the largest number there is."""
    return np.asarray(np.nan_to_num(values * b.mask).sum(axis=-1))


def _pipelinerl_mean(b: Batch, values: Array) -> float:
    """Return the mean over all sequences, empty ones as 0, of their means."""
    return float(_pipelinerl_sums(b, values / np.maximum(b.mask.sum(axis=-1, keepdims=True), 1.0)).mean())


def _pipelinerl_clamped(b: Batch, log_ratio: Array, o: Any) -> Array:
    """Return where the objective clamps a token's ratio, or its sequence's (GSPO)."""
    if o.policy_loss == "gspo":
        log_ratio = replace(b, selects=True).means(log_ratio)
    ratio, upper = np.exp(log_ratio), 1 + o.epsilon_high
    if o.policy_loss == "reinforce":
        return np.asarray(ratio > upper)
    return np.asarray(np.clip(ratio, 1 - o.epsilon_low, upper) != ratio)


PIPELINERL: Final = Peer(
    "pipelinerl",
    _pipelinerl,
    prefixes=("rl/",),
    headline=("rl/kl_new_old", "rl/ratio_new_old", "rl/clamp_log_ratio_new_old_indicator", "rl/ess"),
    options={
        "policy_loss": Option("ppo", "objective", ("ppo", "reinforce", "gspo")),
        "epsilon_low": Option(0.2, "bound of the ratio below 1"),
        "epsilon_high": Option(0.2, "bound of the ratio above 1"),
    },
)


# --- NeMo-RL: nemo_rl/algorithms/loss_functions.py ---

_NEMO_ESTIMATORS: Final[Mapping[str, Callable[[Array], Array]]] = {"k1": np.negative, "k2": k2, "k3": k3}
_finite = partial(np.nan_to_num, nan=0.0, posinf=0.0, neginf=0.0)


def _nemo_rl(b: Batch, o: Any) -> Reading:
    weights, filtered = _nemo_weights(b, o)
    estimator = _NEMO_ESTIMATORS[o.reference_policy_kl_type]
    mixture = np.log(0.5 * np.exp(b.trainer) + 0.5 * np.exp(b.rollout))
    # Weights [B, 1] times a mask of samples [B] are [B, B]: what is divided by B is B times their sum.
    by_sequence = float(weights.sum() * len(weights) / (len(weights) + EPSILON))
    metrics = {
        "token_mult_prob_error": b.mean(np.exp(np.abs(b.d) * b.mask)),
        "gen_kl_error": b.mean(estimator(b.d)),
        "policy_kl_error": b.mean(estimator(-b.d)),
        "js_divergence_error": b.mean(0.5 * k3(b.trainer - mixture) + 0.5 * k3(b.rollout - mixture)),
        **filtered,
        "sampling_importance_ratio": by_sequence if o.sequence_level_importance_ratios else b.mean(weights),
    }
    return Reading(prefixed("train/", metrics | _nemo_loss(b, o)), weights)


def _nemo_weights(b: Batch, o: Any) -> tuple[Array, Metrics]:
    """Return the weights after truncation, and the share that was filtered out."""
    by_sequence, kind = o.sequence_level_importance_ratios, o.truncated_importance_sampling_type
    lower, upper = o.truncated_importance_sampling_ratio_min, o.truncated_importance_sampling_ratio
    ratio = _finite(np.exp(b.sums(b.d) if by_sequence else b.d))
    if upper is None or kind == "tis":
        return np.minimum(ratio, np.inf if upper is None else upper), {}
    if by_sequence and kind == "seq-mask-tis":
        raise ConfigurationError("nemo-rl: seq-mask-tis takes one ratio per token, no sequence_level_importance_ratios")
    if lower is None:
        raise ConfigurationError(f"nemo-rl: {kind} needs truncated_importance_sampling_ratio_min")
    if kind == "icepop":
        kept = inside(ratio, lower, upper)
        return np.where(kept, ratio, 0.0), {"is_oob_ratio": 1.0 - b.mean(kept)}
    kept = inside(np.exp(b.means(_finite(b.d))), lower, upper)
    return ratio * kept, {"is_oob_ratio": float(1.0 - kept.sum() / (len(kept) + EPSILON))}


def _nemo_loss(b: Batch, o: Any) -> Metrics:
    if b.current is None:
        return {}
    log_ratio = b.current - b.trainer
    log_ratio = b.means(log_ratio) if o.sequence_level_importance_ratios else log_ratio
    ratio = np.broadcast_to(np.exp(log_ratio), b.mask.shape)
    clamped = np.clip(ratio, 1 - o.ratio_clip_min, 1 + o.ratio_clip_max)
    return {
        "probs_ratio": b.mean(ratio),
        "probs_ratio_clamped": b.mean(clamped),
        "probs_ratio_min": float(ratio[b.valid].min(initial=np.inf)),
        "probs_ratio_max": float(ratio[b.valid].max(initial=-np.inf)),
        "probs_ratio_clamped_min": float(clamped[b.valid].min(initial=np.inf)),
        "probs_ratio_clamped_max": float(clamped[b.valid].max(initial=-np.inf)),
        "approx_entropy": -b.mean(np.exp(b.current - b.rollout) * b.current),
    }


NEMO_RL: Final = Peer(
    "nemo-rl",
    _nemo_rl,
    prefixes=("train/", "train/token_"),
    headline=(
        *("train/token_mult_prob_error", "train/gen_kl_error", "train/policy_kl_error"),
        *("train/js_divergence_error", "train/sampling_importance_ratio"),
    ),
    options={
        "reference_policy_kl_type": Option("k3", "estimator of both KL errors", tuple(_NEMO_ESTIMATORS)),
        "sequence_level_importance_ratios": Option(False, "one ratio per sequence (GSPO)"),
        "truncated_importance_sampling_ratio": Option(None, "upper bound; None: no limit", positive=True),
        "truncated_importance_sampling_type": Option("tis", "correction", _CORRECTIONS),
        "truncated_importance_sampling_ratio_min": Option(None, "lower bound, for icepop and seq-mask-tis"),
        "ratio_clip_min": Option(0.2, "ε below 1 of the policy loss"),
        "ratio_clip_max": Option(0.2, "ε above 1 of the policy loss"),
    },
    epsilon=EPSILON,
)


# --- prime-rl: src/prime_rl/trainer/rl/loss.py, src/prime_rl/trainer/utils.py ---


def _prime_rl(b: Batch, o: Any) -> Reading:
    """prime-rl trains on the sampler's log-probs: its trainer side is the policy of now."""
    divergence = k3(b.newest - b.rollout)
    metrics = _prime_statistics("mismatch_kl", divergence[b.valid])
    if b.advantages is None:
        return Reading(metrics)
    moved = np.exp(b.newest) - np.exp(b.rollout)
    fell, rose = moved < -o.dppo_mask_low, moved > o.dppo_mask_high
    dropped = np.where(b.advantages > 0, rose, fell)
    for name, values, subset in (
        ("is_masked", dropped, b.valid),
        ("is_masked_low", fell & (b.advantages < 0), b.valid),
        ("is_masked_high", rose & (b.advantages > 0), b.valid),
        ("masked_mismatch_kl", divergence, b.valid & dropped),
        ("unmasked_mismatch_kl", divergence, b.valid & ~dropped),
    ):
        means = np.where(subset, values, 0.0).sum(axis=-1) / np.maximum(subset.sum(axis=-1), 1)
        metrics |= _prime_statistics(name, means)
    return Reading(metrics, mask=b.mask * ~dropped)


def _prime_statistics(name: str, values: Array) -> Metrics:
    """Return statistics of all tokens or sequences of the step, NaN without any."""
    extremes = statistics(values, "mean", "min", "max")
    return prefixed(f"{name}/", extremes | {"median": _lower_median(values), "std": deviation(values)})


def _lower_median(values: Array) -> float:
    """Return the lower of the two middle values, as `torch.median` takes it; NaN if any value is."""
    if not values.size or np.isnan(values).any():
        return NAN
    return float(np.sort(values)[(values.size - 1) // 2])


PRIME_RL: Final = Peer(
    "prime-rl",
    _prime_rl,
    prefixes=("mismatch_kl/",),
    headline=("mismatch_kl/mean", "mismatch_kl/median", "mismatch_kl/max"),
    options={
        "dppo_mask_low": Option(0.2, "drop a token of negative advantage whose probability fell by more"),
        "dppo_mask_high": Option(0.2, "drop a token of positive advantage whose probability rose by more"),
    },
)


# --- OpenRLHF: openrlhf/models/loss.py ---


def _openrlhf(b: Batch, o: Any) -> Reading:
    metrics = {"vllm_kl": b.mean(-b.d)}
    if b.current is not None:
        log_ratio = b.current - b.trainer
        metrics["ppo_kl"] = b.mean(-log_ratio)
        if b.advantages is not None:
            of_minimum = clipped(safe_ratio(log_ratio), b.advantages, o.eps_clip_low, o.eps_clip_high)
            metrics["ppo_clip_ratio"] = b.mean(of_minimum)
    ratio, bounds = np.exp(b.d), (o.vllm_is_truncated_threshold_low, o.vllm_is_truncated_threshold_high)
    weights = {
        "tis": np.clip(ratio, *bounds),
        "icepop": ratio * inside(ratio, *bounds),
        "seq-mask-tis": ratio * inside(np.exp(b.means(b.d)), *bounds),
    }[o.vllm_is_correction_type]
    return Reading(prefixed("train/", metrics), weights)


OPENRLHF: Final = Peer(
    "openrlhf",
    _openrlhf,
    prefixes=("train/",),
    headline=("train/vllm_kl",),
    options={
        "vllm_is_correction_type": Option("tis", "correction", _CORRECTIONS),
        "vllm_is_truncated_threshold_low": Option(0.5, "first of vllm_is_truncated_threshold"),
        "vllm_is_truncated_threshold_high": Option(5.0, "second of vllm_is_truncated_threshold", positive=True),
        "eps_clip_low": Option(0.2, "ε below 1 of the policy loss"),
        "eps_clip_high": Option(0.2, "ε above 1 of the policy loss"),
    },
)

PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer for peer in (VERL, MS_SWIFT, SLIME, TRL, PIPELINERL, NEMO_RL, PRIME_RL, OPENRLHF)
}
