"""verl's importance weights (TIS, IcePop) and rejection by divergence.

Dimensions: ``_BT`` padded batch × time, ``_B`` one value per sequence.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.peer import SAFETY_BOUND, Floats, Tokens, clamped_exp, deviation, suggestion

_EPSILON: Final = 1e-8  # verl adds it to every denominator
_CRITERIA: Final = (
    *(f"{level}_{estimator}" for level in ("token", "seq_sum", "seq_mean") for estimator in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
    "binary_kl",
)
_PROBABILITY: Final = 1e-6  # verl keeps probabilities this far from 0 and 1 before it takes logarithms of them
_Bools = NDArray[np.bool_]


def selected_sum(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Σ of each sequence's tokens under the mask [B]; what stands elsewhere has no effect, NaN included."""
    return np.asarray((np.where(mask_BT > 0, values_BT, 0.0) * mask_BT).sum(axis=-1))


def selected_means(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Mean of each sequence [B], 0 for an empty one."""
    return np.asarray(selected_sum(values_BT, mask_BT) / (mask_BT.sum(axis=-1) + _EPSILON))


def selected_mean(values_BT: Floats | _Bools, mask_BT: Floats) -> float:
    """Mean over all tokens under the mask."""
    return float((np.where(mask_BT > 0, values_BT, 0.0) * mask_BT).sum() / (mask_BT.sum() + _EPSILON))


# --- Importance weights ---


class _Weights(NamedTuple):
    """Weights before and after the limits [B, T], and the log-ratios [B, T] or [B] they come from."""

    raw_BT: Floats
    applied_BT: Floats
    log_ratio: Floats
    lower: float
    upper: float
    after_limits: bool  # whether mean, spread and sequence means are of the applied weights

    @property
    def measured_BT(self) -> Floats:
        return self.applied_BT if self.after_limits else self.raw_BT


def importance_weights(
    log_ratio_BT: Floats, mask_BT: Floats, *, level: str, threshold: Any, batch_normalize: bool, after_limits: bool
) -> tuple[Floats, dict[str, float]]:
    """Weights [B, T] that multiply the loss, and what verl logs of them: ``rollout_is_*``.

    Args:
        log_ratio_BT: t − r.
        mask_BT: 1 where a token counts.
        level: ``token`` or ``sequence`` (product of the tokens' ratios).
        threshold: upper bound (TIS), or ``"lower_upper"`` (IcePop: 0 outside).
        batch_normalize: divide by the mean weight.
        after_limits: log the applied weights, as releases with IcePop do; else those before truncation.

    Raises:
        ConfigurationError: a threshold that is not a number above 0.
    """
    lower, upper = _limits(threshold)
    log_ratio = log_ratio_BT if level == "token" else selected_sum(log_ratio_BT, mask_BT)
    shaped = log_ratio if level == "token" else np.broadcast_to(log_ratio[:, None], log_ratio_BT.shape)
    raw = clamped_exp(shaped) * mask_BT
    if lower is None:
        weights = _Weights(raw, np.minimum(raw, upper), log_ratio, 1.0 / upper, upper, after_limits)
    else:
        applied = np.where((raw >= lower) & (raw <= upper), raw, 0.0)
        weights = _Weights(raw, applied, log_ratio, lower, upper, after_limits=True)
    metrics = _level_metrics(weights, mask_BT, level) | _spread(weights, mask_BT) | _sequence_weights(weights, mask_BT)
    if lower is not None:
        outside = (weights.raw_BT < weights.lower) | (weights.raw_BT > weights.upper)
        metrics["rollout_is_oob_ratio"] = selected_mean(outside, mask_BT)
    applied = weights.applied_BT
    if batch_normalize:
        mean = _normalizer(applied, mask_BT, level)
        usable = mean > _EPSILON
        applied = applied / mean if usable else applied
        metrics["rollout_is_batch_norm_factor"] = mean if usable else 1.0
    return applied, metrics


def _limits(threshold: Any) -> tuple[float | None, float]:
    lower, separator, upper = str(threshold).rpartition("_")
    limits = (_positive("rollout_is_threshold", lower) if separator else None, _positive("rollout_is_threshold", upper))
    if limits[0] is not None and limits[0] > limits[1]:
        raise ConfigurationError(f"verl: rollout_is_threshold={threshold!r}; the lower bound is above the upper")
    return limits


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise ConfigurationError(f"verl: {name}: {text!r} is not a number above 0")
    return number


def _level_metrics(weights: _Weights, mask_BT: Floats, level: str) -> dict[str, float]:
    """Extremes and fractions: of the weights per token, of the unclamped log-ratios per sequence."""
    valid = mask_BT > 0
    mean = selected_mean(weights.measured_BT, mask_BT)
    if level == "token":
        return {
            "rollout_is_mean": mean,
            "rollout_is_max": float(weights.measured_BT[valid].max()),
            "rollout_is_min": float(weights.measured_BT[valid].min()),
            "rollout_is_ratio_fraction_high": selected_mean(weights.raw_BT > weights.upper, mask_BT),
            "rollout_is_ratio_fraction_low": selected_mean(weights.raw_BT < weights.lower, mask_BT),
        }
    return {
        "rollout_is_mean": mean,
        "rollout_is_max": float(np.exp(np.minimum(weights.log_ratio.max(), SAFETY_BOUND))),
        "rollout_is_min": float(np.exp(weights.log_ratio.min())),
        "rollout_is_ratio_fraction_high": float((weights.log_ratio > math.log(weights.upper)).mean()),
        "rollout_is_ratio_fraction_low": float((weights.log_ratio < math.log(weights.lower)).mean()),
    }


def _spread(weights: _Weights, mask_BT: Floats) -> dict[str, float]:
    limited = np.clip(weights.measured_BT, 0.0 if weights.after_limits else weights.lower, weights.upper)
    mean = selected_mean(limited, mask_BT)
    normalized = limited / (mean + _EPSILON)
    squared = np.asarray(selected_mean(np.square(normalized), mask_BT))
    return {
        "rollout_is_std": _deviation(limited, mask_BT),
        "rollout_is_eff_sample_size": float(np.divide(1.0, squared)),
    }


def _deviation(values_BT: Floats, mask_BT: Floats) -> float:
    """√(E[x²] − E[x]²), 0 for a single token."""
    if mask_BT.sum() <= 1:
        return 0.0
    variance = selected_mean(np.square(values_BT), mask_BT) - selected_mean(values_BT, mask_BT) ** 2
    return float(np.sqrt(np.maximum(variance, 0.0)))


def _sequence_weights(weights: _Weights, mask_BT: Floats) -> dict[str, float]:
    """Of each sequence's mean weight; an empty sequence counts with 0."""
    means_B, raw_B = selected_means(weights.measured_BT, mask_BT), selected_means(weights.raw_BT, mask_BT)
    return {
        "rollout_is_seq_mean": float(means_B.mean()),
        "rollout_is_seq_std": _seq_deviation(means_B),
        "rollout_is_seq_max": float(means_B.max()),
        "rollout_is_seq_min": float(means_B.min()),
        "rollout_is_seq_max_deviation": float(np.abs(means_B - 1.0).max()),
        "rollout_is_seq_fraction_high": float((raw_B > weights.upper).mean()),
        "rollout_is_seq_fraction_low": float((raw_B < weights.lower).mean()),
    }


def _seq_deviation(values_B: Floats) -> float:
    return deviation(values_B) if values_B.size > 1 else 0.0


def _normalizer(weights_BT: Floats, mask_BT: Floats, level: str) -> float:
    if level == "token":
        return selected_mean(weights_BT, mask_BT)
    return float(selected_means(weights_BT, mask_BT)[mask_BT.sum(axis=-1) > 0].mean())


# --- Rejection ---


class _Criterion(NamedTuple):
    """One divergence per token, or per sequence and repeated over its tokens, and its bounds."""

    name: str
    values_BT: Floats
    sequences: Floats  # of the sequences that are not empty
    lower: float | None
    upper: float

    @property
    def keep_BT(self) -> _Bools:
        inside = self.values_BT <= self.upper
        return inside if self.lower is None else inside & (self.values_BT >= self.lower)

    @property
    def per_token(self) -> bool:
        return self.name.startswith("token") or self.name == "binary_kl"


def rejection(tokens: Tokens, *, criteria: str, threshold: Any) -> tuple[Floats, dict[str, float]]:
    """The mask after rejection [B, T], and what verl logs of it: ``rollout_rs_*``.

    Args:
        tokens: the batch; its log-ratios are clamped to ±20 here.
        criteria: ``token_k1`` and the like, comma-separated; all must hold.
        threshold: one per criterion, or one for all: an upper bound, or for k1 ``"lower_upper"`` as ratios.

    Raises:
        ConfigurationError: an unknown criterion, or a threshold that does not fit it.
    """
    names = _criterion_names(criteria)
    mask_BT, valid = tokens.mask_BT, tokens.valid_BT
    keep = np.ones(mask_BT.shape, np.bool_)
    metrics: dict[str, float] = {}
    for name, bounds in zip(names, _bounds(names, threshold), strict=True):
        criterion = _criterion(name, tokens, *bounds)
        metrics |= _criterion_metrics(criterion, mask_BT)
        keep &= criterion.keep_BT
    metrics["rollout_rs_masked_fraction"] = selected_mean(~keep, mask_BT)
    metrics["rollout_rs_seq_masked_fraction"] = float((~keep & valid).any(axis=-1).mean())
    return mask_BT * keep, metrics


def _criterion_names(criteria: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in str(criteria).split(",") if part.strip()))
    for name in names:
        if name not in _CRITERIA:
            raise ConfigurationError(f"verl: rollout_rs has no criterion {name!r}{suggestion(name, _CRITERIA)}")
    return names


def _bounds(names: list[str], threshold: Any) -> list[tuple[float | None, float]]:
    texts = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if threshold is None or len(texts) not in {1, len(names)}:
        raise ConfigurationError(
            f"verl: rollout_rs_threshold={threshold!r}; give one bound, or one for each of {', '.join(names)}"
        )
    return [_bound(name, text) for name, text in zip(names, texts * (len(names) // len(texts)), strict=True)]


def _bound(name: str, text: str) -> tuple[float | None, float]:
    """Bounds on a divergence. k1's are written as ratios; −d is held against their logarithms."""
    lower, separator, upper = text.rpartition("_")
    if not name.endswith("k1"):
        return None, _positive("rollout_rs_threshold", text)
    high = _positive("rollout_rs_threshold", upper)
    low = _positive("rollout_rs_threshold", lower) if separator else 1.0 / high
    return math.log(low), math.log(high)


def _criterion(name: str, tokens: Tokens, lower: float | None, upper: float) -> _Criterion:
    level, _, estimator = name.rpartition("_")
    mask_BT = tokens.mask_BT
    tokens_BT = _divergence(estimator, tokens)
    sequences_B = _per_sequence(level, tokens_BT, mask_BT)
    per_token = level in {"token", "binary"}
    values_BT = tokens_BT if per_token else np.broadcast_to(sequences_B[:, None], mask_BT.shape)
    return _Criterion(name, values_BT, sequences_B[mask_BT.sum(axis=-1) > 0], lower, upper)


def _divergence(estimator: str, tokens: Tokens) -> Floats:
    if estimator == "kl":
        return _binary_kl(tokens)
    safe = np.clip(tokens.log_ratio_BT, -SAFETY_BOUND, SAFETY_BOUND)
    if estimator == "k1":
        return -safe
    return 0.5 * np.square(safe) if estimator == "k2" else np.exp(safe) - 1.0 - safe


def _binary_kl(tokens: Tokens) -> Floats:
    """The larger of both KLs between "this token" and "any other", by trainer and by engine."""
    trainer, rollout = (
        np.clip(np.exp(side), _PROBABILITY, 1.0 - _PROBABILITY) for side in (tokens.trainer_BT, tokens.rollout_BT)
    )
    chosen, other = np.log(trainer / rollout), np.log((1.0 - trainer) / (1.0 - rollout))
    forward, backward = trainer * chosen + (1.0 - trainer) * other, -rollout * chosen - (1.0 - rollout) * other
    return np.asarray(np.maximum(forward, backward))


def _per_sequence(level: str, values_BT: Floats, mask_BT: Floats) -> Floats:
    if level == "seq_sum":
        return selected_sum(values_BT, mask_BT)
    if level == "seq_max":
        highest = np.where(mask_BT > 0, values_BT, -np.inf).max(axis=-1)
        return np.where(highest == -np.inf, 0.0, highest)
    return selected_means(values_BT, mask_BT)


def _criterion_metrics(criterion: _Criterion, mask_BT: Floats) -> dict[str, float]:
    prefix = f"rollout_rs_{criterion.name}"
    valid = mask_BT > 0
    floor = 0.0 if criterion.lower is None else criterion.lower
    sequences = criterion.sequences
    subject = criterion.values_BT[valid] if criterion.per_token else sequences
    rejected = ~criterion.keep_BT & valid
    metrics = {
        "mean": selected_mean(criterion.values_BT, mask_BT),
        "max": float(subject.max()),
        "min": float(subject.min()),
        "fraction_high": float((subject > criterion.upper).mean()),
        "fraction_low": 0.0 if criterion.lower is None else float((subject < criterion.lower).mean()),
        "std": _deviation(np.clip(criterion.values_BT, floor, criterion.upper), mask_BT),
        "seq_mean": float(sequences.mean()),
        "seq_std": _seq_deviation(sequences),
        "seq_max": float(sequences.max()),
        "seq_min": float(sequences.min()),
        "seq_max_deviation": float(np.abs(sequences).max()),
        "seq_fraction_high": float((sequences > criterion.upper).mean()),
        "masked_fraction": selected_mean(rejected, mask_BT),
        "seq_masked_fraction": float(np.asarray(rejected.any(axis=-1))[valid.any(axis=-1)].mean()),
    }
    if criterion.lower is not None:
        metrics["seq_fraction_low"] = float((sequences < criterion.lower).mean())
    return {f"{prefix}_{name}": value for name, value in metrics.items()}
