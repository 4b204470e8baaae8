"""Policy losses that corrections go with, with their clip statistics; differentiable in the log-probs of now.

r: log-probs of the policy that sampled (rollout); t: of the trainer before the update (old, proximal); c: of the policy
of now (current). A loss masks out tokens that are broken on either side, or whose advantage is NaN, and counts them:
`broken_tokens`.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.apply import Correction, correct
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.batch import Batch, batch_of
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.correction.report import Numbers, finite, quotient
from logprobe.collectors.errors import ConfigurationError, InputError

Reduction = Literal["token_mean", "sequence_mean", "sum"]
_REDUCTIONS: Final = ("token_mean", "sequence_mean", "sum")


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss and what it did. `value` is 0-d and differentiable; without a token it is 0."""

    value: Any
    statistics: Numbers  # of `loss_statistics.derived`; reading them waits for the device once
    correction: Correction | None  # the one that was applied


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a token loss is made of [B, T]; advantages are 0 where not valid."""

    batch: Batch
    valid: Array  # under the corrected mask and not broken
    d: Array  # log-ratio of now against the behaviour policy, 0 where not valid
    advantages: Array
    weights: Array | None
    denominator: Array  # bool: what divides a mean

    @property
    def xp(self) -> Namespace:
        return self.batch.xp


def ppo(
    current_logprobs: Any,
    old_logprobs: Any,
    advantages: Any,
    mask: Any = None,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual_clip: float | None = None,
    correction: Correction | None = None,
    reduction: Reduction = "token_mean",
) -> Loss:
    """PPO's clipped objective: −min(ρA, clip(ρ, 1 − low, 1 + high)·A) with ρ = exp(c − t).

    Args:
        current_logprobs: c, with gradient; padded [batch, time] or a list of 1-D arrays, as all that follow.
        old_logprobs: t.
        advantages: per token, or one per sequence.
        mask: the response mask; not used where a correction is given, which has its own.
        low: ε below 1.
        high: ε above 1.
        dual_clip: for negative advantages the loss is at most −dual_clip·A (dual-clip PPO); None: no limit.
        correction: weights and mask to apply, of rollout against old log-probs.
        reduction: ``token_mean`` over all tokens, ``sequence_mean`` over sequences of their token means, or ``sum`` (to
            be divided by what counts over all micro-batches and ranks).

    Raises:
        InputError: shapes that do not agree.
        ConfigurationError: an unknown reduction.
    """
    terms = _terms(current_logprobs, old_logprobs, advantages, mask, correction)
    ratio = arithmetic.exp_clamped(terms.xp, terms.d)
    return _clipped_loss(terms, ratio, Clipping(low, high, dual_clip), correction, reduction)


def bypass(
    current_logprobs: Any,
    rollout_logprobs: Any,
    advantages: Any,
    mask: Any = None,
    *,
    rejection: CorrectionConfig | None = None,
    low: float = 0.2,
    high: float = 0.2,
    dual_clip: float | None = None,
    reduction: Reduction = "token_mean",
) -> Loss:
    """PPO with the rollout policy as old policy: ρ = exp(c − r) holds mismatch and update in one.

    Args as of `ppo`, and:
        rejection: a mask to apply; it may have no importance weights, which the ratio already is.

    Raises:
        ConfigurationError: `rejection` has importance weights.
        InputError: shapes that do not agree.
    """
    applied = None
    if rejection is not None:
        if rejection.is_level is not None:
            raise ConfigurationError(
                "bypass: the PPO ratio already is the importance weight; use a configuration with is_level=None"
            )
        applied = correct(rejection, rollout_logprobs, current_logprobs, mask, advantages=advantages)
    return ppo(
        current_logprobs,
        rollout_logprobs,
        advantages,
        mask,
        low=low,
        high=high,
        dual_clip=dual_clip,
        correction=applied,
        reduction=reduction,
    )


def decoupled(
    current_logprobs: Any,
    old_logprobs: Any,
    rollout_logprobs: Any,
    advantages: Any,
    mask: Any = None,
    *,
    config: CorrectionConfig,
    low: float = 0.2,
    high: float = 0.2,
    dual_clip: float | None = None,
    group: Any = None,
    reduction: Reduction = "token_mean",
) -> Loss:
    """Decoupled PPO with three policies: clipped at the proximal policy t, weighted by t against the rollout policy r.

    Args as of `ppo`, and:
        rollout_logprobs: r.
        config: of the correction of r against t.
        group: as of `correct`.

    Raises:
        InputError: shapes that do not agree.
    """
    applied = correct(
        config,
        rollout_logprobs,
        old_logprobs,
        mask,
        current_logprobs=current_logprobs,
        advantages=advantages,
        group=group,
    )
    return ppo(
        current_logprobs,
        old_logprobs,
        advantages,
        low=low,
        high=high,
        dual_clip=dual_clip,
        correction=applied,
        reduction=reduction,
    )


def gspo(
    current_logprobs: Any,
    old_logprobs: Any,
    advantages: Any,
    mask: Any = None,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
    correction: Correction | None = None,
    reduction: Reduction = "sequence_mean",
) -> Loss:
    """GSPO: PPO's clipped objective with one ratio per sequence, the geometric mean of its tokens' ratios.

    Written token by token as in GSPO-token: the ratio's value is that of the sequence, its gradient that of the token.
    With one advantage per sequence and the default reduction this is GSPO. Args and errors as of `ppo`.
    """
    terms = _terms(current_logprobs, old_logprobs, advantages, mask, correction)
    sequences = arithmetic.detached(arithmetic.row_mean(terms.xp, terms.d, terms.valid))
    log_ratio = sequences + (terms.d - arithmetic.detached(terms.d))
    ratio = arithmetic.exp_clamped(terms.xp, arithmetic.where(terms.xp, terms.valid, log_ratio))
    return _clipped_loss(terms, ratio, Clipping(low, high, None), correction, reduction)


def reinforce(
    current_logprobs: Any,
    rollout_logprobs: Any,
    advantages: Any,
    mask: Any = None,
    *,
    config: CorrectionConfig | None = None,
    group: Any = None,
    reduction: Reduction = "token_mean",
) -> Loss:
    """REINFORCE: −w·A·c with the weight w of c against r, which carries no gradient (PipelineRL, open-instruct).

    The clip statistics are those of the configuration's bounds; the report of the correction has more.

    Args as of `ppo`, and:
        config: of the weights; None: plain REINFORCE, weight 1.
        group: as of `correct`.

    Raises:
        InputError: shapes that do not agree.
    """
    chosen = config or CorrectionConfig()
    applied = correct(chosen, rollout_logprobs, current_logprobs, mask, advantages=advantages, group=group)
    terms = _terms(current_logprobs, rollout_logprobs, advantages, None, applied)
    logprobs = arithmetic.where(terms.xp, terms.valid, terms.batch.logprobs["current_logprobs"])
    value = _reduced(terms, -terms.advantages * logprobs, reduction)
    ratio = arithmetic.detached(arithmetic.exp_clamped(terms.xp, terms.d))
    return Loss(value, _statistics(terms, ratio, Clipping.of_weights(chosen)), applied)


def unbiased_kl(
    current_logprobs: Any,
    reference_logprobs: Any,
    rollout_logprobs: Any,
    mask: Any = None,
    *,
    correction: Correction | None = None,
    reduction: Reduction = "token_mean",
) -> Loss:
    """KL(current‖reference) from tokens that another policy sampled: ρ·(e^x − x − 1), x = reference − c, ρ = exp(c −
    r).

    K3 weighted by the importance ratio, through which the gradient goes, too; without the ratio K3's gradient is biased
    (DeepSeek-V3.2, section 3.1). Args and errors as of `ppo`; `rollout_logprobs` are those of the policy that sampled.
    """
    batch, valid, weights, denominator = _prepared(
        {
            "current_logprobs": current_logprobs,
            "old_logprobs": rollout_logprobs,
            "reference_logprobs": reference_logprobs,
        },
        mask,
        None,
        correction,
    )
    xp, logprobs = batch.xp, batch.logprobs
    current = logprobs["current_logprobs"]
    reference, rollout = (arithmetic.detached(logprobs[name]) for name in ("reference_logprobs", "old_logprobs"))
    valid = valid & arithmetic.sound(reference, reference)
    d = arithmetic.difference(xp, current, rollout, valid)
    distance = arithmetic.difference(xp, reference, current, valid)
    ratio = arithmetic.exp_clamped(xp, d)
    terms = _Terms(batch, valid, d, arithmetic.constant(xp, 0.0, d), weights, denominator)
    value = _reduced(terms, ratio * arithmetic.k3(xp, distance), reduction)
    return Loss(value, _statistics(terms, arithmetic.detached(ratio), Clipping(None, None, None)), correction)


def _prepared(
    logprobs: Mapping[str, Any], mask: Any, advantages: Any, correction: Correction | None
) -> tuple[Batch, Array, Array | None, Array]:
    """The batch, its sound tokens under the mask, the correction's weights and denominator, all padded alike."""
    if correction is None:
        batch = batch_of(logprobs, mask, advantages)
        weights, denominator = None, batch.mask
    else:
        extra = {"correction.weights": correction.weights, "correction.denominator_mask": correction.denominator_mask}
        batch = batch_of({**logprobs, **extra}, correction.mask, advantages)
        weights = batch.logprobs["correction.weights"]
        denominator = batch.logprobs["correction.denominator_mask"] != 0
    sides = batch.logprobs["old_logprobs"], batch.logprobs["current_logprobs"]
    return batch, batch.mask & arithmetic.sound(*sides), weights, denominator


