"""Why a correction is not switched on: each reason is one small rule, looked at in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.controller.situation import Control, Preview, Situation, Standing

_UPSTREAM: Final = ("semantic", "inference_path")


class Refusal(NamedTuple):
    """Why not: an identifier, and a sentence for people."""

    reason: str
    words: str
    about: str = ""  # what exactly, where one reason can have several grounds

    @property
    def key(self) -> str:
        """What is said once."""
        return f"{self.reason}/{self.about}" if self.about else self.reason


Rule = Callable[[Situation, Control, Policy], Refusal | None]


def refusal(situation: Situation, control: Control, policy: Policy) -> Refusal | None:
    """The first reason against switching `policy.correction` on now; None: there is none."""
    return next((found for rule in _RULES if (found := rule(situation, control, policy))), None)


def upstream(situation: Situation, policy: Policy) -> Standing | None:
    """The first finding in a layer that comes before the objective."""
    standing = (f for f in situation.findings if f.layer in _UPSTREAM and f.confidence >= policy.min_confidence)
    return next(standing, None)


def _stopped(situation: Situation, _: Control, __: Policy) -> Refusal | None:
    return Refusal("stopped", "the kill switch is set") if situation.stopped else None


def _upstream(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    found = upstream(situation, policy)
    if found is None:
        return None
    layer = found.layer.replace("_", " ")
    explanation = f": {found.explanation}" if found.explanation else ""
    words = f"fix the engine first; the {layer} layer shows {found.cause}{explanation}"
    return Refusal("fix_engine_first", words, about=found.cause)


def _diagnosis(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    seen = situation.diagnosed_step
    if seen is None or situation.step - seen <= policy.max_diagnosis_lag:
        return None
    return Refusal(
        "diagnosis_old",
        f"the diagnosis has seen nothing after step {seen}, and the run is at step {situation.step}; `logprobe status` names "
        "the job that fails",
    )


def _coverage(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    if situation.coverage is None:
        return Refusal("coverage_unknown", "coverage is not known, so it cannot be said what a correction would see")
    if situation.coverage < policy.min_coverage:
        return Refusal(
            "low_coverage",
            f"coverage is {situation.coverage:.1%}, below {policy.min_coverage:.0%}: tokens are broken or missing, "
            "and a correction would act on the rest only",
        )
    return None


def _preview(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    preview = situation.preview
    if preview is None or not preview.tokens:
        return Refusal(
            "no_preview",
            "the effect cannot be previewed: of the recent steps no raw tokens are kept, or not the advantages it needs",
        )
    for share, what in _shares(preview):
        if share is not None and share > policy.max_masked_share:
            return Refusal(
                "masks_too_much",
                f"it would mask {share:.0%} of {what} (steps {preview.steps[0]} to {preview.steps[1]}), "
                f"more than {policy.max_masked_share:.0%}",
            )
    return None


def _shares(preview: Preview) -> tuple[tuple[float | None, str], ...]:
    return (
        (preview.masked_tokens, "the tokens"),
        (preview.masked_sequences, "the sequences"),
        (preview.masked_advantage, "|advantage|"),
    )


def _degenerate(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    if policy.correction.is_level != "sequence" or situation.preview is None or situation.preview.weight_ess is None:
        return None
    ess = situation.preview.weight_ess
    if ess >= policy.min_weight_ess:
        return None
    return Refusal(
        "weights_degenerate",
        f"products of ratios over sequences this long leave {ess:.1%} effective samples; use a token or geometric level",
    )


def _cooling(situation: Situation, control: Control, policy: Policy) -> Refusal | None:
    if control.last_switch is None or situation.step - control.last_switch >= policy.cool_down_steps:
        return None
    return Refusal("cool_down", f"it was switched at step {control.last_switch}; {policy.cool_down_steps} steps rest")


def _rate(_: Situation, control: Control, policy: Policy) -> Refusal | None:
    if control.switches < policy.max_switches:
        return None
    return Refusal("rate_limit", f"it was switched {control.switches} times in this run; a person has to decide")


# What needs a preview stands last: tokens are only read when nothing else speaks against the correction.
_RULES: Final[tuple[Rule, ...]] = (
    _stopped, _upstream, _diagnosis, _coverage, _cooling, _rate, _preview, _degenerate,
)  # fmt: skip
