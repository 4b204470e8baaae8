"""Decision about one run's correction: a pure function of what is known and what was done before.

A correction, once on, stays on (a one-way ratchet): switching with the gap would make the objective oscillate. One that
masks too much gives way to the next of `refusals.candidates`. It goes off by a person, by the kill switch, or because
trainer and records disagree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.refusals import (
    MODE_OFF,
    NO_PREVIEW,
    STOPPED,
    Refusal,
    chosen,
    objection,
    refusal,
    tries,
)
from logprobe.alerts.controller.situation import Acknowledgement, Action, Control, Phase, Returned, Situation, Trial
from logprobe.collectors.correction import CorrectionConfig

Decision = tuple[Control, tuple[Action, ...]]

_MISSED: Final = "not_acknowledged"
_STANDING_STEPS: Final = 10  # that a finding upstream lasts before people are called for it
_ENOUGH_ACKS: Final = 5  # steps, before a measured share is compared with the preview
_TIMES, _MARGIN = 2.0, 0.05  # a masked share that is above another by both is another
_ON_THEIR_WAY: Final = 3  # steps whose engine records may not have arrived
# Steps. What doubles so fast goes from growing (twice the baseline) to critical (three times) within 30 steps, and in
# as many more to a multiple of which masks would drop most: waiting for critical gains nothing. What is slower may
# still end by itself.
FAST: Final = 50
NOT_YET: Final = "not_yet"
_NOT_YET: Final = (
    f"not yet: the verdict is growing; a correction is considered once it is critical, K3 doubles within {FAST} steps, "
    "or staleness is found"
)
# Why nothing is done, where nothing speaks against a correction.
_ONLY_SUGGESTS: Final = (
    "mode suggest: a person has to switch it on; `logprobe correct RUN armed` lets the controller do it"
)


def advance(control: Control, situation: Situation, policy: Policy) -> Decision:
    """The next state and what was done, in order. Looking again at the same situation does nothing more."""
    control, actions = _kill_switch(control, situation)
    if situation.returned is not None:  # judged from the next look on: this one has gathered for what was on before
        control, more = _returned(control, situation, situation.returned)
        return control, actions + more
    mode = control.mode or policy.mode
    control = replace(control, waiting=None, objection=None)
    if control.on:
        for rule in (_acknowledged, _cannot, _disagreement, _masks_more, _effect, _found_upstream):
            if control.on:
                control, more = rule(control, situation, policy)
                actions += more
    elif _trigger(situation):
        control, more = _consider(control, situation, policy, mode)
        actions += more
    elif situation.verdict == "growing":
        control = replace(control, waiting=_NOT_YET, objection=NOT_YET)
    return control, actions


def wanted_trials(control: Control, situation: Situation, policy: Policy) -> tuple[CorrectionConfig, ...]:
    """The corrections on whose trial it depends what `advance` does, in order; reading raw tokens is what costs."""
    if control.on:
        gives_way = _is_impossible(control, situation) or _masking(control, situation, policy) == "outgrown"
        return tries(control, policy) if gives_way and _armed(control, policy) else ()
    suggested = control.phase is Phase.SUGGESTED and not _armed(control, policy)
    if suggested or not _evaluates(control, situation, policy):
        return ()
    refused = refusal(replace(situation, trials=()), control, policy)
    return tries(control, policy) if refused is not None and refused.reason == NO_PREVIEW else ()


def _armed(control: Control, policy: Policy) -> bool:
    return (control.mode or policy.mode) is Mode.ARMED


def _evaluates(control: Control, situation: Situation, policy: Policy) -> bool:
    """Return whether a correction that is off could be switched on or suggested."""
    mode = control.mode or policy.mode
    return mode is not Mode.OFF and not situation.stopped and _trigger(situation)


def switch_on(control: Control, situation: Situation, policy: Policy, *, by: str, force: bool = False) -> Decision:
    """A person switches the correction on. Refusals stand unless `force`; the audit then says what was overridden."""
    if control.on:
        return control, ()
    refused = refusal(situation, control, policy)
    if refused is not None and not force:
        return control, (Action("refused", refused.reason, f"not switched on: {refused.words}", "warning", {"by": by}),)
    overridden = {} if refused is None else {"overridden": refused.reason}
    trial = chosen(situation, policy) or next(iter(situation.trials), Trial(policy.correction, None))
    return _switch(
        control, situation, policy, trial, reason="manual", words=f"switched on by {by}", by=by, **overridden
    )


def switch_off(control: Control, step: int, *, by: str) -> Decision:
    """A person switches it off; it comes back only by a person."""
    if control.mode is Mode.OFF and not control.on:
        return control, ()
    done = replace(control, mode=Mode.OFF, said=(*control.said, _key(MODE_OFF)))  # by this very action
    if control.on:
        done = replace(done, phase=Phase.WITHDRAWN, last_switch=step)
    return done, (Action("switched_off", "manual", f"switched off by {by}; stays off", "warning", {"by": by}),)


def set_mode(control: Control, mode: Mode, *, by: str) -> Decision:
    """A person chooses the mode of this run. What is on stays on."""
    words = f"mode {mode.value} chosen by {by}"
    said = tuple(key for key in control.said if not key.startswith(_key()))
    return replace(control, mode=mode, said=said, impossible=(), waiting=None, objection=None), (
        Action("mode", mode.value, words, details={"by": by}),
    )


def _kill_switch(control: Control, situation: Situation) -> Decision:
    if situation.stopped == control.stopped:
        return control, ()
    said = tuple(key for key in control.said if key != _key(STOPPED))
    changed = replace(control, stopped=situation.stopped, said=said)
    if situation.stopped:
        if _trigger(situation):  # what follows from it now is said by this very action
            changed = replace(changed, said=(*said, _key(STOPPED)))
        return changed, (Action("stopped", "kill_switch", "kill switch set: no correction is applied", "warning"),)
    words = "kill switch released" + (": the correction applies again" if control.on else "")
    return changed, (Action("released", "kill_switch", words),)


def _returned(control: Control, situation: Situation, before: Returned) -> Decision:
    """A run that went back to a checkpoint stands as it stood at that step; what came of the attempt that it gave up
    neither corrects nor refuses anything."""
    off = Control(
        mode=control.mode,
        switches=control.switches,
        switched_at=tuple(step for step in control.switched_at if step <= situation.step),
        stopped=control.stopped,
    )
    went = f"the run went back to step {situation.step}, before the switch at step {control.last_switch}"
    if before.config is not None and control.mode is not Mode.OFF:  # what a person switched off stays off
        first = before.from_step
        on = replace(off, phase=Phase.ISSUED, config=before.config, from_step=first, masked_from=first)
        words = f"{went}: {before.config}, from step {first} on, applies again"
        told = {**_details(situation, Trial(before.config, None)), "from_step": first}
        return on, (Action("switched_on", "returned", words, "warning", told),)
    if not control.on and before.config is None:
        return off, ()
    words = f"{went}: no correction applies, until the run is judged to need one again"
    return off, (Action("switched_off", "returned", words, "warning"),)


def _trigger(situation: Situation) -> bool:
    """Critical growth, fast growth, or growth by staleness. Faults decide over refusal, not over looking."""
    growing = situation.verdict == "growing" and (situation.stale or _is_fast(situation))
    return situation.verdict == "critical" or growing


def _is_fast(situation: Situation) -> bool:
    return situation.doubling_steps is not None and situation.doubling_steps <= FAST


def _consider(control: Control, situation: Situation, policy: Policy, mode: Mode) -> Decision:
    """Switches on, suggests, or says what keeps it from doing so: `Control.waiting` at every look, an action once."""
    refused = refusal(situation, control, policy, mode)
    armed = _armed(control, policy)
    if refused is not None and not (refused.reason == NO_PREVIEW and control.phase is Phase.SUGGESTED and not armed):
        return _refused(_waiting(control, refused, refusal(situation, control, policy)), refused)
    trial = chosen(situation, policy)
    if armed and trial is not None:
        return _switch(control, situation, policy, trial, reason=_why(situation), words=_because(situation))
    control = replace(control, waiting=_ONLY_SUGGESTS)
    if control.phase is Phase.SUGGESTED or trial is None:
        return control, ()
    message = f"suggests {trial.config}: {_because(situation)}; {_would_mask(trial, situation, policy)}"
    suggested = replace(control, phase=Phase.SUGGESTED)
    return suggested, (Action("suggested", _why(situation), message, "warning", _details(situation, trial)),)


def _waiting(control: Control, refused: Refusal, otherwise: Refusal | None) -> Control:
    """Note why nothing is done. `otherwise`: what would speak against it in another mode, as far as that is known
    without reading tokens."""
    if refused.reason != MODE_OFF:
        return replace(control, waiting=refused.words, objection=refused.reason)
    if otherwise is None or otherwise.reason == NO_PREVIEW:
        return replace(control, waiting=refused.words)
    return replace(control, waiting=f"{refused.words}; and {otherwise.words}", objection=otherwise.reason)


def _refused(control: Control, refused: Refusal) -> Decision:
    action = Action("refused", refused.reason, f"no correction: {refused.words}", refused.severity)
    return _once(control, action, _key(refused.reason, refused.about))


def _key(*about: str) -> str:
    """Return how `Control.said` names a refusal."""
    return "/".join(("refused", *filter(None, about)))


def _once(control: Control, action: Action, key: str) -> Decision:
    """Take an action unless the same was taken since the last switch."""
    if key in control.said:
        return control, ()
    return replace(control, said=(*control.said, key)), (action,)


def _switch(
    control: Control, situation: Situation, policy: Policy, trial: Trial, *, reason: str, words: str, **details: str
) -> Decision:
    """Switch a correction on where none is."""
    begun = replace(
        control,
        switches=control.switches + 1,
        switched_at=(*control.switched_at, situation.step),
        masked_from=None,
        grown_since=situation.grown_since,
        impossible=(),
        suspect=None,
        suspect_since=None,
        mode=Mode.ARMED if control.mode is Mode.OFF else control.mode,
    )
    return _issue(begun, situation, policy, trial, reason=reason, words=words, **details)


def _issue(
    control: Control, situation: Situation, policy: Policy, trial: Trial, *, reason: str, words: str, **details: str
) -> Decision:
    """Tells the trainer of a correction: the first one, or one in place of another."""
    from_step = situation.step + policy.notice_steps
    done = replace(
        control,
        phase=Phase.ISSUED,
        config=trial.config,
        from_step=from_step,
        applied_from=None,
        previewed=None if trial.preview is None else trial.preview.masked_tokens,
        last_switch=situation.step,
        said=(),
    )
    sentence = f"{trial.config} from step {from_step} on: {words}; {_would_mask(trial, situation, policy)}"
    told = {**_details(situation, trial), "from_step": from_step, **details}
    return done, (Action("switched_on", reason, sentence, "warning", told),)


def _acknowledged(control: Control, situation: Situation, policy: Policy) -> Decision:
    acks = _applied(control, situation)
    if control.phase is Phase.ISSUED and acks:
        step = acks[0].step
        words = f"the trainer applies {_name(control.config)} since step {step}"
        first = step if control.masked_from is None else control.masked_from
        applied = replace(control, phase=Phase.APPLIED, applied_from=step, masked_from=first)
        heard = "critical" if _MISSED in control.said else "info"  # who heard that it was missing hears its end
        return applied, (Action("acknowledged", "applied", words, heard, {"step": step}),)
    expected = since(control) + policy.ack_steps
    if control.phase is Phase.ISSUED and not situation.stopped and situation.step >= expected and situation.heard:
        return _once(control, _not_acknowledged(control, situation, policy), _MISSED)
    return control, ()


def _not_acknowledged(control: Control, situation: Situation, policy: Policy) -> Action:
    since_when = f"{policy.ack_steps} steps after step {control.from_step}"
    others = _others(control, situation)
    if others:
        words = f"{since_when} the trainer applies a different correction ({others[0].fingerprint}) from the directive"
        return Action(_MISSED, "other_config", words, "critical", {"fingerprint": others[0].fingerprint})
    words = (
        f"no acknowledgement of the correction {since_when}: does the trainer call CorrectionSwitch.current and "
        "Recorder.step(correction=...)?"
    )
    return Action(_MISSED, "no_record", words, "critical")


def _is_impossible(control: Control, situation: Situation) -> bool:
    """Return whether the trainer says that it cannot do what it was told, and none of its ranks does."""
    return control.phase is Phase.ISSUED and bool(situation.impossible) and not _applied(control, situation)


def _cannot(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Replace a correction that cannot be applied by the next one, or raise the alarm."""
    if not _is_impossible(control, situation) or control.config is None:
        return control, ()
    updated = replace(control, impossible=(*control.impossible, control.config.fingerprint()))
    message = f"the trainer cannot apply {control.config} ({situation.impossible})"
    trial = chosen(situation, policy)
    if trial is not None and _armed(control, policy):
        return _issue(updated, situation, policy, trial, reason="impossible", words=message)
    off = replace(updated, phase=Phase.WITHDRAWN, last_switch=None)  # it was never applied: nothing has to cool down
    return off, (Action("rolled_back", "impossible", f"not applied: {message}", "critical"),)