def _terms(current: Any, old: Any, advantages: Any, mask: Any, correction: Correction | None) -> _Terms:
    if advantages is None:
        raise InputError("advantages: a policy loss needs them, per token or one per sequence")
    named = {"current_logprobs": current, "old_logprobs": old}
    batch, valid, weights, denominator = _prepared(named, mask, advantages, correction)
    xp = batch.xp
    valid = valid & xp.isfinite(batch.advantages)
    old_BT = arithmetic.detached(batch.logprobs["old_logprobs"])
    d = arithmetic.difference(xp, batch.logprobs["current_logprobs"], old_BT, valid)
    return _Terms(batch, valid, d, arithmetic.where(xp, valid, batch.advantages), weights, denominator)


def _clipped_loss(
    terms: _Terms, ratio: Array, clipping: Clipping, correction: Correction | None, reduction: Reduction
) -> Loss:
    plain = ratio * terms.advantages
    objective = terms.xp.minimum(plain, clipping.limited(ratio) * terms.advantages)
    if clipping.dual is not None:
        floor = terms.xp.maximum(objective, clipping.dual * terms.advantages)
        objective = terms.xp.where(terms.advantages < 0, floor, objective)
    value = _reduced(terms, -objective, reduction)
    return Loss(value, _statistics(terms, arithmetic.detached(ratio), clipping), correction)


