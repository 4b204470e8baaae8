"""verl: ``rollout_corr/*``, ``training/rollout_probs_diff_*`` and the policy loss's ``actor/*``.

Formulas: verl/trainer/ppo/rollout_corr_helper.py, verl/utils/debug/metrics.py, verl/trainer/ppo/core_algos.py.
"""

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
    clamped_exp,
    clipped_branch,
    deviation,
    naive_k3,
    option,
    pearson,
    perplexities,
    specification,
)
from logprobe.monitor.peers.verl_correction import (
    importance_weights,
    rejection,
    selected_mean,
    selected_means,
    selected_sum,
)

_ESTIMATORS: Final = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_KL_BOUND: Final = 10.0  # of k3, on both sides


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in verl's ``algorithm.rollout_correction`` and ``actor``."""

    rollout_is: str | None = option(None, "level of the importance weights", None, "token", "sequence")
    rollout_is_threshold: str | float | None = specification(
        2.0, 'upper bound (TIS), or `"lower_upper"` (IcePop); None: no weights'
    )
    rollout_is_batch_normalize: bool = option(False, "divide the weights by their mean")
    rollout_is_metrics: str = option(
        "before_limits",
        "what `rollout_is_mean` and its like are of; after_limits in releases with IcePop",
        "before_limits",
        "after_limits",
    )
    rollout_rs: str | None = specification(
        None,
        "rejection: token_k1 … k3, seq_sum_k1 … k3, seq_mean_k1 … k3, seq_max_k2, seq_max_k3, binary_kl, "
        "comma-separated",
    )
    rollout_rs_threshold: str | float | None = specification(
        None, 'bound of each criterion; for k1 `"lower_upper"` as ratios'
    )
    kl_penalty: str = option("kl", "estimator of the KL to the reference in the reward", *_ESTIMATORS)
    kl_loss_type: str = option("low_var_kl", "estimator of the KL to the reference in the loss", *_ESTIMATORS)
    clip_ratio_low: float = option(0.2, "ε below 1 of the policy loss")
    clip_ratio_high: float = option(0.2, "ε above 1 of the policy loss")
    clip_ratio_c: float = option(3.0, "dual-clip bound")


def _read(tokens: Tokens, options: Options) -> Reading:
    if not tokens.valid_BT.any():
        return Reading(_probabilities(tokens))
    metrics = {f"rollout_corr/{name}": value for name, value in _off_policy(tokens).items()}
    weights = mask = None
    if options.rollout_is is not None and options.rollout_is_threshold is not None:
        weights, logged = importance_weights(
            tokens.log_ratio_BT,
            tokens.mask_BT,
            level=options.rollout_is,
            threshold=options.rollout_is_threshold,
            batch_normalize=options.rollout_is_batch_normalize,
            after_limits=options.rollout_is_metrics == "after_limits",
        )
        metrics |= {f"rollout_corr/{name}": value for name, value in logged.items()}
    if options.rollout_rs is not None:
        mask, logged = rejection(tokens, criteria=options.rollout_rs, threshold=options.rollout_rs_threshold)
        metrics |= {f"rollout_corr/{name}": value for name, value in logged.items()}
    # Rejection replaces the mask of the batch: the loss that follows sees what is left.
    loss = _policy_loss(tokens, tokens.mask_BT if mask is None else mask, options)
    reference = _reference_kl(tokens, tokens.mask_BT if mask is None else mask, options)
    return Reading(metrics | _probabilities(tokens) | loss | reference, weights, mask)


def _off_policy(tokens: Tokens) -> dict[str, float]:
    """Diagnostics that verl always logs."""
    mask, log_ratio = tokens.mask_BT, tokens.log_ratio_BT
    sums_B = np.clip(selected_sum(log_ratio, mask), -SAFETY_BOUND, SAFETY_BOUND)
    return _perplexities(tokens) | {
        "kl": selected_mean(-log_ratio, mask),
        "k3_kl": selected_mean(naive_k3(log_ratio), mask),
        "chi2_token": selected_mean(np.square(clamped_exp(log_ratio)), mask) - 1.0,
        "chi2_seq": float(np.exp(2.0 * sums_B).mean() - 1.0),
    }


