"""slime: ``train/mis_*`` of its mismatch helper, ``train/tis*`` without it, and the policy loss's own keys.

Formulas: examples/train_infer_mismatch_helper/mis.py, slime/backends/megatron_utils/loss.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.peer import (
    CommonOptions,
    Floats,
    Peer,
    Reading,
    Tokens,
    bound,
    clamped_exp,
    clipped_branch,
    naive_k3,
    option,
    product_means,
    product_sum,
)

_LEVELS: Final = ("token", "sequence", "geometric")


@dataclass(frozen=True)
class Options(CommonOptions):
    """Names as in slime's arguments and the configuration of its mismatch helper."""

    use_tis: bool = option(False, "apply importance weights; without: diagnostics only")
    tis_level: str = option("token", "level of the weights", *_LEVELS)
    tis_mode: str = option("truncate", "what happens beyond the bounds", "truncate", "clip", "mask")
    tis_lower_bound: float | None = option(0.5, "lower bound; None: 1 / upper")
    tis_upper_bound: float = bound(2.0, "upper bound")
    tis_batch_normalize: bool = option(False, "divide the weights by their mean")
    use_rs: bool = option(False, "reject outliers; needs use_tis, as in slime")
    rs_level: str | None = option(None, "level of rejection; None: tis_level", None, *_LEVELS)
    rs_lower_bound: float | None = option(None, "lower bound of rejection; None: that of tis")
    rs_upper_bound: float | None = bound(None, "upper bound of rejection; None: that of tis")
    rs_veto_threshold: float | None = bound(None, "reject sequences with a token whose ratio is below")
    rs_trust_region: str | None = option(None, "reject sequences by k2 max or k3 avg", None, "max", "avg")
    rs_tr_threshold: float | None = bound(None, "bound of rs_trust_region")
    custom_tis_function: bool = option(True, "the mismatch helper; False: slime's built-in TIS (`train/tis*`)")
    tis_clip: float = bound(2.0, "upper bound of the built-in TIS")
    tis_clip_low: float = option(0.0, "lower bound of the built-in TIS")
    calculate_per_token_loss: bool = option(False, "average over all tokens, not over sequences")
    eps_clip: float = option(0.2, "ε below 1 of the policy loss")
    eps_clip_high: float = option(0.2, "ε above 1 of the policy loss")


_Named = dict[str, Floats]


def _read(tokens: Tokens, options: Options) -> Reading:
    logged: _Named = {}
    weights = mask = None
    if options.custom_tis_function:
        diagnostics = _diagnostics(tokens)
        if options.use_tis:
            weights, mask, corrected = _corrected(tokens, options)
            diagnostics |= corrected
        logged |= {f"mis_{name}": values for name, values in diagnostics.items()}
    elif options.use_tis:
        weights, built_in = _built_in(tokens, options)
        logged |= built_in
    if tokens.current_BT is not None:
        logged["ois"] = np.exp(tokens.current_BT - tokens.trainer_BT)
    # slime reduces what it logs of a correction under the mask before rejection, and what its loss logs under the one
    # after.
    metrics = _reduced(logged, tokens, tokens.mask_BT, options)
    metrics |= _reduced(_policy_loss(tokens, options), tokens, tokens.mask_BT if mask is None else mask, options)
    return Reading({f"train/{name}": value for name, value in metrics.items()}, weights, mask)


def _reduced(logged: _Named, tokens: Tokens, mask_BT: Floats, options: Options) -> dict[str, float]:
    """Means over sequences of their means, or over tokens, of which slime counts at least one per sequence."""
    if options.calculate_per_token_loss:
        count = np.maximum(tokens.mask_BT.sum(axis=-1), 1.0).sum()
        return {name: float(product_sum(values, mask_BT).sum() / count) for name, values in logged.items()}
    return {name: float(product_means(values, mask_BT).mean()) for name, values in logged.items()}


def _spread(values_B: Floats, tokens: Tokens) -> Floats:
    """A value per sequence, repeated over its tokens."""
    return np.broadcast_to(values_B[:, None], tokens.mask_BT.shape)


