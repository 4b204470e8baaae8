"""What to do about one run's correction: a pure function of what is known and what was done before.

A correction, once on, stays on (a one-way ratchet): switching with the gap would make the objective oscillate. It goes off by a
person, by the kill switch, or because the trainer measured far more masking than was previewed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.refusals import MODE_OFF, NO_PREVIEW, STOPPED, Refusal, refusal, upstream
from logprobe.alerts.controller.situation import Acknowledgement, Action, Control, Phase, Situation
from logprobe.collectors.correction import CorrectionConfig

Decision = tuple[Control, tuple[Action, ...]]

_STALENESS: Final = "staleness"
_STANDING_STEPS: Final = 10  # that a finding upstream lasts before people are called for it
_ENOUGH_ACKS: Final = 5  # steps, before a measured share is compared with the preview
_ON_THEIR_WAY: Final = 3  # steps whose engine records may not have arrived
# Why nothing is done, where nothing speaks against a correction.
_NOT_YET: Final = "the verdict is growing; a correction is considered once it is critical or staleness is found"
_ONLY_SUGGESTS: Final = "mode suggest: a person has to switch it on; `logprobe mis RUN armed` lets the controller do it"
_DRY: Final = "dry run: no directive is sent; set `dry_run: false` in correction.yaml"


def advance(control: Control, situation: Situation, policy: Policy) -> Decision:
    """The next state and what was done, in order. Looking again at the same situation does nothing more."""
    control, actions = _kill_switch(control, situation, policy)
    mode = control.mode or policy.mode
    control = replace(control, waiting=None)
    if control.on:
        for rule in (_acknowledged, _disagreement, _rolled_back, _effect, _found_upstream):
            if control.on:
                control, more = rule(control, situation, policy)
                actions += more
    elif _trigger(situation, policy):
        control, more = _consider(control, situation, policy, mode)
        actions += more
    elif situation.verdict == "growing":
        control = replace(control, waiting=_NOT_YET)
    return control, actions


def wants_preview(control: Control, situation: Situation, policy: Policy) -> bool:
    """Whether it now depends on a preview what `advance` does. Reading raw tokens is what costs."""
    mode = control.mode or policy.mode
    suggested = control.phase is Phase.SUGGESTED and not (mode is Mode.ARMED and not policy.dry_run)
    if control.on or suggested or not _evaluates(control, situation, policy):
        return False
    found = refusal(replace(situation, preview=None), control, policy)
    return found is not None and found.reason == NO_PREVIEW


def _evaluates(control: Control, situation: Situation, policy: Policy) -> bool:
    """Whether a correction that is off could be switched on or suggested."""
    mode = control.mode or policy.mode
    return mode is not Mode.OFF and not situation.stopped and _trigger(situation, policy)


def switch_on(control: Control, situation: Situation, policy: Policy, *, by: str, force: bool = False) -> Decision:
    """A person switches the correction on. Refusals stand unless `force`; the audit then says what was overridden."""
    if control.on:
        return control, ()
    found = refusal(situation, control, policy)
    if found is not None and not force:
        return control, (Action("refused", found.reason, f"not switched on: {found.words}", "warning", {"by": by}),)
    overridden = {} if found is None else {"overridden": found.reason}
    return _switch(control, situation, policy, reason="manual", words=f"switched on by {by}", by=by, **overridden)


def switch_off(control: Control, step: int, *, by: str) -> Decision:
    """A person switches it off; it comes back only by a person."""
    if control.mode is Mode.OFF and not control.on:
        return control, ()
    done = replace(control, mode=Mode.OFF, refusals=(*control.refusals, MODE_OFF))  # it is said by this very action
    if control.on:
        done = replace(done, phase=Phase.WITHDRAWN, last_switch=step)
    return done, (Action("switched_off", "manual", f"switched off by {by}; stays off", "warning", {"by": by}),)


def set_mode(control: Control, mode: Mode, *, by: str) -> Decision:
    """A person chooses the mode of this run. What is on stays on."""
    words = f"mode {mode.value} chosen by {by}"
    return replace(control, mode=mode, refusals=(), waiting=None), (
        Action("mode", mode.value, words, details={"by": by}),
    )


def _kill_switch(control: Control, situation: Situation, policy: Policy) -> Decision:
    if situation.stopped == control.stopped:
        return control, ()
    changed = replace(
        control, stopped=situation.stopped, refusals=tuple(key for key in control.refusals if key != STOPPED)
    )
    if situation.stopped:
        if _trigger(situation, policy):  # what follows from it now is said by this very action
            changed = replace(changed, refusals=(*changed.refusals, STOPPED))
        return changed, (Action("stopped", "kill_switch", "kill switch set: no correction is applied", "warning"),)
    words = "kill switch released" + (": the correction applies again" if control.on else "")
    return changed, (Action("released", "kill_switch", words),)


def _trigger(situation: Situation, policy: Policy) -> bool:
    """Critical growth, or staleness. What layer it comes from decides over refusal, not over looking."""
    stale = any(
        f.cause == _STALENESS and f.confidence >= policy.min_confidence and not f.accepted for f in situation.findings
    )
    return situation.verdict == "critical" or (stale and situation.verdict == "growing")


def _consider(control: Control, situation: Situation, policy: Policy, mode: Mode) -> Decision:
    """Switches on, suggests, or says what keeps it from doing so: `Control.waiting` at every look, an action once."""
    found = refusal(situation, control, policy, mode)
    armed = mode is Mode.ARMED and not policy.dry_run
    if found is not None and not (found.reason == NO_PREVIEW and control.phase is Phase.SUGGESTED and not armed):
        return _refused(replace(control, waiting=found.words), found)
    if armed:
        return _switch(control, situation, policy, reason=_why(situation), words=_because(situation))
    control = replace(control, waiting=_DRY if mode is Mode.ARMED else _ONLY_SUGGESTS)
    if control.phase is Phase.SUGGESTED:
        return control, ()
    what = "dry run: would switch on" if mode is Mode.ARMED else "suggests"
    words = f"{what} {_name(policy.correction)}: {_because(situation)}; it would mask {_masked(situation)}"
    suggested = replace(control, phase=Phase.SUGGESTED)
    return suggested, (Action("suggested", _why(situation), words, "warning", _details(situation, policy)),)


def _refused(control: Control, found: Refusal) -> Decision:
    if found.key in control.refusals:
        return control, ()
    action = Action("refused", found.reason, f"no correction: {found.words}", "warning")
    return replace(control, refusals=(*control.refusals, found.key)), (action,)


def _switch(
    control: Control, situation: Situation, policy: Policy, *, reason: str, words: str, **details: str
) -> Decision:
    from_step = situation.step + policy.notice_steps
    done = replace(
        control,
        phase=Phase.ISSUED,
        config=policy.correction,
        from_step=from_step,
        previewed=None if situation.preview is None else situation.preview.masked_tokens,
        switches=control.switches + 1,
        last_switch=situation.step,
        refusals=(),
        waiting=None,
        ack_missed=False,
        disagreed=False,
        effect_judged=False,
        upstream=None,
        suspect=None,
        suspect_since=None,
        mode=Mode.ARMED if control.mode is Mode.OFF else control.mode,
    )
    sentence = f"{_name(policy.correction)} from step {from_step} on: {words}; it would mask {_masked(situation)}"
    return done, (
        Action(
            "switched_on",
            reason,
            sentence,
            "warning",
            {**_details(situation, policy), "from_step": from_step, **details},
        ),
    )


def _acknowledged(control: Control, situation: Situation, policy: Policy) -> Decision:
    acks = _applied(control, situation)
    if control.phase is Phase.ISSUED and acks:
        step = acks[0].step
        words = f"the trainer applies {_name(control.config)} since step {step}"
        return replace(control, phase=Phase.APPLIED, ack_missed=False), (
            Action("acknowledged", "applied", words, details={"step": step}),
        )
    expected = since(control) + policy.ack_steps
    silent = control.phase is Phase.ISSUED and not situation.stopped and situation.step >= expected
    if silent and not control.ack_missed:
        return replace(control, ack_missed=True), (_not_acknowledged(control, situation, policy),)
    return control, ()


def _not_acknowledged(control: Control, situation: Situation, policy: Policy) -> Action:
    since_when = f"{policy.ack_steps} steps after step {control.from_step}"
    others = _others(control, situation)
    if others:
        words = f"{since_when} the trainer applies a different correction ({others[0].fingerprint}) from the directive"
        return Action("not_acknowledged", "other_config", words, "critical", {"fingerprint": others[0].fingerprint})
    words = (
        f"no acknowledgement of the correction {since_when}: does the trainer call CorrectionSwitch.current and "
        "Recorder.step(correction=...)?"
    )
    return Action("not_acknowledged", "no_record", words, "critical")


def _disagreement(control: Control, situation: Situation, _: Policy) -> Decision:
    """Ranks that apply different corrections in one step train on different objectives."""
    applied = {ack.step for ack in _applied(control, situation)}
    both = [other for other in _others(control, situation) if other.step in applied]
    if control.disagreed or not both:
        return control, ()
    step, other = both[0].step, both[0].fingerprint
    words = f"in step {step} some ranks apply {_name(control.config)} and others another correction ({other}); let one rank ask"
    details = {"step": step, "fingerprint": other}
    return replace(control, disagreed=True), (Action("ranks_disagree", "other_config", words, "critical", details),)


def wants_recount(control: Control, situation: Situation, policy: Policy) -> bool:
    """Whether the trainer masks so much more than was previewed that its steps should be counted again from what was recorded."""
    measured = measured_share(control, situation)
    return measured is not None and measured > _limit(control.previewed, policy)


def measured_share(control: Control, situation: Situation) -> float | None:
    """What the trainer masked in the newest steps; None: it said so of too few.

    The newest count: what is masked in them must not vanish among all that went well before.
    """
    acks = _judged(control, situation)
    return sum(ack.masked or 0.0 for ack in acks) / len(acks) if len(acks) == _ENOUGH_ACKS else None


def recount_step(control: Control, situation: Situation) -> int:
    """The newest of the steps that `measured_share` is of."""
    return _judged(control, situation)[-1].step


def _judged(control: Control, situation: Situation) -> list[Acknowledgement]:
    """Of the newest steps, but for those whose records may still be on their way."""
    last = situation.step - _ON_THEIR_WAY
    return [a for a in _applied(control, situation) if a.masked is not None and a.step <= last][-_ENOUGH_ACKS:]


def _rolled_back(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Takes a correction back that masks far more than it should; when only the gap has grown, the preview is brought up to date."""
    measured, counted = measured_share(control, situation), situation.recount
    if measured is None or measured <= _limit(control.previewed, policy):
        return control, ()
    most = f"more than {policy.max_masked_share:.0%}"
    if counted is not None and measured > _limit(counted, policy):
        recomputed = f"where {counted:.1%} were recomputed from the records of these steps"
        reason, why = "masked_share", f"{recomputed}: its log-probs or mask differ from those recorded"
    elif measured <= policy.max_masked_share:  # as the records say; or they were not kept, or are on their way
        return (control if counted is None else replace(control, previewed=counted)), ()
    elif counted is None:
        reason, why = "masked_share", f"{most}, the limit while these steps cannot be recomputed"
    else:
        reason, why = "masks_too_much", f"{most}: the mismatch has outgrown the correction"
    words = f"rolled back: over {_ENOUGH_ACKS} steps the trainer masked {measured:.1%} of the tokens, {why}"
    done = replace(control, phase=Phase.WITHDRAWN, last_switch=situation.step)
    details = {"measured": measured, "previewed": control.previewed, "counted": counted}
    return done, (Action("rolled_back", reason, words, "critical", details),)


