"""Correction inside a framework's own loss: applied as its configuration states, or refused without acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Literal

from logprobe.collectors.correction import Correction, CorrectionConfig
from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch

CORRECTION: Final = "LOGPROBE_CORRECTION"

# Whose tokens divide the sum in a framework's loss: each sequence's own, those of the batch at hand, or those of all
# micro-batches of an update; None: no number of tokens does.
Divisor = Literal["sequence", "batch", "update"] | None


class Corrector:
    """Correction that the controller may turn on, with its acknowledgements."""

    def __init__(self, recorder: Recorder, component: str) -> None:
        self._recorder = recorder
        self._component = component
        self._switch = CorrectionSwitch(recorder.home, recorder.run, recorder=recorder)

    def wanted(self, step: int) -> CorrectionConfig | None:
        """Return the correction that the controller requests in `step`, or None."""
        return self._switch.current(step)

    def weights(
        self,
        step: int,
        impossible: Callable[[CorrectionConfig], str | None],
        make: Callable[[CorrectionConfig], tuple[Correction, Any]],
    ) -> Any:
        """Return the acknowledged importance weights [batch, time] of this loss, or None if not requested or refused.

        Args:
            step: step of the loss.
            impossible: function that returns the reason why the loss cannot apply a configuration, or None.
            make: function that computes the correction and its weights. It may raise `InputError`.
        """
        config = self.wanted(step)
        if config is None:
            return None
        problem = impossible(config)
        if problem is None:
            try:
                correction, weights = make(config)
            except InputError as error:
                problem = str(error)
            else:
                self._recorder.step(step, correction=correction)
                return weights
        self.refuse(step, problem)
        return None

    def refuse(self, step: int, reason: str) -> None:
        """Report that a correction is on and that the framework continues without it."""
        words = f"a correction is on and is not applied: {reason}"
        self._recorder.report("correction_impossible", words, severity="warning", component=self._component, step=step)


def corrector_if_wanted(recorder: Recorder, component: str) -> Corrector | None:
    """Return a corrector if ``LOGPROBE_CORRECTION=1`` is set, for frameworks configured by options."""
    return Corrector(recorder, component) if os.environ.get(CORRECTION) == "1" else None


def unmet(config: CorrectionConfig, *, divisor: Divisor, parts: int, advantages: bool = True) -> str | None:
    """Return the part of `config` that a framework's loss cannot apply, or None.

    Args:
        config: requested configuration.
        divisor: divisor of the loss.
        parts: number of micro-batches and ranks that share the batch of one update.
        advantages: true if the advantages are known before the loss.
    """
    if config.needs_advantages and not advantages:
        return "rs_by_advantage=True needs advantages, which are not known here"
    if config.normalize and parts > 1:
        return (
            f"normalize=True divides by a mean over the batch, and here it is in {parts} parts: ranks and micro-batches"
        )
    if config.denominator == "renormalize" and divisor is None:
        return (
            "denominator=renormalize divides by the tokens that are left, and this loss does not divide by tokens of "
            "its own; use keep"
        )
    return None


def weights_for(correction: Correction, mask: Any, divisor: Divisor, share_left: Any = None) -> Any:
    """Return factors [batch, time] of token losses, a torch tensor, for a loss that divides by the tokens of `mask`.

    Under ``renormalize``, the weights are multiplied by the token count before the correction over the count after it.
    The policy's loss is thereby divided by the remaining tokens. The rest of the framework's loss and its logged
    numbers stay unchanged. A mean over sequences still counts every sequence.

    Args:
        correction: correction of this micro-batch, padded.
        mask: mask that `correct` received.
        divisor: divisor of the loss. ``update`` requires `share_left`.
        share_left: 0-d tensor, the remaining share of the tokens of all micro-batches of the update.
    """
    weights = correction.weights
    if correction.config.denominator == "keep":
        return weights
    if divisor == "update":
        return weights / share_left
    axes = {"dim": -1, "keepdim": True} if divisor == "sequence" else {}
    before, left = (part.bool().sum(**axes) for part in (mask, correction.mask))
    return weights * before / left.clamp(min=1)


def share_left(corrections: list[Correction], masks: list[Any]) -> Any:
    """Return the share (0-d tensor) of the tokens under `masks` that `corrections` keep, with at least one token."""
    before = sum(mask.bool().sum() for mask in masks)
    left = sum(correction.mask.bool().sum() for correction in corrections)
    return left.clamp(min=1) / before
