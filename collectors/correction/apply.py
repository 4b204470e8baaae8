"""`correct`: importance weights and the changed response mask of one batch.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import array_api_compat

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.batch import Tokens, tokens_of
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.correction.report import Report
from logprobe.collectors.correction.summary import Outcome, sums_of
from logprobe.collectors.errors import InputError
from logprobe.collectors.kernel.arithmetic import SENTINEL

_SMALLEST_MEAN = 1e-8  # weights whose mean is below are not normalized: there is nothing to divide by


@dataclass(frozen=True, eq=False)
class Correction:
    """Factors of a token loss, ``weights × mask``, both without a gradient.

    Unpacks as ``weights, mask, report``.
    """

    weights: Any  # float32, or float64 where log-probs came so; in the layout of the batch; 0 wherever mask is 0
    mask: Any  # the response mask after the correction, in the layout and type of the one given
    report: Report
    denominator_mask: Any  # whose sum divides a mean of token losses: the mask before ("keep") or after ("renormalize")
    config: CorrectionConfig

    def __iter__(self) -> Iterator[Any]:
        yield from (self.weights, self.mask, self.report)

    def deferred(self) -> Callable[[], dict[str, object]]:
        """Return a function that reads configuration, fingerprint and report later, in any thread.

        It waits for the device, and keeps no batch. `Recorder.step(correction=…)` calls it.
        """
        self.report.start()
        return partial(_acknowledged, self.config, self.report)


def _acknowledged(config: CorrectionConfig, report: Report) -> dict[str, object]:
    return {"config": config.to_dict(), "fingerprint": config.fingerprint(), "report": dict(report)}


def correct(
    config: CorrectionConfig,
    rollout_logprobs: Any,
    trainer_logprobs: Any,
    mask: Any = None,
    *,
    advantages: Any = None,
    group: Any = None,
) -> Correction:
    """Return the weights and the response mask of a batch under `config`.

    All arrays are padded [batch, time], or lists of 1-D arrays. They are numpy arrays or torch tensors on any device,
    of any float type. The call waits for no device. Values where the mask is 0 have no effect, NaN included. A broken
    token under the mask (see `kernel.arithmetic.sound`) is dropped and counted in the report. If a product over the
    sequence is taken, its sequence is dropped, too.

    Args:
        config: configuration of the correction.
        rollout_logprobs: r, of the policy that sampled.
        trainer_logprobs: t, the trainer's log-probs of the same tokens, in bypass mode those of the current policy.
        mask: non-zero for tokens that the policy sampled and trains on, or None for all tokens.
        advantages: advantage per token or per sequence, for configurations that need it and for `masked_advantage_frac`
            in the report.
        group: torch.distributed process group whose ranks share the normalization of weights, or None for this process
            alone. Every rank must call.

    Raises:
        InputError: shapes do not agree, or the configuration needs missing advantages.
    """
    if config.needs_advantages and advantages is None:
        raise InputError(f"advantages: the correction ({config}) needs them; pass advantages=")
    tokens = tokens_of(config, rollout_logprobs, trainer_logprobs, mask, advantages)
    outcome = outcome_of(config, tokens, group)
    changed = tokens.masked(outcome.keep)
    return Correction(
        weights=tokens.layout.restore(outcome.weights),
        mask=changed,
        report=Report(partial(sums_of, outcome)),
        denominator_mask=tokens.masked(tokens.mask) if config.denominator == "keep" else changed,
        config=config,
    )


def outcome_of(config: CorrectionConfig, tokens: Tokens, group: Any = None) -> Outcome:
    """Return the outcome of every token and the rule that decided it. Arguments are those of `correct`."""
    xp = tokens.xp
    ratio = tokens.at(config.is_level or "token")
    lower = None if config.is_mode == "truncate" else config.is_lower
    bounds = (None, None) if config.is_level is None else (lower, config.is_upper)
    below, above = arithmetic.outside(xp, ratio, *bounds)
    bounded, normalizer = _weights(config, tokens, ratio, below | above, group)
    rs_below, rs_above = _rejected(config, tokens)
    veto = _vetoed(config, tokens)
    keep = tokens.usable & ~rs_below & ~rs_above
    for dropped in (veto, below | above if config.is_mode == "mask" else None):
        keep = keep if dropped is None else keep & ~dropped
    return Outcome(
        tokens=tokens,
        ratio=ratio,
        is_below=below,
        is_above=above,
        rs_below=rs_below,
        rs_above=rs_above,
        veto=veto,
        keep=keep,
        weights=arithmetic.where(xp, keep, bounded / normalizer),
        normalizer=normalizer,
    )


def _weights(config: CorrectionConfig, tokens: Tokens, ratio: Array, beyond: Array, group: Any) -> tuple[Array, Array]:
    """Return the bounded weights, [B, T] or [B, 1], and their divisor (0-d)."""
    xp = tokens.xp
    one = arithmetic.constant(xp, 1.0, ratio)
    if config.is_level is None:
        return xp.ones_like(ratio), one
    bounded = ratio
    if config.is_mode != "mask":
        bounded = arithmetic.bounded(ratio, config.is_lower if config.is_mode == "clip" else None, config.is_upper)
    if not config.normalize:
        return bounded, one
    measured = bounded
    if config.is_mode == "mask" and config.normalize_by == "weights":
        measured = arithmetic.where(xp, ~beyond, ratio)
    counted = tokens.usable if config.is_level == "token" else arithmetic.row_any(xp, tokens.usable)
    total = xp.sum(arithmetic.where(xp, counted, measured))
    sums = _summed(xp.stack([total, xp.sum(xp.astype(counted, total.dtype))]), group)
    mean = sums[0] / arithmetic.bounded(sums[1], 1.0, None)
    return bounded, arithmetic.where(xp, mean > _SMALLEST_MEAN, mean, 1.0)


def _rejected(config: CorrectionConfig, tokens: Tokens) -> tuple[Array, Array]:
    """Return where rejection sampling finds a token or sequence below, and above, its bounds."""
    xp, level = tokens.xp, config.rs_level
    if level is None:
        return arithmetic.outside(xp, tokens.exact, None, None)
    if level == "max":
        values = tokens.at("token") if config.rs_measure == "ratio" else _measure(config, tokens)
        lowest, highest = (
            arithmetic.row_extreme(xp, values, tokens.valid, largest=largest, empty=1.0) for largest in (False, True)
        )
        below, above = _outside_each(xp, lowest, highest, config)
    elif config.rs_measure == "ratio":
        below, above = arithmetic.outside(xp, tokens.at(level), config.rs_lower, config.rs_upper)
    else:
        values = arithmetic.at_level(xp, _measure(config, tokens), tokens.valid, level)
        below, above = arithmetic.outside(xp, values, config.rs_lower, config.rs_upper)
    if config.rs_by_advantage and tokens.advantages is not None:
        good = tokens.advantages > 0
        return below & ~good, above & good
    return below, above


def _outside_each(xp: Namespace, lowest: Array, highest: Array, config: CorrectionConfig) -> tuple[Array, Array]:
    """Return whether a sequence's smallest value is below the lower bound, and its largest above the upper one."""
    below, _ = arithmetic.outside(xp, lowest, config.rs_lower, None)
    _, above = arithmetic.outside(xp, highest, None, config.rs_upper)
    return below, above


