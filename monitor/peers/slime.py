"""slime: ``train/mis_*`` of its mismatch helper and what its policy loss logs.

Formulas: examples/train_infer_mismatch_helper/mis.py, slime/backends/megatron_utils/loss.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.batch import (
    EPSILON,
    Array,
    Batch,
    Option,
    Peer,
    Reading,
    clipped,
    inside,
    k2,
    k3,
    perplexities,
    prefixed,
    safe_ratio,
)

_LEVELS: Final = ("token", "sequence", "geometric")


def _read(b: Batch, o: Any) -> Reading:
    logged: dict[str, Array] = {}  # values of tokens or sequences: slime averages them where it logs them
    weights, mask = None, b.mask
    if o.custom_tis_function:
        logged = perplexities(b) | {
            "kl": -b.d,
            "k3_kl": k3(b.d),
            "chi2_token": b.means(np.square(safe_ratio(b.d))) - 1.0,
            "chi2_seq": np.square(safe_ratio(b.sums(b.d))) - 1.0,
        }
        if o.use_tis:
            weights, mask, corrected = _correction(b, o)
            logged |= corrected
        logged = prefixed("mis_", logged)
    elif o.use_tis:
        ratio = np.exp(b.d)
        weights = np.clip(ratio, o.tis_clip_low, o.tis_clip)
        logged = {"tis": ratio, "tis_clipfrac": weights != ratio, "tis_abs": np.abs(ratio - 1.0)}
    if b.current is not None:
        logged["ois"] = np.exp(b.current - b.trainer)
    # What it logs of a correction is under the mask before rejection, what its loss logs under the one after.
    metrics = {name: _mean(b, b.mask, values, o) for name, values in logged.items()}
    metrics |= {name: _mean(b, mask, values, o) for name, values in _loss(b, o).items()}
    return Reading(prefixed("train/", metrics), weights, mask)


def _mean(b: Batch, mask: Array, values: Array, o: Any) -> float:
    """Return the mean over sequences of their means, or over tokens, at least one of each sequence."""
    masked = replace(b, mask=mask)
    if o.calculate_per_token_loss:
        return float(masked.sums(values).sum() / np.maximum(b.mask.sum(axis=-1), 1.0).sum())
    return float(masked.means(values).mean())


def _ratio(b: Batch, level: str) -> Array:
    return safe_ratio({"token": b.d, "sequence": b.sums(b.d), "geometric": b.means(b.d)}[level])


def _correction(b: Batch, o: Any) -> tuple[Array, Array, dict[str, Array]]:
    """Return weights and mask after truncation and rejection, and what is logged of them."""
    raw, upper = _ratio(b, o.tis_level), o.tis_upper_bound
    lower = 1.0 / upper if o.tis_lower_bound is None else o.tis_lower_bound
    mask, logged = b.mask, {"tis_weight_before_bound": raw}
    if o.tis_mode == "truncate":
        weights = np.clip(raw, 0.0, upper) * b.mask
        logged["tis_truncate_fraction"] = raw > upper
    else:
        weights = (np.clip(raw, lower, upper) if o.tis_mode == "clip" else raw) * b.mask
        mask = mask if o.tis_mode == "clip" else mask * inside(raw, lower, upper)
        logged |= {f"tis_{o.tis_mode}_fraction_low": raw < lower, f"tis_{o.tis_mode}_fraction_high": raw > upper}
    logged["tis_weight_after_bound"] = weights
    if o.use_rs:
        mask, rejected = _rejection(b, mask, lower, o)
        logged |= rejected
    logged["is_ratio_mean_after_tis_rs"] = weights
    if o.tis_batch_normalize:
        logged["batch_norm_factor"] = _normalizer(b, weights, o.tis_level)
        weights = weights / logged["batch_norm_factor"]
    logged["is_ratio_mean_final"] = b.means(weights)
    logged["is_ratio_min_final"] = -b.highest(-weights)
    logged["is_ratio_max_final"] = b.highest(weights)
    return weights, mask, logged


def _normalizer(b: Batch, weights: Array, level: str) -> Array:
    """Return the mean weight, 1 if it is 0. slime has no such mean for geometric weights."""
    if level == "geometric":
        raise ConfigurationError("slime: tis_batch_normalize goes with tis_level token or sequence, not geometric")
    mean = b.sums(weights).sum() / np.maximum(b.mask.sum(), 1.0) if level == "token" else b.means(weights).mean()
    return np.full_like(b.mask, mean if mean > EPSILON else 1.0)


def _rejection(b: Batch, mask: Array, tis_lower: float, o: Any) -> tuple[Array, dict[str, Array]]:
    raw = _ratio(b, o.rs_level or o.tis_level)
    lower = tis_lower if o.rs_lower_bound is None else o.rs_lower_bound
    upper = o.tis_upper_bound if o.rs_upper_bound is None else o.rs_upper_bound
    logged = {"rs_mask_fraction_low": raw < lower, "rs_mask_fraction_high": raw > upper}
    mask = mask * inside(raw, lower, upper)
    if o.rs_veto_threshold is not None:
        catastrophic = (b.d < np.log(o.rs_veto_threshold)) & b.valid
        hit = catastrophic.any(axis=-1, keepdims=True)
        logged |= {"rs_catastrophic_token_fraction": catastrophic, "rs_catastrophic_seq_fraction": hit}
        mask = mask * ~hit
    if o.rs_trust_region is not None:
        if o.rs_tr_threshold is None:
            raise ConfigurationError("slime: rs_trust_region needs rs_tr_threshold")
        divergence = b.highest(k2(b.d)) if o.rs_trust_region == "max" else b.means(k3(-b.d))
        keep = divergence <= o.rs_tr_threshold
        logged |= {"rs_trust_region_metric": divergence, "rs_trust_region_reject_fraction": ~keep}
        mask = mask * keep
    return mask, logged


def _loss(b: Batch, o: Any) -> dict[str, Array]:
    logged = {"train_rollout_logprob_abs_diff": np.abs(b.d)}
    if b.current is not None:
        logged["ppo_kl"] = b.trainer - b.current
        if b.advantages is not None:
            ratio = np.exp(b.current - b.trainer)
            logged["pg_clipfrac"] = clipped(ratio, b.advantages, o.eps_clip, o.eps_clip_high)
    return logged


SLIME: Final = Peer(
    "slime",
    _read,
    prefixes=("train/mis_", "train/"),
    headline=(
        *("train/mis_kl", "train/mis_k3_kl", "train/mis_ppl_ratio", "train/mis_chi2_token"),
        "train/train_rollout_logprob_abs_diff",
    ),
    options={
        "use_tis": Option(False, "apply importance weights; without: diagnostics only"),
        "tis_level": Option("token", "level of the weights", _LEVELS),
        "tis_mode": Option("truncate", "what happens beyond the bounds", ("truncate", "clip", "mask")),
        "tis_lower_bound": Option(0.5, "lower bound; None: 1 / upper"),
        "tis_upper_bound": Option(2.0, "upper bound", positive=True),
        "tis_batch_normalize": Option(False, "divide the weights by their mean"),
        "use_rs": Option(False, "reject outliers; needs use_tis, as in slime"),
        "rs_level": Option(None, "level of rejection; None: tis_level", (None, *_LEVELS)),
        "rs_lower_bound": Option(None, "lower bound of rejection; None: that of tis"),
        "rs_upper_bound": Option(None, "upper bound of rejection; None: that of tis", positive=True),
        "rs_veto_threshold": Option(None, "reject sequences with a token whose ratio is below", positive=True),
        "rs_trust_region": Option(None, "reject sequences by k2 max or k3 avg", (None, "max", "avg")),
        "rs_tr_threshold": Option(None, "bound of rs_trust_region", positive=True),
        "custom_tis_function": Option(True, "the mismatch helper; False: slime's built-in TIS (`train/tis*`)"),
        "tis_clip": Option(2.0, "upper bound of the built-in TIS", positive=True),
        "tis_clip_low": Option(0.0, "lower bound of the built-in TIS"),
        "calculate_per_token_loss": Option(False, "average over all tokens, not over sequences"),
        "eps_clip": Option(0.2, "ε below 1 of the policy loss"),
        "eps_clip_high": Option(0.2, "ε above 1 of the policy loss"),
    },
)