def _diagnostics(tokens: Tokens) -> _Named:
    log_ratio = tokens.log_ratio_BT
    trainer, rollout = (
        _spread(product_means(x, tokens.mask_BT), tokens) for x in (tokens.trainer_BT, tokens.rollout_BT)
    )
    return {
        "training_log_ppl": -trainer,
        "training_ppl": np.exp(-trainer),
        "rollout_log_ppl": -rollout,
        "rollout_ppl": np.exp(-rollout),
        "kl": -log_ratio,
        "k3_kl": naive_k3(log_ratio),
        "log_ppl_diff": rollout - trainer,
        "log_ppl_abs_diff": np.abs(rollout - trainer),
        "ppl_ratio": np.exp(rollout - trainer),
        "chi2_token": _spread(product_means(np.square(clamped_exp(log_ratio)), tokens.mask_BT) - 1.0, tokens),
        "chi2_seq": np.square(clamped_exp(_level(tokens, "sequence"))) - 1.0,
    }


def _level(tokens: Tokens, level: str) -> Floats:
    """Log-ratio of the level [B, T]."""
    log_ratio = tokens.log_ratio_BT
    if level == "token":
        return log_ratio
    return _spread((product_sum if level == "sequence" else product_means)(log_ratio, tokens.mask_BT), tokens)


def _corrected(tokens: Tokens, options: Options) -> tuple[Floats, Floats, _Named]:
    """Weights and mask [B, T] after truncation and rejection, and what is logged of them."""
    raw = clamped_exp(_level(tokens, options.tis_level))
    lower = 1.0 / options.tis_upper_bound if options.tis_lower_bound is None else options.tis_lower_bound
    weights, mask, logged = _limited(raw, tokens.mask_BT, options.tis_mode, lower, options.tis_upper_bound)
    logged = {"tis_weight_before_bound": raw, **logged, "tis_weight_after_bound": weights}
    if options.use_rs:
        mask, rejected = _rejected(tokens, mask, options, lower)
        logged |= rejected
    logged["is_ratio_mean_after_tis_rs"] = weights
    if options.tis_batch_normalize:
        factor = _normalizer(tokens, weights, options.tis_level)
        weights = weights / factor
        logged["batch_norm_factor"] = np.full_like(weights, factor)
    return weights, mask, logged | _final(tokens, weights)


def _limited(raw: Floats, mask_BT: Floats, mode: str, lower: float, upper: float) -> tuple[Floats, Floats, _Named]:
    if mode == "truncate":
        return np.clip(raw, 0.0, upper) * mask_BT, mask_BT, {"tis_truncate_fraction": _as_float(raw > upper, raw)}
    low, high, inside = _sides(raw, lower, upper)
    name = "clip" if mode == "clip" else "mask"
    logged = {f"tis_{name}_fraction_low": low, f"tis_{name}_fraction_high": high}
    if mode == "clip":
        return np.clip(raw, lower, upper) * mask_BT, mask_BT, logged
    return raw * mask_BT, mask_BT * inside, logged


def _sides(raw: Floats, lower: float, upper: float) -> tuple[Floats, Floats, Floats]:
    """Whether below, above, within the bounds."""
    return _as_float(raw < lower, raw), _as_float(raw > upper, raw), _as_float((raw >= lower) & (raw <= upper), raw)


def _as_float(flags: object, like: Floats) -> Floats:
    return np.asarray(flags, like.dtype)


def _rejected(tokens: Tokens, mask_BT: Floats, options: Options, tis_lower: float) -> tuple[Floats, _Named]:
    raw = clamped_exp(_level(tokens, options.rs_level or options.tis_level))
    lower = tis_lower if options.rs_lower_bound is None else options.rs_lower_bound
    upper = options.tis_upper_bound if options.rs_upper_bound is None else options.rs_upper_bound
    low, high, inside = _sides(raw, lower, upper)
    logged = {"rs_mask_fraction_low": low, "rs_mask_fraction_high": high}
    mask = mask_BT * inside
    if options.rs_veto_threshold is not None:
        keep, vetoed = _veto(tokens, options.rs_veto_threshold)
        mask, logged = mask * keep, logged | vetoed
    if options.rs_trust_region is not None:
        keep, left = _trust_region(tokens, options.rs_trust_region, options.rs_tr_threshold)
        mask, logged = mask * keep, logged | left
    return mask, logged


