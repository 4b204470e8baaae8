"""Decision about one run's correction, a pure function of the known facts and the earlier actions.

| control | situation | action / reason |
|---|---|---|
| any | the kill switch was set or released | stopped, released / kill_switch |
| any | the run returned to before the last switch; corrected there, not disabled by a user | switched_on / returned |
| on, or one applied there | the same return, and no correction applies now | switched_off / returned |
| off | a trigger, and a refusal | refused / its reason |
| off | a trigger; armed | switched_on / critical_growth, fast_growth, staleness |
| off | a trigger; suggest | suggested / the same triggers |
| issued | the trainer acknowledges the directive | acknowledged / applied |
| issued | no acknowledgement within `ACK_STEPS` of a received directive | not_acknowledged / other_config, no_record |
| issued | the trainer cannot apply it; armed, and another correction is within the limits | switched_on / impossible |
| issued | the trainer cannot apply it, and no other correction is available | rolled_back / impossible |
| on | ranks differ in one step | ranks_disagree / other_config |
| on | it masks more than its preview, and the records agree | nothing; the preview is updated |
| on | it masks more than its records give | rolled_back / masked_share |
| on | it masks more than allowed, and the records agree; armed, and another one is within | switched_on / outgrown |
| on | it masks more than allowed; no other is within, or no recomputation exists | kept / outgrown, not_recomputed |
| applied | `effect.STEPS` later | effect / helped, no_effect_shown, harmed |
| on | a finding that vetoes lasts | hides_fault / its cause |

A trigger is critical growth, growth that doubles fast, or growth by staleness. An enabled correction stays enabled (a
one-way ratchet). Switching with the mismatch would make the objective oscillate. Unknown facts cause no switch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from logprobe.alerts.controller import effect
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
from logprobe.monitor.judging.judgement import GROWS

Decision = tuple[Control, tuple[Action, ...]]

_MISSED: Final = "not_acknowledged"
ACK_STEPS: Final = 5  # within which the trainer acknowledges
_STANDING_STEPS: Final = 10  # that a finding upstream lasts before users are called for it
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
    """Return the next state and the actions taken, in order. An unchanged situation causes no second action."""
    control, actions = _kill_switch(control, situation)
    if situation.returned is not None:  # judged from the next look on: this one has gathered for what was on before
        control, more = _went_back(control, situation, situation.returned)
        return control, actions + more
    control = replace(control, waiting=None, objection=None)
    rules = (_acknowledged, _cannot, _disagreement, _masks_more, _effect, _found_upstream) if control.on else (_off,)
    for rule in rules:
        if control.on or rule is _off:
            control, more = rule(control, situation, policy)
            actions += more
    return control, actions


def wanted_trials(control: Control, situation: Situation, policy: Policy) -> tuple[CorrectionConfig, ...]:
    """Return the corrections whose trial `advance` needs, in order. Each trial reads raw tokens, which is expensive."""
    armed = _mode(control, policy) is Mode.ARMED
    if control.on:
        gives_way = _is_impossible(control, situation) or _masking(control, situation, policy) == "outgrown"
        return tries(control, policy) if gives_way and armed else ()
    suggested = control.phase is Phase.SUGGESTED and not armed
    if suggested or _mode(control, policy) is Mode.OFF or situation.stopped or not _trigger(situation):
        return ()
    refused = refusal(replace(situation, trials=()), control, policy)
    return tries(control, policy) if refused is not None and refused.reason == NO_PREVIEW else ()


# --- What users do ---


def switch_on(control: Control, situation: Situation, policy: Policy, *, by: str, force: bool = False) -> Decision:
    """Switch the correction on for a user. `force` overrides refusals, which the audit records."""
    if control.on:
        return control, ()
    refused = refusal(situation, control, policy)
    if refused is not None and not force:
        return control, (Action("refused", refused.reason, f"not switched on: {refused.words}", "warning", {"by": by}),)
    overridden = {} if refused is None else {"overridden": refused.reason}
    trial = chosen(situation, policy) or next(iter(situation.trials), Trial(policy.correction, None))
    told = {"by": by, **overridden}
    return _switch(control, situation, policy, trial, reason="manual", words=f"switched on by {by}", told=told)


def switch_off(control: Control, step: int, *, by: str) -> Decision:
    """Switch the correction off for a user. Only a user can switch it on again."""
    if control.mode is Mode.OFF and not control.on:
        return control, ()
    done = replace(control, mode=Mode.OFF, said=(*control.said, _key(MODE_OFF)))  # by this very action
    if control.on:
        done = replace(done, phase=Phase.WITHDRAWN, last_switch=step)
    return done, (Action("switched_off", "manual", f"switched off by {by}; stays off", "warning", {"by": by}),)


def set_mode(control: Control, mode: Mode, *, by: str) -> Decision:
    """Set the mode of this run for a user. An active correction stays active."""
    said = tuple(key for key in control.said if not key.startswith(_key()))
    done = replace(control, mode=mode, said=said, impossible=(), waiting=None, objection=None)
    return done, (Action("mode", mode.value, f"mode {mode.value} chosen by {by}", details={"by": by}),)


# --- Kill switch and return to a checkpoint ---


def _kill_switch(control: Control, situation: Situation) -> Decision:
    if situation.stopped == control.stopped:
        return control, ()
    said = tuple(key for key in control.said if key != _key(STOPPED))
    if situation.stopped:
        said += (_key(STOPPED),) if _trigger(situation) else ()  # what follows from it is said by this very action
        action = Action("stopped", "kill_switch", "kill switch set: no correction is applied", "warning")
    else:
        words = "kill switch released" + (": the correction applies again" if control.on else "")
        action = Action("released", "kill_switch", words)
    return replace(control, stopped=situation.stopped, said=said), (action,)


def _went_back(control: Control, situation: Situation, before: Returned) -> Decision:
    """Restore the control's state as of the step returned to. Discard corrections and refusals of the abandoned
    attempt.
    """
    off = Control(
        mode=control.mode,
        switches=control.switches,
        switched_at=tuple(step for step in control.switched_at if step <= situation.step),
        stopped=control.stopped,
    )
    went = f"the run went back to step {situation.step}, before the switch at step {control.last_switch}"
    if before.config is not None and control.mode is not Mode.OFF:  # what a user switched off stays off
        first = before.from_step
        on = replace(off, phase=Phase.ISSUED, config=before.config, from_step=first, masked_from=first)
        words = f"{went}: {before.config}, from step {first} on, applies again"
        told = {**_details(situation, Trial(before.config, None)), "from_step": first}
        return on, (Action("switched_on", "returned", words, "warning", told),)
    if not control.on and before.config is None:
        return off, ()
    words = f"{went}: no correction applies, until the run is judged to need one again"
    return off, (Action("switched_off", "returned", words, "warning"),)


# --- While it is off ---


def _mode(control: Control, policy: Policy) -> Mode:
    return control.mode or policy.mode


def _is_fast(situation: Situation) -> bool:
    return situation.doubling_steps is not None and situation.doubling_steps <= FAST


def _trigger(situation: Situation) -> bool:
    """Return whether a correction is considered. Faults cause a refusal later, not here."""
    growing = situation.verdict == "growing" and (bool(situation.stale) or _is_fast(situation))
    return situation.verdict == "critical" or growing


def _because(situation: Situation) -> tuple[str, str]:
    """Return the reason of a trigger and its description."""
    if situation.verdict == "critical":
        return "critical_growth", "mismatch grows critically"
    if _is_fast(situation):
        return "fast_growth", f"K3 doubles every {situation.doubling_steps:.0f} steps"
    return "staleness", "tokens are stale"


def _off(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Switch on, suggest, or record the obstacle. `Control.waiting` always holds the obstacle. The action is taken
    once.
    """
    if not _trigger(situation):
        growing = situation.verdict == "growing"
        return (replace(control, waiting=_NOT_YET, objection=NOT_YET) if growing else control), ()
    armed, suggested = _mode(control, policy) is Mode.ARMED, control.phase is Phase.SUGGESTED
    refused = refusal(situation, control, policy, _mode(control, policy))
    if refused is not None and not (refused.reason == NO_PREVIEW and suggested and not armed):
        action = Action("refused", refused.reason, f"no correction: {refused.words}", refused.severity)
        waiting = _waiting(control, refused, refusal(situation, control, policy))
        return _once(waiting, action, _key(refused.reason, refused.about))
    trial, (reason, words) = chosen(situation, policy), _because(situation)
    if armed and trial is not None:
        return _switch(control, situation, policy, trial, reason=reason, words=words, told={})
    control = replace(control, waiting=_ONLY_SUGGESTS)
    if suggested or trial is None:
        return control, ()
    message = f"suggests {trial.config}: {words}; {_would_mask(trial, situation, policy)}"
    action = Action("suggested", reason, message, "warning", _details(situation, trial))
    return replace(control, phase=Phase.SUGGESTED), (action,)


