"""Reasons against switching a correction on: each is one small rule, looked at in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from logprobe.alerts.controller import effect
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.situation import Control, Preview, Situation, Trial
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.judgement import GROWS

_TRUNCATED: Final = CorrectionConfig(is_level="token", is_upper=2.0)  # TIS: bounds weights, and drops nothing


def candidates(config: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Return `config` and, unless it is that itself, truncation."""
    return (config,) if config == _TRUNCATED else (config, _TRUNCATED)


STOPPED: Final = "stopped"
MODE_OFF: Final = "mode_off"
NO_PREVIEW: Final = "no_preview"
_OLD: Final = 200  # steps; an older verdict is none about the run as it is now
_LEAST_ESS: Final = 0.1  # of weights that are products over sequences; below, a few sequences decide the step


class Refusal(NamedTuple):
    """Reason: an identifier, and a sentence for users."""

    reason: str
    words: str
    about: str = ""  # what exactly, where one reason can have several grounds
    severity: str = "warning"


Rule = Callable[[Situation, Control, Policy], Refusal | None]


def refusal(situation: Situation, control: Control, policy: Policy, mode: Mode | None = None) -> Refusal | None:
    """The first reason against switching any of `tries` on now; None: there is none. `mode`: None when a person
    asks."""
    if mode is Mode.OFF:
        message = "the mode is off, so nothing is suggested or switched on; `logprobe correct RUN armed` changes that"
        return Refusal(MODE_OFF, message)
    return next((refused for rule in _RULES if (refused := rule(situation, control, policy))), None)


def tries(control: Control, policy: Policy) -> tuple[CorrectionConfig, ...]:
    """The corrections to try, in order, but for those that the trainer could not apply; while one is on, those that
    come after it."""
    remaining = candidates(policy.correction)
    if control.on and control.config in remaining:
        remaining = remaining[remaining.index(control.config) + 1 :]
    excluded = {*control.impossible, control.config.fingerprint() if control.on and control.config else ""}
    return tuple(config for config in remaining if config.fingerprint() not in excluded)


def chosen(situation: Situation, policy: Policy) -> Trial | None:
    """The first correction that keeps to the limits; None: none of those tried does."""
    return next((trial for trial in situation.trials if objection(trial, policy) is None), None)


def objection(trial: Trial, policy: Policy) -> Refusal | None:
    """Return what speaks against one correction, by its preview, or None."""
    if trial.preview is None or not trial.preview.tokens:
        return Refusal(
            NO_PREVIEW,
            "the effect cannot be previewed: no raw tokens of recent steps are kept, or no advantages although it "
            "needs them",
        )
    return _masks(trial.preview, policy) or _degenerate(trial, trial.preview)


def _stopped(situation: Situation, _: Control, __: Policy) -> Refusal | None:
    return (
        Refusal(STOPPED, "the kill switch is set; `logprobe correct RUN armed` or `on` clears it")
        if situation.stopped
        else None
    )


def _not_advised(situation: Situation, _: Control, __: Policy) -> Refusal | None:
    """Refuse what the diagnosis advises against; growth that it does not explain is not known to be harmless."""
    fault = situation.fault
    if fault is not None:
        layer = fault["layer"].replace("_", " ")
        message = f"fix the engine first; the {layer} layer shows {fault['cause']}: {fault['explanation']}"
        return Refusal("not_advised", message, about=fault["cause"])
    unexplained = situation.verdict in GROWS and situation.advice != "enable"
    if situation.advice != "do_not_enable" and not unexplained:
        return None
    return Refusal("not_advised", situation.why or "the diagnosis gives no advice about a correction")


def _impossible(_: Situation, control: Control, policy: Policy) -> Refusal | None:
    if control.on or tries(control, policy):
        return None
    return Refusal(
        "impossible",
        "the trainer reports that it can apply none of the corrections; its health records say why, and `logprobe correct "
        "RUN armed` tries again",
        severity="critical",
    )


def _diagnosis(situation: Situation, _: Control, __: Policy) -> Refusal | None:
    seen = situation.diagnosed_step
    if seen is None or situation.step - seen <= _OLD:
        return None
    return Refusal(
        "diagnosis_old",
        f"the latest diagnosis covers steps up to {seen}, and the run is at step {situation.step}; `logprobe show` "
        "names the job that fails",
    )


def _coverage(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    if situation.coverage is None:
        return Refusal("coverage_unknown", "coverage is unknown, so the effect of a correction is too")
    if situation.coverage < policy.min_coverage:
        return Refusal(
            "low_coverage",
            f"coverage is {situation.coverage:.1%}, below {policy.min_coverage:.0%}: tokens are broken or missing, "
            "and a correction would act on the rest only",
        )
    return None


def _tried(situation: Situation, _: Control, policy: Policy) -> Refusal | None:
    """Return nothing as soon as one correction keeps to the limits."""
    if chosen(situation, policy) is not None:
        return None
    against = [(trial.config, objected) for trial in situation.trials if (objected := objection(trial, policy))]
    seen = [(config, refused) for config, refused in against if refused.reason != NO_PREVIEW]
    if not seen:
        return against[0][1] if against else objection(Trial(policy.correction, None), policy)
    told = "; ".join(f"{config}: {refused.words}" for config, refused in seen)
    message = (
        f"every correction exceeds a limit. {told}. `logprobe correct RUN on --force` switches the configured one on; or "
        f"{effect.remedy(stale=situation.stale)}"
    )
    return Refusal(seen[0][1].reason, message, severity="critical")


def _masks(preview: Preview, policy: Policy) -> Refusal | None:
    for share, part in _shares(preview):
        if share is not None and share > policy.max_masked_share:
            return Refusal(
                "masks_too_much",
                f"it would mask {share:.0%} of {part} (steps {preview.steps[0]} to {preview.steps[1]}), "
                f"more than {policy.max_masked_share:.0%}",
            )
    return None


def _shares(preview: Preview) -> tuple[tuple[float | None, str], ...]:
    return (
        (preview.masked_tokens, "the tokens"),
        (preview.masked_sequences, "the sequences"),
        (preview.masked_advantage, "|advantage|"),
    )


def _degenerate(trial: Trial, preview: Preview) -> Refusal | None:
    ess = preview.weight_ess
    if trial.config.is_level != "sequence" or ess is None or ess >= _LEAST_ESS:
        return None
    return Refusal(
        "weights_degenerate",
        f"products of ratios over sequences this long leave {ess:.1%} effective samples; use a token or geometric "
        "level",
    )


def _cooling(situation: Situation, control: Control, policy: Policy) -> Refusal | None:
    if control.last_switch is None or situation.step - control.last_switch >= policy.cool_down_steps:
        return None
    return Refusal(
        "cool_down", f"it was switched at step {control.last_switch}; the cool-down is {policy.cool_down_steps} steps"
    )


def _rate(_: Situation, control: Control, policy: Policy) -> Refusal | None:
    if len(control.switched_at) < policy.max_switches:
        return None
    return Refusal(
        "rate_limit", f"it was switched {len(control.switched_at)} times in this run; a person has to decide"
    )


# What needs a preview stands last: tokens are only read when nothing else speaks against the correction.
_RULES: Final[tuple[Rule, ...]] = (
    _stopped, _not_advised, _diagnosis, _coverage, _impossible, _cooling, _rate, _tried,
)  # fmt: skip
