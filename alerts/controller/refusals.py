"""Reasons against switching a correction on. The first applicable reason in this order counts.

| reason | when |
|---|---|
| mode_off | the mode is off, unless a user requests the switch |
| stopped | the kill switch is set |
| not_advised | a finding vetoes it, the diagnosis advises against it, or no advice for growth recommends it |
| diagnosis_old | the diagnosis is far behind the run |
| coverage_unknown, low_coverage | the coverage is unknown, or tokens are broken or missing |
| impossible | the trainer can apply none of the corrections |
| cool_down, rate_limit | it was switched a short time ago, or too often |
| no_preview, masks_too_much, weights_degenerate | no correction that was tried keeps to the limits |

Reasons that need a preview come last. Tokens are read only if no other reason applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from logprobe.alerts.controller import effect
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.situation import Control, Situation, Trial
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.judgement import GROWS

STOPPED: Final = "stopped"
MODE_OFF: Final = "mode_off"
NO_PREVIEW: Final = "no_preview"
_OLD: Final = 200  # steps; an older verdict is none about the run as it is now
_LEAST_ESS: Final = 0.1  # of weights that are products over sequences; below, a few sequences decide the step
_TRUNCATED: Final = CorrectionConfig(is_level="token", is_upper=2.0)  # TIS: bounds weights, and drops nothing


class Refusal(NamedTuple):
    """Identifier of a reason and a sentence for users. `about`: the specific ground of a reason with several
    grounds.
    """

    reason: str
    words: str
    about: str = ""
    severity: str = "warning"


def candidates(config: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Return `config`, followed by truncation unless `config` is truncation."""
    return (config,) if config == _TRUNCATED else (config, _TRUNCATED)


def tries(control: Control, policy: Policy) -> tuple[CorrectionConfig, ...]:
    """Return the corrections to try, in order. Omit those that the trainer could not apply, and those up to an active
    one.
    """
    remaining = candidates(policy.correction)
    if control.on and control.config in remaining:
        remaining = remaining[remaining.index(control.config) + 1 :]
    excluded = {*control.impossible, control.config.fingerprint() if control.on and control.config else ""}
    return tuple(config for config in remaining if config.fingerprint() not in excluded)


def chosen(situation: Situation, policy: Policy) -> Trial | None:
    """Return the first correction within the limits, or None if no tried correction is."""
    return next((trial for trial in situation.trials if objection(trial, policy) is None), None)


def refusal(situation: Situation, control: Control, policy: Policy, mode: Mode | None = None) -> Refusal | None:
    """Return the first reason against switching any of `tries` on now, or None. `mode`: None for a user's request."""
    return next(_against(situation, control, policy, mode), None)


def _against(situation: Situation, control: Control, policy: Policy, mode: Mode | None) -> Iterator[Refusal]:
    if mode is Mode.OFF:
        off = "the mode is off, so nothing is suggested or switched on; `logprobe correct RUN armed` changes that"
        yield Refusal(MODE_OFF, off)
    if situation.stopped:
        yield Refusal(STOPPED, "the kill switch is set; `logprobe correct RUN armed` or `on` clears it")
    yield from _by_diagnosis(situation, policy)
    if not control.on and not tries(control, policy):
        yield Refusal(
            "impossible",
            "the trainer reports that it can apply none of the corrections; its health records say why, and `logprobe "
            "correct RUN armed` tries again",
            severity="critical",
        )
    if control.last_switch is not None and situation.step - control.last_switch < policy.cool_down_steps:
        when = f"it was switched at step {control.last_switch}"
        yield Refusal("cool_down", f"{when}; the cool-down is {policy.cool_down_steps} steps")
    if (times := len(control.switched_at)) >= policy.max_switches:
        yield Refusal("rate_limit", f"it was switched {times} times in this run; a person has to decide")
    if chosen(situation, policy) is None:
        yield _tried(situation, policy)


def _by_diagnosis(situation: Situation, policy: Policy) -> Iterator[Refusal]:
    """Yield objections of the diagnosis, or of its absence, to any correction."""
    if (fault := situation.fault) is not None:
        layer, found = fault["layer"].replace("_", " "), f"{fault['cause']}: {fault['explanation']}"
        yield Refusal("not_advised", f"fix the engine first; the {layer} layer shows {found}", fault["cause"])
    unexplained = situation.verdict in GROWS and situation.advice != "enable"  # not known to be harmless
    if situation.advice == "do_not_enable" or unexplained:
        yield Refusal("not_advised", situation.why or "the diagnosis gives no advice about a correction")
    if (seen := situation.diagnosed_step) is not None and situation.step - seen > _OLD:
        behind = f"the latest diagnosis covers steps up to {seen}, and the run is at step {situation.step}"
        yield Refusal("diagnosis_old", f"{behind}; `logprobe show` names the job that fails")
    if situation.coverage is None:
        yield Refusal("coverage_unknown", "coverage is unknown, so the effect of a correction is too")
    elif situation.coverage < policy.min_coverage:
        yield Refusal(
            "low_coverage",
            f"coverage is {situation.coverage:.1%}, below {policy.min_coverage:.0%}: tokens are broken or missing, "
            "and a correction would act on the rest only",
        )


def _tried(situation: Situation, policy: Policy) -> Refusal:
    """Return the objections to each tried correction."""
    against = [(trial.config, objection(trial, policy)) for trial in situation.trials]
    seen = [(config, refused) for config, refused in against if refused is not None and refused.reason != NO_PREVIEW]
    if not seen:
        return _UNSEEN
    told = "; ".join(f"{config}: {refused.words}" for config, refused in seen)
    message = (
        f"every correction exceeds a limit. {told}. `logprobe correct RUN on --force` switches the configured one on; or "
        f"{effect.remedy(stale=situation.stale)}"
    )
    return Refusal(seen[0][1].reason, message, severity="critical")


_UNSEEN: Final = Refusal(
    NO_PREVIEW,
    "the effect cannot be previewed: no raw tokens of recent steps are kept, or no advantages although it needs them",
)


def objection(trial: Trial, policy: Policy) -> Refusal | None:
    """Return the objection to one correction according to its preview, or None."""
    preview = trial.preview
    if preview is None or not preview.tokens:
        return _UNSEEN
    shares = {
        "the tokens": preview.masked_tokens,
        "the sequences": preview.masked_sequences,
        "|advantage|": preview.masked_advantage,
    }
    for part, share in shares.items():
        if share is not None and share > policy.max_masked_share:
            steps = f"steps {preview.steps[0]} to {preview.steps[1]}"
            words = f"it would mask {share:.0%} of {part} ({steps}), more than {policy.max_masked_share:.0%}"
            return Refusal("masks_too_much", words)
    ess = preview.weight_ess
    if trial.config.is_level == "sequence" and ess is not None and ess < _LEAST_ESS:
        return Refusal(
            "weights_degenerate",
            f"products of ratios over sequences this long leave {ess:.1%} effective samples; use a token or geometric "
            "level",
        )
    return None