def _waiting(control: Control, refused: Refusal, otherwise: Refusal | None) -> Control:
    """Record the reason for inaction. `otherwise`: objection in another mode, as far as known without reading
    tokens.
    """
    if refused.reason != MODE_OFF:
        return replace(control, waiting=refused.words, objection=refused.reason)
    if otherwise is None or otherwise.reason == NO_PREVIEW:
        return replace(control, waiting=refused.words)
    return replace(control, waiting=f"{refused.words}; and {otherwise.words}", objection=otherwise.reason)


def _key(*about: str) -> str:
    """Return the key of a refusal in `Control.said`."""
    return "/".join(("refused", *filter(None, about)))


def _once(control: Control, action: Action, key: str) -> Decision:
    """Take an action unless the same was taken since the last switch."""
    return (control, ()) if key in control.said else (replace(control, said=(*control.said, key)), (action,))


def _switch(
    control: Control, situation: Situation, policy: Policy, trial: Trial, *, reason: str, words: str, told: Any
) -> Decision:
    """Switch a correction on when none is active."""
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
    return _issue(begun, situation, policy, trial, reason=reason, words=words, told=told)


def _issue(
    control: Control, situation: Situation, policy: Policy, trial: Trial, *, reason: str, words: str, told: Any
) -> Decision:
    """Issue a directive for the first correction or a replacement. `told`: details of the action."""
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
    details = {**_details(situation, trial), "from_step": from_step, **told}
    return done, (Action("switched_on", reason, sentence, "warning", details),)