def _veto(tokens: Tokens, threshold: float) -> tuple[Floats, _Named]:
    catastrophic = (tokens.log_ratio_BT < np.log(threshold)) & tokens.valid_BT
    hit = _spread(_as_float(catastrophic.any(axis=-1), tokens.mask_BT), tokens)
    return 1.0 - hit, {
        "rs_catastrophic_token_fraction": _as_float(catastrophic, tokens.mask_BT),
        "rs_catastrophic_seq_fraction": hit,
    }


def _trust_region(tokens: Tokens, kind: str, threshold: float | None) -> tuple[Floats, _Named]:
    if threshold is None:
        raise ConfigurationError("slime: rs_trust_region needs rs_tr_threshold")
    log_ratio = tokens.log_ratio_BT
    if kind == "max":
        per_sequence = _extreme(np.square(log_ratio) / 2.0, tokens, np.max)
    else:
        per_sequence = product_means(naive_k3(-log_ratio), tokens.mask_BT)
    divergence = _spread(per_sequence, tokens)
    keep = _as_float(divergence <= threshold, divergence)
    return keep, {"rs_trust_region_metric": divergence, "rs_trust_region_reject_fraction": 1.0 - keep}


def _extreme(values_BT: Floats, tokens: Tokens, of: np.ufunc | object) -> Floats:
    """Maximum or minimum of each sequence's tokens [B], 0 for an empty one."""
    fill = -np.inf if of is np.max else np.inf
    filled = np.where(tokens.valid_BT, values_BT, fill)
    extreme = filled.max(axis=-1) if of is np.max else filled.min(axis=-1)
    return np.where(tokens.valid_BT.any(axis=-1), extreme, 0.0)


def _normalizer(tokens: Tokens, weights_BT: Floats, level: str) -> float:
    """Mean weight; 1 where it is 0. slime has no such mean for geometric weights."""
    if level == "geometric":
        raise ConfigurationError("slime: tis_batch_normalize goes with tis_level token or sequence, not geometric")
    if level == "token":
        mean = product_sum(weights_BT, tokens.mask_BT).sum() / np.maximum(tokens.mask_BT.sum(), 1.0)
    else:
        mean = product_means(weights_BT, tokens.mask_BT).mean()
    return float(mean) if mean > 1e-8 else 1.0  # noqa: PLR2004 - slime's own guard


def _final(tokens: Tokens, weights_BT: Floats) -> _Named:
    return {
        "is_ratio_mean_final": _spread(product_means(weights_BT, tokens.mask_BT), tokens),
        "is_ratio_min_final": _spread(_extreme(weights_BT, tokens, np.min), tokens),
        "is_ratio_max_final": _spread(_extreme(weights_BT, tokens, np.max), tokens),
    }


def _built_in(tokens: Tokens, options: Options) -> tuple[Floats, _Named]:
    ratio = np.exp(tokens.log_ratio_BT)
    weights = np.clip(ratio, options.tis_clip_low, options.tis_clip)
    return weights, {
        "tis": ratio,
        "tis_clipfrac": _as_float(weights != ratio, ratio),
        "tis_abs": np.abs(ratio - 1.0),
    }


def _policy_loss(tokens: Tokens, options: Options) -> _Named:
    """What the loss logs of t against r, and of c against t where it is given."""
    logged: _Named = {"train_rollout_logprob_abs_diff": np.abs(tokens.log_ratio_BT)}
    if tokens.current_BT is None:
        return logged
    logged["ppo_kl"] = tokens.trainer_BT - tokens.current_BT
    if tokens.advantages_BT is not None:
        ratio = np.exp(tokens.current_BT - tokens.trainer_BT)
        clipped = clipped_branch(ratio, tokens.advantages_BT, options.eps_clip, options.eps_clip_high)
        logged["pg_clipfrac"] = _as_float(clipped, ratio)
    return logged


SLIME: Final = Peer(
    name="slime",
    options=Options,
    read=_read,
    prefixes=("train/mis_", "train/"),
    headline=(
        "train/mis_kl",
        "train/mis_k3_kl",
        "train/mis_ppl_ratio",
        "train/mis_chi2_token",
        "train/train_rollout_logprob_abs_diff",
    ),
)