def _limit(share: float | None, policy: Policy) -> float:
    """Above it, what was measured is far off `share`; without one (forced on, no preview) the largest that is ever allowed."""
    if share is None:
        return policy.max_masked_share
    return max(policy.rollback_factor * share, share + policy.rollback_margin)


def effect_due(control: Control, step: int, policy: Policy) -> bool:
    """Whether it is time to judge what the correction has done."""
    return control.phase is Phase.APPLIED and not control.effect_judged and step >= since(control) + policy.effect_steps


def _effect(control: Control, situation: Situation, policy: Policy) -> Decision:
    if not effect_due(control, situation.step, policy) or situation.effect is None:
        return control, ()
    effect = situation.effect
    severity = "critical" if effect["judgement"] == "still_growing" else "warning" if effect.get("worse") else "info"
    action = Action("effect", str(effect["judgement"]), str(effect["words"]), severity, effect)
    return replace(control, effect_judged=True), (action,)


def _found_upstream(control: Control, situation: Situation, policy: Policy) -> Decision:
    """A correction must never hide a bug: what comes up while it is on is said aloud, once it has stood for some steps.

    A finding of a moment may be about records that are still on their way.
    """
    found = upstream(situation, policy)
    cause = None if found is None else found.cause
    if cause != control.suspect:
        return replace(control, suspect=cause, suspect_since=situation.step), ()
    if found is None or cause == control.upstream or situation.step < (control.suspect_since or 0) + _STANDING_STEPS:
        return control, ()
    words = f"a correction is on although the engine is at fault: {found.cause}. Fix it; the correction only hides it"
    done = replace(control, upstream=found.cause)
    return done, (Action("hides_fault", found.cause, words, "critical", {"layer": found.layer}),)