def _perplexities(tokens: Tokens) -> dict[str, float]:
    trainer_B, rollout_B = (selected_means(side, tokens.mask_BT) for side in (tokens.trainer_BT, tokens.rollout_BT))
    return perplexities(trainer_B, rollout_B)


def _probabilities(tokens: Tokens) -> dict[str, float]:
    """The older check, on probabilities; an empty mask gives NaN and valid = 0."""
    trainer, rollout = np.exp(tokens.trainer_BT[tokens.valid_BT]), np.exp(tokens.rollout_BT[tokens.valid_BT])
    difference = np.abs(trainer - rollout)
    some = bool(difference.size)
    return {
        "training/rollout_probs_diff_valid": float(some),
        "training/rollout_probs_diff_max": float(difference.max()) if some else float("nan"),
        "training/rollout_probs_diff_mean": float(difference.mean()) if some else float("nan"),
        "training/rollout_probs_diff_std": deviation(difference),
        "training/rollout_actor_probs_pearson_corr": pearson(trainer, rollout),
    }


def _policy_loss(tokens: Tokens, mask_BT: Floats, options: Options) -> dict[str, float]:
    """What the PPO loss logs, where its inputs are given."""
    if tokens.current_BT is None:
        return {}
    log_ratio = np.clip(tokens.current_BT - tokens.trainer_BT, -SAFETY_BOUND, SAFETY_BOUND)
    metrics = {"actor/ppo_kl": selected_mean(-log_ratio, mask_BT)}
    advantages = tokens.advantages_BT
    if advantages is None:
        return metrics
    ratio = np.exp(log_ratio)
    clipped = clipped_branch(ratio, advantages, options.clip_ratio_low, options.clip_ratio_high)
    limited = np.clip(ratio, 1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    loss = np.maximum(-advantages * ratio, -advantages * limited)
    lower = (loss > -advantages * options.clip_ratio_c) & (advantages < 0)
    return metrics | {
        "actor/pg_clipfrac": selected_mean(clipped, mask_BT),
        "actor/pg_clipfrac_lower": selected_mean(lower, mask_BT),
    }


def _reference_kl(tokens: Tokens, mask_BT: Floats, options: Options) -> dict[str, float]:
    """KL to the reference policy: of the old log-probs in the reward, of the current ones in the loss."""
    if tokens.reference_BT is None:
        return {}
    in_reward = _estimate(options.kl_penalty, tokens.trainer_BT, tokens.reference_BT)
    in_loss = _estimate(options.kl_loss_type, tokens.newest_BT, tokens.reference_BT)
    return {
        "actor/reward_kl_penalty": float(selected_means(in_reward, tokens.mask_BT).mean()),
        "actor/kl_loss": selected_mean(in_loss, mask_BT),
    }


def _estimate(kind: str, policy: Floats, reference: Floats) -> Floats:
    if kind in {"kl", "k1"}:
        return policy - reference
    if kind == "abs":
        return np.abs(policy - reference)
    if kind in {"mse", "k2"}:
        return np.square(policy - reference) / 2
    log_ratio = np.clip(reference - policy, -SAFETY_BOUND, SAFETY_BOUND)
    return np.clip(naive_k3(log_ratio), -_KL_BOUND, _KL_BOUND)


VERL: Final = Peer(
    name="verl",
    options=Options,
    read=_read,
    prefixes=("rollout_corr/", "training/", "actor/"),
    headline=(
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
        "rollout_corr/ppl_ratio",
        "rollout_corr/chi2_token",
        "training/rollout_probs_diff_mean",
        "training/rollout_actor_probs_pearson_corr",
    ),
)
