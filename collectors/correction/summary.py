"""Sums of a report, computed from the results of `correct`.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from dataclasses import dataclass

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.batch import Tokens
from logprobe.collectors.kernel.arithmetic import CLAMP, broken_kinds


@dataclass(frozen=True, eq=False)
class Outcome:
    """Inputs of a report. Arrays are [B, T] or broadcast to that shape."""

    tokens: Tokens
    ratio: Array  # ρ of the weights' level, before bounds
    is_below: Array
    is_above: Array
    rs_below: Array
    rs_above: Array
    veto: Array | None
    keep: Array  # the changed mask
    weights: Array  # 0 where not kept
    normalizer: Array  # 0-d

    @property
    def xp(self) -> Namespace:
        """Array namespace."""
        return self.tokens.xp


def sums_of(outcome: Outcome) -> dict[str, Array]:
    """Return name → 0-d array, for `report.derived`."""
    return _tokens(outcome) | _sequences(outcome) | _weights(outcome) | _advantages(outcome) | _broken(outcome)


def _count(outcome: Outcome, flags: Array) -> Array:
    """Return the number of set flags. A flag per sequence counts sequences."""
    return outcome.xp.sum(flags, dtype=outcome.xp.int64)


def _touched(outcome: Outcome) -> Array:
    """Return the tokens that were dropped or whose weight was limited."""
    return outcome.tokens.mask & (outcome.is_below | outcome.is_above | ~outcome.keep)


def _tokens(outcome: Outcome) -> dict[str, Array]:
    mask, usable = outcome.tokens.mask, outcome.tokens.usable
    counted = {
        "tokens": mask,
        "measured_tokens": usable,
        "masked_tokens": mask & ~outcome.keep,
        "clipped_tokens": _touched(outcome),
        "clamped_tokens": outcome.xp.abs(outcome.tokens.exact) > CLAMP,
        "is_below": usable & outcome.is_below,
        "is_above": usable & outcome.is_above,
        "rs_below": usable & outcome.rs_below,
        "rs_above": usable & outcome.rs_above,
    }
    return {name: _count(outcome, flags) for name, flags in counted.items()}


def _sequences(outcome: Outcome) -> dict[str, Array]:
    xp = outcome.xp
    some = arithmetic.row_any(xp, outcome.tokens.mask)
    never = some & ~some
    counted = {
        "sequences": some,
        "masked_sequences": some & ~arithmetic.row_any(xp, outcome.keep),
        "clipped_sequences": arithmetic.row_any(xp, _touched(outcome)),
        "veto_sequences": never if outcome.veto is None else outcome.veto,
    }
    return {name: _count(outcome, flags) for name, flags in counted.items()}


def _weights(outcome: Outcome) -> dict[str, Array]:
    xp, weights = outcome.xp, outcome.weights
    ratio = arithmetic.where(xp, outcome.tokens.usable, outcome.ratio)
    return {
        "weight_sum": xp.sum(weights),
        "weight_square_sum": xp.sum(weights * weights),
        "weight_min": arithmetic.extreme(xp, weights, outcome.keep, largest=False),
        "weight_max": arithmetic.extreme(xp, weights, outcome.keep, largest=True),
        "ratio_sum": xp.sum(ratio),
        "ratio_square_sum": xp.sum(ratio * ratio),
        "ratio_min": arithmetic.extreme(xp, ratio, outcome.tokens.usable, largest=False),
        "ratio_max": arithmetic.extreme(xp, ratio, outcome.tokens.usable, largest=True),
        "normalizer_tokens": outcome.normalizer * _count(outcome, outcome.tokens.mask),
    }


def _advantages(outcome: Outcome) -> dict[str, Array]:
    xp = outcome.xp
    if outcome.tokens.advantages is None:
        nothing = arithmetic.constant(xp, 0.0, outcome.weights)
        return {"advantage": nothing, "masked_advantage": nothing}
    sizes = arithmetic.where(xp, outcome.tokens.mask, xp.abs(outcome.tokens.advantages))
    return {"advantage": xp.sum(sizes), "masked_advantage": xp.sum(arithmetic.where(xp, ~outcome.keep, sizes))}


def _broken(outcome: Outcome) -> dict[str, Array]:
    kinds = broken_kinds(outcome.tokens.rollout, outcome.tokens.trainer)
    return {name.removeprefix("n_"): _count(outcome, flags & outcome.tokens.mask) for name, flags in kinds.items()}
