"""verl: ``rollout_corr/*``, ``training/rollout_probs_diff_*`` and the policy loss's ``actor/*``.

Formulas: verl/trainer/ppo/rollout_corr_helper.py, verl/utils/debug/metrics.py, verl/trainer/ppo/core_algos.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.located import instead
from logprobe.monitor.peers.batch import (
    EPSILON,
    NAN,
    SAFE,
    Array,
    Batch,
    Metrics,
    Option,
    Peer,
    Reading,
    clamp,
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

# KL to the reference policy, of log-ratio reference − policy.
_ESTIMATORS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "kl": np.negative,
    "k1": np.negative,
    "abs": np.abs,
    "mse": k2,
    "k2": k2,
    "low_var_kl": limited_k3,
    "k3": limited_k3,
}
_CRITERIA: Final = (
    *(f"{level}_{estimator}" for level in ("token", "seq_sum", "seq_mean") for estimator in ("k1", "k2", "k3")),
    *("seq_max_k2", "seq_max_k3", "binary_kl"),
)
_PROBABILITY: Final = 1e-6  # verl keeps probabilities this far from 0 and 1 before it takes logarithms of them


def _read(b: Batch, o: Any) -> Reading:
    if not b.valid.any():
        return Reading(_probabilities(b))
    metrics = mean_perplexities(b) | {
        "kl": b.mean(-b.d),
        "k3_kl": b.mean(k3(b.d)),
        "chi2_token": b.mean(np.square(safe_ratio(b.d))) - 1.0,
        "chi2_seq": float(np.exp(2.0 * clamp(b.sums(b.d))).mean() - 1.0),
    }
    weights, left = None, b
    if o.rollout_is is not None and o.rollout_is_threshold is not None:
        weights, logged = _weights(b, o)
        metrics |= prefixed("rollout_is_", logged)
    if o.rollout_rs is not None:
        mask, logged = _rejection(b, o)
        metrics |= prefixed("rollout_rs_", logged)
        left = replace(b, mask=mask)  # rejection replaces the mask of the batch: the loss sees what is left
    return Reading(prefixed("rollout_corr/", metrics) | _probabilities(b) | _loss(b, left, o), weights, left.mask)


def _probabilities(b: Batch) -> Metrics:
    """Return the older check, on probabilities [tokens]."""
    trainer, rollout = np.exp(b.trainer[b.valid]), np.exp(b.rollout[b.valid])
    difference = np.abs(trainer - rollout)
    metrics = {
        "probs_diff_valid": float(difference.size > 0),
        **prefixed("probs_diff_", statistics(difference, "max", "mean")),
        "probs_diff_std": deviation(difference),
        "actor_probs_pearson_corr": _pearson(trainer, rollout),
    }
    return prefixed("training/rollout_", metrics)


def _pearson(first: Array, second: Array) -> float:
    """Return the correlation, NaN for fewer than two values or a constant side."""
    if first.size <= 1:
        return NAN
    first, second = first - first.mean(), second - second.mean()
    scale = np.sqrt((first * first).sum()) * np.sqrt((second * second).sum())
    return float(np.clip((first * second).sum() / scale, -1.0, 1.0))


def _loss(b: Batch, left: Batch, o: Any) -> Metrics:
    """Return the keys of the policy loss; `left` has the tokens that rejection leaves."""
    metrics = {}
    if b.current is not None:
        log_ratio = clamp(b.current - b.trainer)
        metrics["actor/ppo_kl"] = left.mean(-log_ratio)
        if b.advantages is not None:
            ratio, gain = np.exp(log_ratio), b.advantages
            low, high = o.clip_ratio_low, o.clip_ratio_high
            loss = np.maximum(-gain * ratio, -gain * np.clip(ratio, 1 - low, 1 + high))
            metrics["actor/pg_clipfrac"] = left.mean(clipped(ratio, gain, low, high))
            metrics["actor/pg_clipfrac_lower"] = left.mean((loss > -gain * o.clip_ratio_c) & (gain < 0))
    if b.reference is not None:  # of the old log-probs in the reward, of the current ones in the loss
        in_reward, in_loss = _ESTIMATORS[o.kl_penalty], _ESTIMATORS[o.kl_loss_type]
        metrics["actor/reward_kl_penalty"] = float(b.means(in_reward(b.reference - b.trainer)).mean())
        metrics["actor/kl_loss"] = left.mean(in_loss(b.reference - b.newest))
    return metrics


def _weights(b: Batch, o: Any) -> tuple[Array, Metrics]:
    """Return the weights, and what is logged of them: of the applied weights, or of those before truncation."""
    low, upper = _limits("rollout_is_threshold", str(o.rollout_is_threshold))
    if low is not None and low > upper:
        raise ConfigurationError(
            f"verl: rollout_is_threshold={o.rollout_is_threshold!r}; the lower bound is above the upper"
        )
    lower = 1.0 / upper if low is None else low
    by_token = o.rollout_is == "token"
    log_ratio = b.d if by_token else b.sums(b.d)
    raw = safe_ratio(log_ratio) * b.mask
    applied = np.minimum(raw, upper) if low is None else np.where(inside(raw, lower, upper), raw, 0.0)
    after = low is not None or o.rollout_is_metrics == "after_limits"
    measured = applied if after else raw
    limited = np.clip(measured, 0.0 if after else lower, upper)
    raw_means = b.means(raw)
    metrics = {
        "mean": b.mean(measured),
        # Extremes and shares: of the weights per token, of the unclamped log-ratios per sequence.
        "max": float(measured[b.valid].max() if by_token else np.exp(np.minimum(log_ratio.max(), SAFE))),
        "min": float(measured[b.valid].min() if by_token else np.exp(log_ratio.min())),
        "ratio_fraction_high": b.mean(raw > upper) if by_token else float((log_ratio > math.log(upper)).mean()),
        "ratio_fraction_low": b.mean(raw < lower) if by_token else float((log_ratio < math.log(lower)).mean()),
        "std": _spread(b, limited),
        "eff_sample_size": float(np.divide(1.0, b.mean(np.square(limited / (b.mean(limited) + EPSILON))))),
        **_of_sequences(b.means(measured), identity=1.0),
        "seq_fraction_high": float((raw_means > upper).mean()),
        "seq_fraction_low": float((raw_means < lower).mean()),
    }
    if low is not None:
        metrics["oob_ratio"] = b.mean((raw < lower) | (raw > upper))
    if o.rollout_is_batch_normalize:
        mean = b.mean(applied) if by_token else float(b.means(applied)[b.filled].mean())
        metrics["batch_norm_factor"] = mean if mean > EPSILON else 1.0
        applied = applied / metrics["batch_norm_factor"]
    return applied, metrics


def _spread(b: Batch, values: Array) -> float:
    """Return √(E[x²] − E[x]²), 0 for a single token."""
    if b.mask.sum() <= 1:
        return 0.0
    return float(np.sqrt(np.maximum(b.mean(np.square(values)) - b.mean(values) ** 2, 0.0)))


def _of_sequences(values: Array, *, identity: float) -> Metrics:
    return prefixed("seq_", statistics(values, "mean", "max", "min")) | {
        "seq_std": deviation(values) if values.size > 1 else 0.0,
        "seq_max_deviation": float(np.abs(values - identity).max()),
    }


def _limits(option: str, text: str) -> tuple[float | None, float]:
    """Return the bounds that ``upper`` or ``lower_upper`` gives."""
    lower, separator, upper = text.rpartition("_")
    return _positive(option, lower) if separator else None, _positive(option, upper)


def _positive(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = NAN
    if not number > 0:
        raise ConfigurationError(f"verl: {option}: {text!r} is not a number above 0")
    return number


def _rejection(b: Batch, o: Any) -> tuple[Array, Metrics]:
    """Return the mask after rejection, and what is logged of each criterion; all of them must hold."""
    keep = np.ones(b.mask.shape, np.bool_)
    metrics: Metrics = {}
    for name, bounds in _bounds(str(o.rollout_rs), o.rollout_rs_threshold).items():
        kept, logged = _criterion(b, name, *bounds)
        keep &= kept
        metrics |= prefixed(f"{name}_", logged)
    metrics["masked_fraction"] = b.mean(~keep)
    metrics["seq_masked_fraction"] = float((~keep & b.valid).any(axis=-1).mean())
    return b.mask * keep, metrics


def _bounds(criteria: str, threshold: Any) -> dict[str, tuple[float | None, float]]:
    """Return the bounds of each criterion on its divergence."""
    names = list(dict.fromkeys(part.strip() for part in criteria.split(",") if part.strip()))
    for name in names:
        if name not in _CRITERIA:
            raise ConfigurationError(f"verl: rollout_rs has no criterion {name!r}; {instead(name, _CRITERIA)}")
    texts = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if threshold is None or len(texts) not in {1, len(names)}:
        raise ConfigurationError(
            f"verl: rollout_rs_threshold={threshold!r}; give one bound, or one for each of {', '.join(names)}"
        )
    return {name: _bound(name, texts[at % len(texts)]) for at, name in enumerate(names)}


def _bound(name: str, text: str) -> tuple[float | None, float]:
    """Return bounds on a divergence. k1's are written as ratios; −d is held against their logarithms."""
    if not name.endswith("k1"):
        return None, _positive("rollout_rs_threshold", text)
    low, high = _limits("rollout_rs_threshold", text)
    return math.log(1.0 / high if low is None else low), math.log(high)


