"""Clip statistics of a policy loss, as mergeable sums.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.correction.report import finite, quotient


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
        clamp_log_ratio_new_old_indicator: fraction of tokens whose ρ is limited, mean over sequences; under GSPO the fraction of
            sequences (PipelineRL).
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