def _measure(config: CorrectionConfig, tokens: Tokens) -> Array:
    """Return the values [B, T] that rejection bounds instead of ρ, 0 where not valid."""
    xp = tokens.xp
    safe = arithmetic.limited(tokens.exact)
    if config.rs_measure == "k2":
        return safe * safe / 2.0
    if config.rs_measure == "k3":
        return arithmetic.k3(xp, safe)
    rollout, trainer = (arithmetic.where(xp, tokens.valid, side) for side in (tokens.rollout, tokens.trainer))
    if config.rs_measure == "prob_diff":
        return xp.exp(trainer) - xp.exp(rollout)
    return arithmetic.where(xp, tokens.valid, arithmetic.binary_kl(xp, rollout, trainer))


def _vetoed(config: CorrectionConfig, tokens: Tokens) -> Array | None:
    """Return the sequences [B, 1] with a token whose ρ is below the veto. A trainer log-prob of −inf means ρ = 0."""
    if config.veto is None:
        return None
    impossible = tokens.mask & ~tokens.valid & (tokens.trainer <= SENTINEL) & (tokens.rollout > SENTINEL)
    absurd = tokens.valid & (tokens.exact < math.log(config.veto))
    return arithmetic.row_any(tokens.xp, absurd | impossible)


def _summed(values: Array, group: Any) -> Array:
    """Sum `values` over the ranks of `group` in place, or do nothing without a group. Every rank of the group must
    call.

    The function does not import torch, because a caller with a group has imported it. Raises `InputError` for a group
    with arrays that are not torch tensors.
    """
    if group is None:
        return values
    if not array_api_compat.is_torch_array(values):
        raise InputError("group: sums over ranks need torch tensors; omit it for numpy arrays")
    sys.modules["torch"].distributed.all_reduce(values, group=group)
    return values
