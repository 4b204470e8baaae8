"""A batch taken apart: which tokens can be used, and their log-ratios.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from dataclasses import dataclass

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.batch import Batch
from logprobe.collectors.correction.config import CorrectionConfig


@dataclass(frozen=True, eq=False)
class Tokens:
    """What every part of a correction looks at; arrays [B, T], advantages possibly [B, 1]. Nothing carries a gradient."""

    xp: Namespace
    rollout: Array
    trainer: Array
    current: Array | None
    advantages: Array | None
    mask: Array  # bool, before the correction
    valid: Array  # under the mask and not broken
    usable: Array  # … and, where a product over the sequence is taken, in a sequence without a broken token
    exact: Array  # d, 0 where not valid
    d: Array  # d as the levels see it: limited to ±20 where the configuration says so

    def at(self, level: str) -> Array:
        """ρ of a level: [B, T] for tokens, else [B, 1]."""
        return arithmetic.exp_clamped(self.xp, arithmetic.at_level(self.xp, self.d, self.valid, level))


def tokens_of(config: CorrectionConfig, batch: Batch) -> Tokens:
    """The tokens of a batch as `config` needs them."""
    xp = batch.xp
    sides = {name: arithmetic.detached(values) for name, values in batch.logprobs.items()}
    rollout, trainer, current = sides["rollout_logprobs"], sides["trainer_logprobs"], sides.get("current_logprobs")
    good = arithmetic.sound(rollout, trainer)
    if current is not None:
        good = good & arithmetic.sound(rollout, current)
    valid = usable = batch.mask & good
    if "sequence" in {config.is_level, config.rs_level}:
        usable = valid & ~arithmetic.row_any(xp, batch.mask & ~good)
    exact = arithmetic.difference(xp, trainer, rollout, valid)
    return Tokens(
        xp=xp,
        rollout=rollout,
        trainer=trainer,
        current=current,
        advantages=None if batch.advantages is None else arithmetic.detached(batch.advantages),
        mask=batch.mask,
        valid=valid,
        usable=usable,
        exact=exact,
        d=arithmetic.limited(exact) if config.clamp == "token" else exact,
    )