def _disagreement(control: Control, situation: Situation, _: Policy) -> Decision:
    """Ranks that apply different corrections in one step train on different objectives."""
    applied = {ack.step for ack in _applied(control, situation)}
    both = [other for other in _others(control, situation) if other.step in applied]
    if not both:
        return control, ()
    step, other = both[0].step, both[0].fingerprint
    words = (
        f"in step {step} some ranks apply {_name(control.config)} and others another correction ({other}); let one "
        "rank ask"
    )
    details = {"step": step, "fingerprint": other}
    return _once(control, Action("ranks_disagree", "other_config", words, "critical", details), "ranks_disagree")


def wants_recount(control: Control, situation: Situation, policy: Policy) -> bool:
    """Return whether the trainer masks so much more than was previewed that its steps should be counted again from what
    was recorded."""
    measured = measured_share(control, situation)
    return measured is not None and (
        measured > _limit(control.previewed, policy) or _above_limit(measured, control, policy)
    )


def measured_share(control: Control, situation: Situation) -> float | None:
    """Return the share that the trainer masked in the newest steps, or None if it said so of too few.

    The newest count: what is masked in them must not vanish among all that went well before.
    """
    acks = _judged(control, situation)
    return sum(ack.masked or 0.0 for ack in acks) / len(acks) if len(acks) == _ENOUGH_ACKS else None