def _statistics(terms: _Terms, ratio: Array, clipping: Clipping) -> Numbers:
    quiet = replace(terms, d=arithmetic.detached(terms.d), advantages=arithmetic.detached(terms.advantages))
    compute = partial(
        sums_of, terms.xp, terms.batch.mask, quiet.valid, quiet.d, quiet.advantages, ratio=ratio, clipping=clipping
    )
    return Numbers(compute, derived)


def _reduced(terms: _Terms, losses_BT: Array, reduction: Reduction) -> Array:
    """Weighted and masked losses as one number."""
    if reduction not in _REDUCTIONS:
        raise ConfigurationError(f"reduction={reduction!r}: one of {', '.join(map(repr, _REDUCTIONS))}")
    xp = terms.xp
    weighted = losses_BT if terms.weights is None else losses_BT * terms.weights
    masked = arithmetic.where(xp, terms.valid, weighted)
    if reduction == "sum":
        return xp.sum(masked)
    counts = arithmetic.row_count(xp, terms.denominator, masked)
    if reduction == "token_mean":
        return xp.sum(masked) / arithmetic.bounded(xp.sum(counts), 1.0, None)
    means = arithmetic.row_sum(xp, masked) / arithmetic.bounded(counts, 1.0, None)
    return xp.sum(means) / arithmetic.bounded(xp.sum(xp.astype(counts > 0, means.dtype)), 1.0, None)


