"""When masked importance sampling goes on, and when not: a table of cases; the reasons are what people read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diagnoses import finding

from logprobe.alerts.controller import decide
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.refusals import candidates, refusal
from logprobe.alerts.controller.situation import (
    Acknowledgement,
    Control,
    Phase,
    Preview,
    Returned,
    Situation,
    Trial,
)
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.document import FindingDocument

POLICY = Policy(mode=Mode.ARMED)
PREVIEW = Preview(
    steps=(96, 100), tokens=5000, masked_tokens=0.03, masked_sequences=0.0, masked_advantage=0.04, weight_ess=0.9
)
STALE = finding("staleness", layer="objective")
CRITICAL = Situation(
    step=100,
    verdict="critical",
    advice="enable",
    findings=(STALE,),
    coverage=1.0,
    trials=(Trial(POLICY.correction, PREVIEW),),
)
RAW = finding("raw_logprobs", layer="semantic", vetoes=True, explanation="log-probs are taken before the temperature")


def on(step: int = 100) -> Control:
    """Switched on at `step`."""
    control, _ = decide.advance(Control(), replace(CRITICAL, step=step), POLICY)
    return control


def acknowledged(*steps: int, masked: float | None = 0.03) -> tuple[Acknowledgement, ...]:
    return tuple(Acknowledgement(step, POLICY.correction.fingerprint(), masked) for step in steps)


def tried(config: CorrectionConfig = POLICY.correction, **changed: float | None) -> dict[str, tuple[Trial, ...]]:
    """One correction, and what it would do other than `PREVIEW`."""
    return {"trials": (Trial(config, replace(PREVIEW, **changed)),)}


def names(actions) -> list[str]:
    return [f"{action.name}/{action.reason}" for action in actions]


ROUNDING = finding("low_precision", layer="inference_path")
MISSED = finding("missed_weight_sync", layer="inference_path", vetoes=True)
LIVED_WITH = {"by": "ann"}
# What is found beside critical growth, and whether the controller acts: it goes by vetoes, not by layers.
VETOES = [
    ((STALE,), None),
    ((ROUNDING, STALE), None),  # the level of bfloat16: a small share of the gap
    (({**ROUNDING, "vetoes": True}, STALE), "low_precision"),  # beyond what was accepted, or most of the growth
    ((ROUNDING, MISSED, STALE), "missed_weight_sync"),
    (({**MISSED, "vetoes": False}, STALE), None),
    ((RAW, STALE), "raw_logprobs"),  # semantic ones always, however small
    (({**RAW, "accepted": LIVED_WITH}, STALE), "raw_logprobs"),  # importance weights of a wrong distribution stay wrong
    ((MISSED, RAW), "raw_logprobs"),
    (({**STALE, "accepted": LIVED_WITH},), None),  # a critical verdict needs no staleness
]


@pytest.mark.parametrize(("findings", "vetoed"), VETOES)
def test_only_what_vetoes_keeps_a_correction_off(findings: tuple[FindingDocument, ...], vetoed: str | None) -> None:
    control, (action,) = decide.advance(Control(), replace(CRITICAL, findings=findings), POLICY)
    assert control.on is (vetoed is None)
    assert action.reason == ("critical_growth" if vetoed is None else "not_advised")
    assert vetoed is None or vetoed in action.words


@pytest.mark.parametrize(("findings", "vetoed"), VETOES)
def test_only_what_vetoes_is_said_to_be_hidden_by_a_correction(
    findings: tuple[FindingDocument, ...], vetoed: str | None
) -> None:
    control, said = replace(on(), phase=Phase.APPLIED), []
    for step in range(110, 125):
        control, actions = decide.advance(control, replace(CRITICAL, step=step, findings=findings), POLICY)
        said += names(actions)
    hidden = [each for each in said if each.startswith("hides_fault")]
    assert hidden == ([] if vetoed is None else [f"hides_fault/{vetoed}"])


def test_growth_by_accepted_staleness_waits_until_it_is_critical() -> None:
    lived_with = replace(CRITICAL, verdict="growing", findings=({**STALE, "accepted": LIVED_WITH},))
    assert decide.advance(Control(), lived_with, POLICY)[1] == ()


@pytest.mark.parametrize("findings", [(), ({**STALE, "confidence": 0.3},), ({**STALE, "urgency": "informational"},)])
def test_growth_that_is_not_yet_critical_waits_and_the_page_says_for_what(
    findings: tuple[FindingDocument, ...],
) -> None:
    control, actions = decide.advance(Control(), replace(CRITICAL, verdict="growing", findings=findings), POLICY)
    assert (control, actions) == (replace(Control(), waiting=control.waiting, objection="not_yet"), ())
    assert "once it is critical" in (control.waiting or "")


PRODUCT = CorrectionConfig(is_level="sequence", is_mode="mask", is_upper=2.0)
REFUSALS = [
    ("stopped", {"stopped": True}, {}, {}),
    ("not_advised", {"findings": (STALE, RAW)}, {}, {}),
    ("not_advised", {"findings": (finding("missed_weight_sync", layer="inference_path", vetoes=True),)}, {}, {}),
    ("coverage_unknown", {"coverage": None}, {}, {}),
    ("low_coverage", {"coverage": 0.989}, {}, {}),
    ("no_preview", {"trials": ()}, {}, {}),
    ("no_preview", {"trials": (Trial(POLICY.correction, None),)}, {}, {}),
    ("not_advised", {"advice": "do_not_enable"}, {}, {}),
    ("not_advised", {"advice": None}, {}, {}),
    ("impossible", {}, {"impossible": tuple(each.fingerprint() for each in candidates(POLICY.correction))}, {}),
    ("no_preview", tried(tokens=0), {}, {}),
    ("masks_too_much", tried(masked_tokens=0.21), {}, {}),
    ("masks_too_much", tried(masked_sequences=0.21), {}, {}),
    ("masks_too_much", tried(masked_advantage=0.21), {}, {}),
    (
        "weights_degenerate",
        tried(PRODUCT, weight_ess=0.09),
        {},
        {"correction": PRODUCT},
    ),
    ("diagnosis_old", {"step": 301, "diagnosed_step": 100}, {}, {}),
    ("cool_down", {}, {"last_switch": 1}, {}),
    ("rate_limit", {}, {"switched_at": (1, 2, 3, 4)}, {}),
]  # fmt: skip


@pytest.mark.parametrize("reason", sorted({reason for reason, *_ in REFUSALS}))
def test_every_reason_is_documented(repository: Path, reason: str) -> None:
    assert f"`{reason}`" in (repository / "docs" / "correction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("reason", "situation", "control", "policy"), REFUSALS)
def test_it_refuses_and_says_why(reason: str, situation: dict, control: dict, policy: dict) -> None:
    found = refusal(replace(CRITICAL, **situation), replace(Control(), **control), POLICY.model_copy(update=policy))
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize(
    "situation",
    [
        {"coverage": 0.99},
        {"step": 300, "diagnosed_step": 100},
        {"findings": ({**RAW, "vetoes": False},)},  # it is over, say
        tried(masked_tokens=0.2, masked_sequences=0.2, masked_advantage=None),
        tried(weight_ess=0.0),  # token level: no products
    ],
)
def test_what_keeps_within_the_limits_is_not_refused(situation: dict) -> None:
    assert (
        refusal(replace(CRITICAL, **situation), Control(last_switch=0, switches=3, switched_at=(0, 0, 0)), POLICY)
        is None
    )


# What may keep a critical verdict from a directive: mode, kill switch, and each reason above.
IDLE = [
    ("refused/mode_off", {}, {}, {"mode": Mode.OFF}),
    ("suggested/critical_growth", {}, {}, {"mode": Mode.SUGGEST}),
    ("refused/stopped", {"stopped": True}, {"stopped": True}, {}),
    *((f"refused/{reason}", situation, control, policy) for reason, situation, control, policy in REFUSALS),
]


@pytest.mark.parametrize("verdict", ["critical", "growing"])
@pytest.mark.parametrize(("name", "situation", "control", "policy"), IDLE)
def test_a_bad_verdict_without_a_directive_always_has_a_reason_and_says_it_once(
    verdict: str, name: str, situation: dict, control: dict, policy: dict
) -> None:
    situation = {**situation, "findings": (STALE, *situation.get("findings", ()))}
    bad = replace(CRITICAL, verdict=verdict)
    known = replace(Control(), **{"stopped": situation.get("stopped", False), **control})
    rules = POLICY.model_copy(update=policy)
    decided, actions = decide.advance(known, replace(bad, **situation), rules)
    expected = name if verdict == "critical" else name.replace("critical_growth", "staleness")
    assert names(actions) == [expected]
    assert not decided.on
    assert decided.waiting
    again = replace(bad, **{"trials": CRITICAL.trials if policy.get("mode") is None else (), **situation})
    assert decide.advance(decided, again, rules) == (decided, ())


def test_what_was_suggested_stands_without_a_preview_and_gives_way_to_a_fault() -> None:
    control, _ = decide.advance(Control(), CRITICAL, Policy())
    unseen = replace(CRITICAL, trials=())  # tokens are not read again for what was suggested
    assert decide.advance(control, unseen, Policy()) == (control, ())
    _, actions = decide.advance(control, replace(unseen, findings=(RAW,)), Policy())
    assert names(actions) == ["refused/not_advised"]


def test_a_reason_goes_with_the_verdict_and_with_the_directive() -> None:
    control, _ = decide.advance(Control(), replace(CRITICAL, coverage=0.5), POLICY)
    assert "coverage" in (control.waiting or "")
    assert decide.advance(control, replace(CRITICAL, verdict="healthy"), POLICY)[0].waiting is None
    assert decide.advance(control, CRITICAL, POLICY)[0].waiting is None  # it is on


def test_a_kill_switch_of_old_is_said_again_when_the_run_turns_bad() -> None:
    stopped, actions = decide.advance(Control(), replace(CRITICAL, verdict="healthy", stopped=True), POLICY)
    assert names(actions) == ["stopped/kill_switch"]
    assert names(decide.advance(stopped, replace(CRITICAL, stopped=True), POLICY)[1]) == ["refused/stopped"]


def test_a_refusal_names_the_finding_and_is_said_once() -> None:
    broken = replace(CRITICAL, findings=(RAW, STALE))
    control, actions = decide.advance(Control(), broken, POLICY)
    assert names(actions) == ["refused/not_advised"]
    assert "fix the engine first" in actions[0].words
    assert "raw_logprobs: log-probs are taken before the temperature" in actions[0].words
    control, low = decide.advance(control, replace(CRITICAL, coverage=0.5), POLICY)
    assert names(low) == ["refused/low_coverage"]
    assert decide.advance(control, broken, POLICY)[1] == ()
    control, other = decide.advance(control, replace(CRITICAL, findings=(MISSED, STALE)), POLICY)
    assert "missed_weight_sync" in other[0].words  # another fault is another reason
    assert decide.advance(control, broken, POLICY)[1] == ()
    assert names(decide.advance(control, CRITICAL, POLICY)[1]) == ["switched_on/critical_growth"]


def test_the_trainers_word_is_awaited() -> None:
    control = on()
    waiting = replace(CRITICAL, step=109)
    assert decide.advance(control, waiting, POLICY) == (control, ())
    missed, actions = decide.advance(control, replace(waiting, step=110), POLICY)
    assert names(actions) == ["not_acknowledged/no_record"]
    assert actions[0].severity == "critical"
    assert decide.advance(missed, replace(waiting, step=120), POLICY) == (missed, ())
    late, actions = decide.advance(missed, replace(waiting, step=121, acknowledgements=acknowledged(121)), POLICY)
    assert names(actions) == ["acknowledged/applied"]
    assert actions[0].severity == "critical", "those who heard that it was missing hear its end"
    assert late.phase is Phase.APPLIED


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Acknowledgement(104, POLICY.correction.fingerprint(), 0.03), "no_record"),  # before the directive begins
        (Acknowledgement(106, "another", 0.03), "other_config"),
        (Acknowledgement(106, None, None), "no_record"),
    ],
)
def test_other_words_are_no_acknowledgement(said: Acknowledgement, reason: str) -> None:
    control, actions = decide.advance(on(), replace(CRITICAL, step=110, acknowledgements=(said,)), POLICY)
    assert names(actions) == [f"not_acknowledged/{reason}"]
    assert ("another" in actions[0].words) is (reason == "other_config")
    assert control.phase is Phase.ISSUED


def test_ranks_that_apply_different_corrections_are_said_aloud() -> None:
    applied = replace(on(), phase=Phase.APPLIED)
    both = (*acknowledged(106, 107), Acknowledgement(107, "another", 0.0))
    control, (action,) = decide.advance(applied, replace(CRITICAL, step=107, acknowledgements=both), POLICY)
    assert (action.name, action.severity, action.details["step"]) == ("ranks_disagree", "critical", 107)
    assert decide.advance(control, replace(CRITICAL, step=108, acknowledgements=both), POLICY) == (control, ())


def test_what_the_records_confirm_brings_the_preview_up_to_date() -> None:
    applied = replace(on(), phase=Phase.APPLIED)
    acks = acknowledged(105, 106, 107, 108, 109, masked=0.15)
    situation = replace(CRITICAL, step=112, acknowledgements=acks, trials=())
    assert decide.recount_step(applied, situation, POLICY) == 109
    assert decide.advance(applied, situation, POLICY) == (applied, ())  # nothing to count in
    control, actions = decide.advance(applied, replace(situation, recount=0.14), POLICY)
    assert (control.previewed, actions) == (0.14, ())
    assert decide.recount_step(control, situation, POLICY) is None


def test_what_is_masked_now_is_not_lost_among_all_that_went_well() -> None:
    applied = replace(on(), phase=Phase.APPLIED)
    acks = (*acknowledged(*range(105, 145)), *acknowledged(*range(145, 150), masked=0.3))
    _, actions = decide.advance(applied, replace(CRITICAL, step=152, acknowledgements=acks), POLICY)
    assert names(actions) == ["kept/not_recomputed"]


@pytest.mark.parametrize(("measured", "action"), [(0.2, []), (0.21, ["kept/not_recomputed"])])
def test_what_was_forced_without_a_preview_keeps_to_the_limit(measured: float, action: list[str]) -> None:
    unseen = replace(CRITICAL, trials=())
    control, _ = decide.switch_on(Control(), unseen, POLICY, by="ann", force=True)
    acks = acknowledged(105, 106, 107, 108, 109, masked=measured)
    situation = replace(unseen, step=112, acknowledgements=acks)
    _, actions = decide.advance(replace(control, phase=Phase.APPLIED), situation, POLICY)
    assert names(actions) == action


def test_a_few_steps_are_no_ground_to_take_it_back() -> None:
    applied = replace(on(), phase=Phase.APPLIED)
    acks = acknowledged(105, 106, 107, 108, masked=0.9)
    assert decide.advance(applied, replace(CRITICAL, step=111, acknowledgements=acks), POLICY)[1] == ()


def test_after_it_was_taken_back_it_rests() -> None:
    withdrawn = replace(on(), phase=Phase.WITHDRAWN, last_switch=109)
    assert names(decide.advance(withdrawn, replace(CRITICAL, step=208), POLICY)[1]) == ["refused/cool_down"]
    assert names(decide.advance(withdrawn, replace(CRITICAL, step=209), POLICY)[1]) == ["switched_on/critical_growth"]


@pytest.mark.parametrize(
    ("judgement", "growth", "severity"),
    [
        ("helped", "halted", "info"),
        ("helped", "still_growing", "warning"),
        ("no_effect_shown", "still_growing", "warning"),
        ("no_effect_shown", "steady", "info"),
        ("harmed", "steady", "critical"),
    ],
)
def test_the_effect_is_judged_once(judgement: str, growth: str, severity: str) -> None:
    applied = replace(on(), phase=Phase.APPLIED, applied_from=109)  # four steps after the directive
    effect = {"judgement": judgement, "words": "as measured", "growth": growth}
    due = replace(CRITICAL, step=159, acknowledgements=acknowledged(109), effect=effect)
    early = decide.advance(applied, replace(due, step=158), POLICY)
    assert early == (applied, ())
    late = decide.advance(applied, replace(due, effect={**effect, "judgement": "too_early"}), POLICY)
    assert late == (applied, ())
    control, (action,) = decide.advance(applied, due, POLICY)
    assert (action.name, action.reason, action.severity, action.details) == ("effect", judgement, severity, effect)
    assert decide.advance(control, due, POLICY) == (control, ())


def test_a_fault_that_comes_up_while_it_is_on_is_said_aloud() -> None:
    applied = replace(on(), phase=Phase.APPLIED)
    control, actions = decide.advance(applied, replace(CRITICAL, step=110, findings=(RAW,)), POLICY)
    assert decide.advance(control, replace(CRITICAL, step=119, findings=(RAW,)), POLICY) == (control, ())
    assert actions == ()  # as long as it may be about records on their way
    control, actions = decide.advance(control, replace(CRITICAL, step=120, findings=(RAW,)), POLICY)
    assert names(actions) == ["hides_fault/raw_logprobs"]
    assert actions[0].severity == "critical"
    assert control.on
    assert decide.advance(control, replace(CRITICAL, step=122, findings=(RAW,)), POLICY) == (control, ())


def test_a_finding_of_a_moment_calls_nobody() -> None:
    control = replace(on(), phase=Phase.APPLIED)
    for step in range(110, 150):
        findings = (RAW,) if step % 5 == 0 else ()
        control, actions = decide.advance(control, replace(CRITICAL, step=step, findings=findings), POLICY)
        assert actions == ()


def test_a_person_switches_on_against_a_refusal_only_by_force() -> None:
    broken = replace(CRITICAL, findings=(RAW,))
    control, actions = decide.switch_on(Control(), broken, POLICY, by="ann")
    assert (control, names(actions)) == (Control(), ["refused/not_advised"])
    control, (action,) = decide.switch_on(Control(), broken, POLICY, by="ann", force=True)
    assert control.on
    assert action.details["overridden"] == "not_advised"
    assert "ann" in action.words


def test_a_person_switches_off_and_it_stays_off() -> None:
    control, actions = decide.switch_off(on(), 120, by="ann")
    assert names(actions) == ["switched_off/manual"]
    assert (control.phase, control.mode) == (Phase.WITHDRAWN, Mode.OFF)
    later, actions = decide.advance(control, replace(CRITICAL, step=900), POLICY)
    assert (actions, later.phase) == ((), Phase.WITHDRAWN)  # that it stays off was said
    assert later.waiting is not None
    again, _ = decide.set_mode(control, Mode.ARMED, by="ann")
    assert names(decide.advance(again, replace(CRITICAL, step=900), POLICY)[1]) == ["switched_on/critical_growth"]


@pytest.mark.parametrize(
    ("control", "situation", "policy", "wanted"),
    [
        ({}, {}, {}, True),
        ({"said": ("refused/masks_too_much",)}, {}, {}, True),
        ({"phase": Phase.SUGGESTED}, {}, {}, True),  # it was armed since
        ({"phase": Phase.SUGGESTED}, {}, {"mode": Mode.SUGGEST}, False),
        ({"phase": Phase.APPLIED}, {}, {}, False),
        ({"mode": Mode.OFF}, {}, {}, False),
        ({"last_switch": 99}, {}, {}, False),
        ({"switched_at": (0, 1, 2, 3)}, {}, {}, False),
        ({}, {"verdict": "healthy"}, {}, False),
        ({}, {"findings": (RAW,)}, {}, False),
        ({}, {"coverage": 0.5}, {}, False),
        ({}, {"stopped": True}, {}, False),
    ],
)
def test_raw_tokens_are_read_only_when_it_depends_on_them(
    control: dict, situation: dict, policy: dict, wanted: bool
) -> None:
    known = replace(Control(), **control), replace(CRITICAL, **situation), POLICY.model_copy(update=policy)
    assert bool(decide.wanted_trials(*known)) is wanted


def test_switching_off_what_is_not_on_begins_no_rest() -> None:
    control, _ = decide.switch_off(Control(), 100, by="ann")
    assert names(decide.switch_on(control, CRITICAL, POLICY, by="bob")[1]) == ["switched_on/manual"]


def test_what_is_remembered_survives_json() -> None:
    refused, _ = decide.advance(Control(), replace(CRITICAL, coverage=0.1), POLICY)
    for control in (Control(), on(), refused, decide.switch_off(on(), 120, by="ann")[0]):
        assert Control.parse(json.loads(json.dumps(control.document()))) == control


EARLIER = CorrectionConfig(is_level="token", is_upper=2.0)


def test_what_was_switched_on_at_a_step_that_is_trained_again_is_off_and_judged_again() -> None:
    control = replace(on(500), said=("refused/cool_down", "effect"), switched_at=(100, 500), switches=2)
    back = replace(CRITICAL, step=300, returned=Returned())
    control, actions = decide.advance(control, back, POLICY)
    assert names(actions) == ["switched_off/returned"]
    assert "went back to step 300, before the switch at step 500" in actions[0].words
    assert (control.phase, control.from_step, control.switched_at, control.said) == (Phase.IDLE, None, (100,), ())
    _, actions = decide.advance(control, replace(CRITICAL, step=301), POLICY)
    assert names(actions) == ["switched_on/critical_growth"], "no cool-down counts from step 500"


def test_what_had_been_on_before_that_applies_again_and_has_to_be_acknowledged() -> None:
    back = replace(CRITICAL, step=300, returned=Returned(EARLIER, 250))
    control, actions = decide.advance(on(500), back, POLICY)
    assert names(actions) == ["switched_on/returned"]
    assert (control.phase, control.config, control.from_step, control.last_switch) == (Phase.ISSUED, EARLIER, 250, None)
    said = (Acknowledgement(299, EARLIER.fingerprint(), 0.01),)
    control, actions = decide.advance(control, replace(CRITICAL, step=301, acknowledgements=said), POLICY)
    assert names(actions) == ["acknowledged/applied"]


@pytest.mark.parametrize(
    ("before", "told"),
    [(Returned(EARLIER, 250), ["switched_off/returned"]), (Returned(None, 250), []), (Returned(), [])],
)
def test_what_a_person_switched_off_stays_off(before: Returned, told: list[str]) -> None:
    off, _ = decide.switch_off(on(400), 500, by="ann")
    control, actions = decide.advance(off, replace(CRITICAL, step=300, returned=before), POLICY)
    assert names(actions) == told
    assert (control.on, control.mode, control.last_switch) == (False, Mode.OFF, None)
    _, actions = decide.advance(control, replace(CRITICAL, step=301), POLICY)
    assert names(actions) == ["refused/mode_off"]