def _criterion(b: Batch, name: str, lower: float | None, upper: float) -> tuple[Array, Metrics]:
    """Return where a criterion holds, and what is logged of it."""
    level, _, estimator = name.rpartition("_")
    by_token = level in {"token", "binary"}
    tokens = _binary_kl(b) if level == "binary" else _divergence(estimator, clamp(b.d))
    per_sequence = {"seq_sum": b.sums, "seq_max": b.highest}.get(level, b.means)(tokens)
    values, sequences = tokens if by_token else per_sequence, per_sequence[b.filled]
    subject = tokens[b.valid] if by_token else sequences
    keep = values <= upper if lower is None else inside(values, lower, upper)
    rejected = ~keep & b.valid
    metrics = {
        "mean": b.mean(values),
        **statistics(subject, "max", "min"),
        "fraction_high": float((subject > upper).mean()),
        "fraction_low": 0.0 if lower is None else float((subject < lower).mean()),
        "std": _spread(b, np.clip(values, 0.0 if lower is None else lower, upper)),
        **_of_sequences(sequences, identity=0.0),
        "seq_fraction_high": float((sequences > upper).mean()),
        "masked_fraction": b.mean(rejected),
        "seq_masked_fraction": float(np.asarray(rejected.any(axis=-1, keepdims=True))[b.filled].mean()),
    }
    if lower is not None:
        metrics["seq_fraction_low"] = float((sequences < lower).mean())
    return keep, metrics