class Clipping(NamedTuple):
    """How far a ratio may be from 1: ε below and above (None: no bound), and the dual-clip bound."""

    low: float | None
    high: float | None
    dual: float | None

    @classmethod
    def of_weights(cls, config: CorrectionConfig) -> Clipping:
        """The bounds of token weights, as distances from 1."""
        lower = None if config.is_mode == "truncate" else config.is_lower
        if config.is_level != "token":
            return cls(None, None, None)
        upper = config.is_upper
        return cls(None if lower is None else 1.0 - lower, None if upper is None else upper - 1.0, None)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Lower and upper bound of the ratio."""
        return None if self.low is None else 1.0 - self.low, None if self.high is None else 1.0 + self.high

    def limited(self, values: Array) -> Array:
        """`values` within the bounds."""
        return arithmetic.bounded(values, *self.bounds)


def sums_of(
    xp: Namespace,
    mask: Array,
    valid: Array,
    d: Array,
    advantages: Array,
    *,
    ratio: Array,
    clipping: Clipping,
) -> dict[str, Array]:
    """Name → 0-d array, for `derived`: over tokens under the mask that are not broken."""
    below, above = arithmetic.outside(xp, ratio, *clipping.bounds)
    clipped, dual = _clipped(xp, ratio, advantages, clipping)
    flags = {
        "tokens": mask,
        "valid_tokens": valid,
        "above": valid & above,
        "below": valid & below,
        "pg_clipped": valid & clipped,
        "dual_clipped": valid & dual,
        "sequences": arithmetic.row_any(xp, valid),
    }
    divergence = arithmetic.where(xp, valid, arithmetic.k3(xp, d))
    beyond = xp.astype(valid & (below | above), d.dtype)
    return {name: xp.sum(hits, dtype=xp.int64) for name, hits in flags.items()} | {
        "ratio_sum": xp.sum(arithmetic.where(xp, valid, ratio)),
        "ratio_min": arithmetic.extreme(xp, ratio, valid, largest=False),
        "ratio_max": arithmetic.extreme(xp, ratio, valid, largest=True),
        "d_sum": xp.sum(d),
        "k3_sequence_sum": xp.sum(arithmetic.row_mean(xp, divergence, valid)),
        "beyond_sequence_sum": xp.sum(arithmetic.row_mean(xp, beyond, valid)),
    }


def _clipped(xp: Namespace, ratio: Array, advantages: Array, clipping: Clipping) -> tuple[Array, Array]:
    """Where the objective took its clipped branch, and where the dual clip limited what came of it."""
    plain, limited = ratio * advantages, clipping.limited(ratio) * advantages
    clipped = limited < plain
    if clipping.dual is None:
        return clipped, clipped & ~clipped
    return clipped, (advantages < 0) & (xp.minimum(plain, limited) < clipping.dual * advantages)


def derived(sums: Mapping[str, float]) -> dict[str, float | None]:
    """The statistics of a loss; None where there is nothing to measure. ρ is the ratio of the objective.

    Returns:
        tokens: under the (corrected) mask; broken_tokens: of these, left out of the loss.
        ratio_mean, ratio_min, ratio_max: of ρ, over tokens.
        kl: mean(−d).
        clip_fraction_high, clip_fraction_low: tokens whose ρ is above, below its bounds.
        pg_clip_fraction: tokens where the objective took its clipped branch (verl's ``pg_clipfrac``).
        dual_clip_fraction: tokens limited by the dual-clip bound.
        clamp_log_ratio_new_old_indicator: fraction of tokens whose ρ is limited, mean over sequences; under GSPO the
            fraction of sequences (PipelineRL).
        kl_new_old: K3, mean over sequences (PipelineRL).
    """
    n, s = sums["valid_tokens"], sums["sequences"]
    return {
        "tokens": sums["tokens"],
        "broken_tokens": sums["tokens"] - n,
        "ratio_mean": quotient(sums["ratio_sum"], n),
        "ratio_min": finite(sums["ratio_min"]),
        "ratio_max": finite(sums["ratio_max"]),
        "kl": quotient(-sums["d_sum"], n),
        "clip_fraction_high": quotient(sums["above"], n),
        "clip_fraction_low": quotient(sums["below"], n),
        "pg_clip_fraction": quotient(sums["pg_clipped"], n),
        "dual_clip_fraction": quotient(sums["dual_clipped"], n),
        "clamp_log_ratio_new_old_indicator": quotient(sums["beyond_sequence_sum"], s),
        "kl_new_old": quotient(sums["k3_sequence_sum"], s),
    }