# --- While it is on ---


def since(control: Control) -> int:
    """Return the first corrected step. The control must be on."""
    return 0 if control.from_step is None else control.from_step


def applied(control: Control) -> int:
    """Return the first step that the trainer corrected with the newest configuration. The control must be on."""
    return since(control) if control.applied_from is None else control.applied_from


def _acks(control: Control, situation: Situation, *, others: bool = False) -> list[Acknowledgement]:
    """Return acknowledgements of the current directive or of other configurations, oldest first."""
    wanted = None if control.config is None else control.config.fingerprint()
    counts = [a for a in situation.acknowledgements if a.step >= since(control)]
    return [a for a in counts if (a.fingerprint not in {None, wanted} if others else a.fingerprint == wanted)]


def _acknowledged(control: Control, situation: Situation, _: Policy) -> Decision:
    if control.phase is not Phase.ISSUED:
        return control, ()
    if acks := _acks(control, situation):
        step = acks[0].step
        words = f"the trainer applies {_name(control)} since step {step}"
        first = step if control.masked_from is None else control.masked_from
        heard = "critical" if _MISSED in control.said else "info"  # who heard that it was missing hears its end
        done = replace(control, phase=Phase.APPLIED, applied_from=step, masked_from=first)
        return done, (Action("acknowledged", "applied", words, heard, {"step": step}),)
    if situation.stopped or situation.step < since(control) + ACK_STEPS or not situation.heard:
        return control, ()
    late = f"{ACK_STEPS} steps after step {control.from_step}"
    if others := _acks(control, situation, others=True):
        other = others[0].fingerprint
        words = f"{late} the trainer applies a different correction ({other}) from the directive"
        return _once(control, Action(_MISSED, "other_config", words, "critical", {"fingerprint": other}), _MISSED)
    words = (
        f"no acknowledgement of the correction {late}: does the trainer call CorrectionSwitch.current and "
        "Recorder.step(correction=...)?"
    )
    return _once(control, Action(_MISSED, "no_record", words, "critical"), _MISSED)


