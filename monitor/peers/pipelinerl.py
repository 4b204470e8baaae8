"""PipelineRL: ``rl/*``, of the policy being trained against the one that sampled ("new" against "old").

Formulas: pipelinerl/finetune/rl/__init__.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.peers.peer import CommonOptions, Floats, Peer, Reading, Tokens, naive_k3, option, product_means


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in PipelineRL's ``finetune.rl``."""

    policy_loss: str = option("ppo", "objective", "ppo", "reinforce", "gspo")
    epsilon_low: float = option(0.2, "bound of the ratio below 1")
    epsilon_high: float = option(0.2, "bound of the ratio above 1")


def _read(tokens: Tokens, options: Options) -> Reading:
    if not tokens.valid_BT.any():
        return Reading({})
    log_ratio = tokens.newest_BT - tokens.rollout_BT
    ratio = np.exp(log_ratio)
    clamped = _clamped(tokens, ratio, log_ratio, options)
    # The REINFORCE objective overwrites its ratio with the truncated one before it is logged.
    logged = np.clip(ratio, 0.0, 1 + options.epsilon_high) if options.policy_loss == "reinforce" else ratio
    total, squares = (float(_filled_sum(values, tokens).sum()) for values in (logged, np.square(logged)))
    metrics = {
        "kl_new_old": _sequence_mean(naive_k3(log_ratio), tokens),
        "mean_abs_log_ratio_new_old": _sequence_mean(np.abs(log_ratio), tokens),
        "ratio_new_old": _sequence_mean(logged, tokens),
        "clamp_log_ratio_new_old_indicator": _sequence_mean(clamped, tokens),
        "ratio_new_old_sum": total,
        "ratio_new_old_squared_sum": squares,
        "ess": float(np.divide(total * total, squares * tokens.mask_BT.sum())),
        "old_logprobs": _sequence_mean(tokens.rollout_BT, tokens),
        "new_logprobs": _sequence_mean(tokens.newest_BT, tokens),
    }
    return Reading({f"rl/{name}": value for name, value in metrics.items()})


def _filled_sum(values_BT: Floats, tokens: Tokens) -> Floats:
    """Σ of each sequence's tokens [B]; PipelineRL takes NaN as 0 and an infinity as the largest number there is."""
    return np.asarray(np.nan_to_num(values_BT * tokens.mask_BT).sum(axis=-1))


def _sequence_mean(values_BT: Floats, tokens: Tokens) -> float:
    """Mean over all sequences, empty ones as 0, of their means."""
    lengths_B1 = np.maximum(tokens.mask_BT.sum(axis=-1, keepdims=True), 1.0)
    return float(_filled_sum(values_BT / lengths_B1, tokens).mean())


def _clamped(tokens: Tokens, ratio_BT: Floats, log_ratio_BT: Floats, options: Options) -> Floats:
    """Whether the objective clamps a token's ratio, or its sequence's (GSPO) [B, T]."""
    lower, upper = 1 - options.epsilon_low, 1 + options.epsilon_high
    if options.policy_loss == "reinforce":
        return np.asarray(ratio_BT > upper, ratio_BT.dtype)
    if options.policy_loss == "gspo":
        sequences_B = np.exp(product_means(np.where(tokens.valid_BT, log_ratio_BT, 0.0), tokens.mask_BT))
        ratio_BT = np.broadcast_to(sequences_B[:, None], log_ratio_BT.shape)
    return np.asarray(np.clip(ratio_BT, lower, upper) != ratio_BT, ratio_BT.dtype)


PIPELINERL: Final = Peer(
    name="pipelinerl",
    options=Options,
    read=_read,
    prefixes=("rl/",),
    headline=(
        "rl/kl_new_old",
        "rl/ratio_new_old",
        "rl/clamp_log_ratio_new_old_indicator",
        "rl/ess",
    ),
)