def _divergence(estimator: str, log_ratio: Array) -> Array:
    if estimator == "k1":
        return -log_ratio
    return k2(log_ratio) if estimator == "k2" else np.exp(log_ratio) - 1.0 - log_ratio


def _binary_kl(b: Batch) -> Array:
    """Return the larger of both KLs between "this token" and "any other", by trainer and by engine."""
    t, r = (np.clip(np.exp(side), _PROBABILITY, 1.0 - _PROBABILITY) for side in (b.trainer, b.rollout))
    chosen, other = np.log(t / r), np.log((1.0 - t) / (1.0 - r))
    return np.asarray(np.maximum(t * chosen + (1.0 - t) * other, -r * chosen - (1.0 - r) * other))


VERL: Final = Peer(
    "verl",
    _read,
    prefixes=("rollout_corr/", "training/", "actor/"),
    headline=(
        *("rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/ppl_ratio", "rollout_corr/chi2_token"),
        *("training/rollout_probs_diff_mean", "training/rollout_actor_probs_pearson_corr"),
    ),
    options={
        "rollout_is": Option(None, "level of the importance weights", (None, "token", "sequence")),
        "rollout_is_threshold": Option(2.0, 'upper bound (TIS), or `"lower_upper"` (IcePop); None: none', text=True),
        "rollout_is_batch_normalize": Option(False, "divide the weights by their mean"),
        "rollout_is_metrics": Option(
            "before_limits", "weights of `rollout_is_*`; after_limits since IcePop", ("before_limits", "after_limits")
        ),
        "rollout_rs": Option(None, f"rejection, comma-separated: {', '.join(_CRITERIA)}", text=True),
        "rollout_rs_threshold": Option(None, 'bound of each criterion; for k1 `"lower_upper"` as ratios', text=True),
        "kl_penalty": Option("kl", "estimator of the KL to the reference in the reward", tuple(_ESTIMATORS)),
        "kl_loss_type": Option("low_var_kl", "estimator of the KL to the reference in the loss", tuple(_ESTIMATORS)),
        "clip_ratio_low": Option(0.2, "ε below 1 of the policy loss"),
        "clip_ratio_high": Option(0.2, "ε above 1 of the policy loss"),
        "clip_ratio_c": Option(3.0, "dual-clip bound"),
    },
    selects=True,
    epsilon=EPSILON,
)