def recount_step(control: Control, situation: Situation) -> int:
    """The newest of the steps that `measured_share` is of."""
    return _judged(control, situation)[-1].step


def _judged(control: Control, situation: Situation) -> list[Acknowledgement]:
    """Return acknowledgements of the newest steps whose records have arrived."""
    last = situation.step - _ON_THEIR_WAY
    return [a for a in _applied(control, situation) if a.masked is not None and a.step <= last][-_ENOUGH_ACKS:]


def _masking(control: Control, situation: Situation, policy: Policy) -> str:
    """Compare what the trainer masks with what its records give.

    Returns:
        "" if it is as previewed, or neither above the limit nor known from the records; "not_recomputed" if it is above
        the limit and not known from them; "masked_share" if the trainer's numbers are not those of the records; "grown"
        or, above the limit, "outgrown" if they are.
    """
    measured, counted = measured_share(control, situation), situation.recount
    if measured is None or not wants_recount(control, situation, policy):
        return ""
    above = _above_limit(measured, control, policy)
    if counted is None:
        return "not_recomputed" if above else ""
    if measured > _limit(counted, policy):
        return "masked_share"
    return "outgrown" if above else "grown"


def _masks_more(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Act where the trainer masks far more than was previewed.

    Rolled back only where its numbers are not those of the records. Where only the gap has grown, the preview is
    brought up to date, and a correction that masks less takes over; what is not known is no ground to withdraw a
    correction that works.
    """
    found, counted = _masking(control, situation, policy), situation.recount
    if not found:
        return control, ()
    measured = measured_share(control, situation)
    masked = f"over {_ENOUGH_ACKS} steps the trainer masked {measured:.1%} of the tokens"
    if found == "grown":
        return replace(control, previewed=counted), ()
    if found == "not_recomputed":
        why = "these steps cannot be recomputed from the records, so it is not known whether trainer and records agree"
        return _kept(control, found, f"{masked}, and {why}")
    if found == "masked_share":
        words = (
            f"rolled back: {masked}, where {counted:.1%} were recomputed from the records of these steps: its "
            "log-probs or mask differ from those recorded"
        )
        details = {"measured": measured, "previewed": control.previewed, "counted": counted}
        done = replace(control, phase=Phase.WITHDRAWN, last_switch=situation.step)
        return done, (Action("rolled_back", found, words, "critical", details),)
    outgrown = f"{masked}: the mismatch has outgrown the correction"
    trial = chosen(situation, policy)
    if trial is not None and _armed(control, policy):
        return _issue(control, situation, policy, trial, reason=found, words=outgrown)
    others = "the controller has no other that keeps to the limits, or may not change to it"
    return _kept(control, found, f"{outgrown}, and {others}")


def _kept(control: Control, reason: str, words: str) -> Decision:
    """Raise the alarm about a correction that stays on, once."""
    return _once(control, Action("kept", reason, f"the correction stays on, but {words}", "critical"), f"kept/{reason}")


def _above_limit(measured: float, control: Control, policy: Policy) -> bool:
    """Above what is allowed, and above what was known when it was switched on (a person may have forced more)."""
    return measured > max(policy.max_masked_share, (control.previewed or 0.0) + _MARGIN)


def _limit(share: float | None, policy: Policy) -> float:
    """Above it, what was measured is far off `share`; without one (forced on, no preview) the largest that is ever
    allowed."""
    if share is None:
        return policy.max_masked_share
    return max(_TIMES * share, share + _MARGIN)


def effect_due(control: Control, step: int, policy: Policy) -> bool:
    """Return whether it is time to judge what the correction has done."""
    due = step >= applied(control) + policy.effect_steps
    return control.phase is Phase.APPLIED and due and "effect" not in control.said


def _effect(control: Control, situation: Situation, policy: Policy) -> Decision:
    if not effect_due(control, situation.step, policy) or situation.effect is None:
        return control, ()
    effect = situation.effect
    if effect["judgement"] == "too_early":  # its last steps are on their way
        return control, ()
    growing = effect.get("growth") == "still_growing"
    severity = "critical" if effect["judgement"] == "harmed" else "warning" if growing else "info"
    return _once(control, Action("effect", str(effect["judgement"]), str(effect["words"]), severity, effect), "effect")


def _found_upstream(control: Control, situation: Situation, _: Policy) -> Decision:
    """A correction must never hide a bug: what comes up while it is on is said aloud, once it has stood for some steps.

    A finding of a moment may be about records that are still to arrive.
    """
    fault = situation.fault
    cause = None if fault is None else fault["cause"]
    if cause != control.suspect:
        return replace(control, suspect=cause, suspect_since=situation.step), ()
    if fault is None or situation.step < (control.suspect_since or 0) + _STANDING_STEPS:
        return control, ()
    message = f"a correction is on although the engine is at fault: {cause}. Fix it; the correction only hides it"
    action = Action("hides_fault", fault["cause"], message, "critical", {"layer": fault["layer"]})
    return _once(control, action, f"hides_fault/{cause}")


def _applied(control: Control, situation: Situation) -> list[Acknowledgement]:
    """Acknowledgements of what the trainer was told, oldest first."""
    wanted = _wanted(control)
    return [a for a in situation.acknowledgements if a.step >= since(control) and a.fingerprint == wanted]


def _others(control: Control, situation: Situation) -> list[Acknowledgement]:
    """… and of other configurations."""
    expected = {None, _wanted(control)}
    return [a for a in situation.acknowledgements if a.step >= since(control) and a.fingerprint not in expected]


def _wanted(control: Control) -> str | None:
    return None if control.config is None else control.config.fingerprint()


def since(control: Control) -> int:
    """First corrected step; of a control that is on."""
    return 0 if control.from_step is None else control.from_step


def applied(control: Control) -> int:
    """First step that the trainer corrected with the newest configuration; of a control that is on."""
    return since(control) if control.applied_from is None else control.applied_from


def _why(situation: Situation) -> str:
    if situation.verdict == "critical":
        return "critical_growth"
    return "fast_growth" if _is_fast(situation) else "staleness"


def _because(situation: Situation) -> str:
    if situation.verdict == "critical":
        return "mismatch grows critically"
    return f"K3 doubles every {situation.doubling_steps:.0f} steps" if _is_fast(situation) else "tokens are stale"


def _name(config: CorrectionConfig | None) -> str:
    return "no correction" if config is None else str(config)


def _would_mask(trial: Trial, situation: Situation, policy: Policy) -> str:
    """Return in words what a correction would mask, and why it is not one before it."""
    if trial.preview is None:
        return "it would mask an unknown share"
    passed_over = [
        f"; {earlier.config} was passed over: {against.words}"
        for earlier in situation.trials[: situation.trials.index(trial)]
        if (against := objection(earlier, policy))
    ]
    return f"it would mask {trial.preview.masked_tokens:.1%} of the tokens{''.join(passed_over)}"


def _details(situation: Situation, trial: Trial) -> dict[str, object]:
    return {
        "config": trial.config.to_dict(),
        "fingerprint": trial.config.fingerprint(),
        "verdict": situation.verdict,
        "coverage": situation.coverage,
        "preview": _shares(trial),
        "tried": [{"config": tried.config.to_dict(), "preview": _shares(tried)} for tried in situation.trials],
    }


def _shares(trial: Trial) -> dict[str, object] | None:
    return None if trial.preview is None else {name: getattr(trial.preview, name) for name in trial.preview.__slots__}