def _applied(control: Control, situation: Situation) -> list[Acknowledgement]:
    """Acknowledgements of what the trainer was told, oldest first."""
    wanted = _wanted(control)
    return [a for a in situation.acknowledgements if a.step >= since(control) and a.fingerprint == wanted]


def _others(control: Control, situation: Situation) -> list[Acknowledgement]:
    """… and of other configurations."""
    known = {None, _wanted(control)}
    return [a for a in situation.acknowledgements if a.step >= since(control) and a.fingerprint not in known]


def _wanted(control: Control) -> str | None:
    return None if control.config is None else control.config.fingerprint()


def since(control: Control) -> int:
    """First corrected step; of a control that is on."""
    return 0 if control.from_step is None else control.from_step


def _why(situation: Situation) -> str:
    return "critical_growth" if situation.verdict == "critical" else _STALENESS


def _because(situation: Situation) -> str:
    return "mismatch grows critically" if situation.verdict == "critical" else "tokens are stale"


def _name(config: CorrectionConfig | None) -> str:
    return "no correction" if config is None else str(config)


def _masked(situation: Situation) -> str:
    return "an unknown share" if situation.preview is None else f"{situation.preview.masked_tokens:.1%} of the tokens"


def _details(situation: Situation, policy: Policy) -> dict[str, object]:
    preview = situation.preview
    return {
        "config": policy.correction.to_dict(),
        "fingerprint": policy.correction.fingerprint(),
        "verdict": situation.verdict,
        "coverage": situation.coverage,
        "preview": None if preview is None else {name: getattr(preview, name) for name in preview.__slots__},
    }