def _is_impossible(control: Control, situation: Situation) -> bool:
    """Return whether the trainer reports that it cannot apply the directive while no rank applies it."""
    return control.phase is Phase.ISSUED and bool(situation.impossible) and not _acks(control, situation)


def _cannot(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Replace an inapplicable correction with the next one, or raise an alarm."""
    if not _is_impossible(control, situation) or control.config is None:
        return control, ()
    updated = replace(control, impossible=(*control.impossible, control.config.fingerprint()))
    message = f"the trainer cannot apply {control.config} ({situation.impossible})"
    trial = chosen(situation, policy)
    if trial is not None and _mode(control, policy) is Mode.ARMED:
        return _issue(updated, situation, policy, trial, reason="impossible", words=message, told={})
    off = replace(updated, phase=Phase.WITHDRAWN, last_switch=None)  # it was never applied: nothing has to cool down
    return off, (Action("rolled_back", "impossible", f"not applied: {message}", "critical"),)


def _disagreement(control: Control, situation: Situation, _: Policy) -> Decision:
    """Report ranks that apply different corrections in one step. Such ranks train on different objectives."""
    applied = {ack.step for ack in _acks(control, situation)}
    other = next((ack for ack in _acks(control, situation, others=True) if ack.step in applied), None)
    if other is None:
        return control, ()
    words = (
        f"in step {other.step} some ranks apply {_name(control)} and others another correction ({other.fingerprint}); "
        "let one rank ask"
    )
    details = {"step": other.step, "fingerprint": other.fingerprint}
    return _once(control, Action("ranks_disagree", "other_config", words, "critical", details), "ranks_disagree")


def _newest(control: Control, situation: Situation) -> list[Acknowledgement]:
    """Return acknowledgements of the newest recorded steps. Older steps would hide their masked share."""
    last = situation.step - _ON_THEIR_WAY
    return [a for a in _acks(control, situation) if a.masked is not None and a.step <= last][-_ENOUGH_ACKS:]


def recount_step(control: Control, situation: Situation, policy: Policy) -> int | None:
    """Return the newest step whose masked share exceeds the preview enough to require a recomputation, or None."""
    measured = _measured(control, situation)
    if measured is None:
        return None
    far = measured > _limit(control.previewed, policy) or _above_limit(measured, control, policy)
    return _newest(control, situation)[-1].step if far else None


def _measured(control: Control, situation: Situation) -> float | None:
    """Return the share that the trainer masked in the newest steps, or None if too few steps reported it."""
    acks = _newest(control, situation)
    return sum(ack.masked or 0.0 for ack in acks) / len(acks) if len(acks) == _ENOUGH_ACKS else None


def _masking(control: Control, situation: Situation, policy: Policy) -> str:
    """Compare the trainer's masked share with a recomputation from its records.

    Returns:
        "" if the share matches the preview, or is within the limit and not recomputed. "not_recomputed" if it exceeds
        the limit without a recomputation. "masked_share" if both differ. If both agree, "outgrown" above the limit,
        else "grown".
    """
    measured, counted = _measured(control, situation), situation.recount
    if measured is None or recount_step(control, situation, policy) is None:
        return ""
    above = _above_limit(measured, control, policy)
    if counted is None:
        return "not_recomputed" if above else ""
    if measured > _limit(counted, policy):
        return "masked_share"
    return "outgrown" if above else "grown"


def _above_limit(measured: float, control: Control, policy: Policy) -> bool:
    """Return whether the share exceeds both the limit and the share known at the switch. A user may have forced the
    latter.
    """
    return measured > max(policy.max_masked_share, (control.previewed or 0.0) + _MARGIN)


def _limit(share: float | None, policy: Policy) -> float:
    """Return the highest measured share that is consistent with `share`, or the largest allowed one without a
    preview.
    """
    return policy.max_masked_share if share is None else max(_TIMES * share, share + _MARGIN)


def _masks_more(control: Control, situation: Situation, policy: Policy) -> Decision:
    """Respond to a trainer that masks far more than previewed.

    Roll back only if its numbers contradict the records. Unknown numbers do not justify withdrawing a working
    correction.
    """
    found, counted = _masking(control, situation, policy), situation.recount
    if not found:
        return control, ()
    if found == "grown":
        return replace(control, previewed=counted), ()
    measured = _measured(control, situation)
    masked = f"over {_ENOUGH_ACKS} steps the trainer masked {measured:.1%} of the tokens"
    if found == "masked_share":
        words = (
            f"rolled back: {masked}, where {counted:.1%} were recomputed from the records of these steps: its "
            "log-probs or mask differ from those recorded"
        )
        details = {"measured": measured, "previewed": control.previewed, "counted": counted}
        done = replace(control, phase=Phase.WITHDRAWN, last_switch=situation.step)
        return done, (Action("rolled_back", found, words, "critical", details),)
    if found == "outgrown":
        masked = f"{masked}: the mismatch has outgrown the correction"
        trial = chosen(situation, policy)
        if trial is not None and _mode(control, policy) is Mode.ARMED:
            return _issue(control, situation, policy, trial, reason=found, words=masked, told={})
        why = "the controller has no other that keeps to the limits, or may not change to it"
    else:
        why = "these steps cannot be recomputed from the records, so it is not known whether trainer and records agree"
    words = f"the correction stays on, but {masked}, and {why}"
    return _once(control, Action("kept", found, words, "critical"), f"kept/{found}")


def effect_due(control: Control, step: int) -> bool:
    """Return whether the effect of the correction is due for judgement."""
    due = step >= applied(control) + effect.STEPS
    return control.phase is Phase.APPLIED and due and "effect" not in control.said


def _effect(control: Control, situation: Situation, _: Policy) -> Decision:
    found = situation.effect
    # One that is too early is looked at again: its last steps are in flight.
    if not effect_due(control, situation.step) or found is None or found["judgement"] == "too_early":
        return control, ()
    growing, words = situation.verdict in GROWS, str(found["words"])
    if growing:  # a correction does not lower K3
        words += f"; the run is still judged {situation.verdict}: {effect.remedy(stale=situation.stale)}"
    severity = "critical" if found["judgement"] == "harmed" else "warning" if growing else "info"
    details = {**found, "words": words}
    return _once(control, Action("effect", str(found["judgement"]), words, severity, details), "effect")


def _found_upstream(control: Control, situation: Situation, _: Policy) -> Decision:
    """Report a fault that a correction has hidden for several steps. A momentary finding may lack late records."""
    fault = situation.fault
    cause = None if fault is None else fault["cause"]
    if cause != control.suspect:
        return replace(control, suspect=cause, suspect_since=situation.step), ()
    if fault is None or situation.step < (control.suspect_since or 0) + _STANDING_STEPS:
        return control, ()
    message = f"a correction is on although the engine is at fault: {cause}. Fix it; the correction only hides it"
    action = Action("hides_fault", fault["cause"], message, "critical", {"layer": fault["layer"]})
    return _once(control, action, f"hides_fault/{cause}")


# --- Words ---


def _name(control: Control) -> str:
    return "no correction" if control.config is None else str(control.config)


def _would_mask(trial: Trial, situation: Situation, policy: Policy) -> str:
    """Return a text with the masked shares of a correction, or with the objection to it."""
    if trial.preview is None:
        return "it would mask an unknown share"
    passed_over = [
        f"; {earlier.config} was passed over: {against.words}"
        for earlier in situation.trials[: situation.trials.index(trial)]
        if (against := objection(earlier, policy))
    ]
    return f"{trial.preview.words}{''.join(passed_over)}"


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
