"""When a correction goes on, and when not: tables of cases and a few histories; what holds always is in `test_walks`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from diagnoses import diagnosis, finding

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
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import advised, in_force
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.document import FindingDocument

ARMED = Policy(mode=Mode.ARMED)
MIS, TIS = candidates(ARMED.correction)
PRODUCT = CorrectionConfig(is_level="sequence", is_mode="mask", is_upper=2.0)
PREVIEW = Preview(
    steps=(96, 100), tokens=5000, masked_tokens=0.03, masked_sequences=0.0, masked_advantage=0.04, weight_ess=0.9
)
STALE = finding("staleness", layer="objective", confidence=0.9)
RAW = finding("raw_logprobs", layer="semantic", vetoes=True, explanation="log-probs are taken before the temperature")
MISSED = finding("missed_weight_sync", layer="inference_path", vetoes=True, explanation="as counted")
ROUNDING = finding("low_precision", layer="inference_path")
LIVED_WITH = {"by": "ann"}
CRITICAL = Situation(
    step=100, verdict="critical", advice="enable", findings=(STALE,), coverage=1.0, trials=(Trial(MIS, PREVIEW),)
)


def tried(*shares: float | None, configs: tuple[CorrectionConfig, ...] = (MIS, TIS)) -> tuple[Trial, ...]:
    """Shares that each candidate would mask, in order; None: it could not be previewed."""
    return tuple(
        Trial(config, None if share is None else replace(PREVIEW, masked_tokens=share, masked_advantage=share))
        for config, share in zip(configs, shares, strict=False)
    )


def other(config: CorrectionConfig = MIS, **changed: float | None) -> dict[str, Any]:
    """One correction, and what it would do other than `PREVIEW`."""
    return {"trials": (Trial(config, replace(PREVIEW, **changed)),)}


def names(actions: Any) -> list[str]:
    return [f"{action.name}/{action.reason}" for action in actions]


def on(step: int = 100) -> Control:
    """Switched on at `step`, from five steps later on."""
    return decide.advance(Control(), replace(CRITICAL, step=step), ARMED)[0]


def acks(*steps: int, masked: float | None = 0.03, config: CorrectionConfig = MIS) -> tuple[Acknowledgement, ...]:
    return tuple(Acknowledgement(step, config.fingerprint(), masked) for step in steps)


APPLIED = replace(on(), phase=Phase.APPLIED, masked_from=105, applied_from=105)


# --- Off: verdict × advice × pace → what an armed controller does ---

LOOKS: list[tuple[str, str | None, tuple[FindingDocument, ...], float | None, str]] = [
    ("critical", "enable", (STALE,), 22.0, "switched_on"),
    ("critical", "enable", (), None, "switched_on"),
    ("critical", "enable", (ROUNDING, STALE), None, "switched_on"),  # the level of bfloat16: a small share of the gap
    ("critical", "enable", ({**MISSED, "vetoes": False}, STALE), None, "switched_on"),
    ("critical", "enable", ({**STALE, "accepted": LIVED_WITH},), None, "switched_on"),
    ("critical", "enable", ({**ROUNDING, "vetoes": True}, STALE), None, "refused/not_advised"),
    ("critical", "enable", ({**RAW, "accepted": LIVED_WITH}, STALE), None, "refused/not_advised"),
    ("critical", "do_not_enable", (), 22.0, "refused/not_advised"),
    ("critical", "do_not_enable", (STALE,), 22.0, "refused/not_advised"),
    ("critical", "do_not_enable", (MISSED,), 22.0, "refused/not_advised"),
    ("critical", None, (STALE,), 22.0, "refused/not_advised"),  # a diagnosis that does not say
    ("growing", "enable", (STALE,), None, "switched_on"),
    ("growing", "enable", (), 22.0, "switched_on"),
    ("growing", "enable", (), 50.0, "switched_on"),
    ("growing", "enable", (), 50.1, "waits"),
    ("growing", "enable", (), None, "waits"),
    ("growing", "enable", ({**STALE, "accepted": LIVED_WITH},), None, "waits"),
    ("growing", "enable", ({**STALE, "confidence": 0.3},), None, "waits"),
    ("growing", "enable", ({**STALE, "urgency": "informational"},), None, "waits"),
    ("growing", "do_not_enable", (), 22.0, "refused/not_advised"),
    ("growing", "do_not_enable", (), 500.0, "waits"),
    ("unknown", "enable", (STALE,), 22.0, "nothing"),
    ("healthy", "not_needed", (), None, "nothing"),
    ("healthy", "enable", (STALE,), 22.0, "nothing"),
    ("calibrating", "do_not_enable", (), None, "nothing"),
    ("no_data", None, (), None, "nothing"),
]


@pytest.mark.parametrize(("verdict", "advice", "findings", "doubling", "done"), LOOKS)
def test_when_it_acts(
    verdict: str, advice: str | None, findings: tuple[FindingDocument, ...], doubling: float | None, done: str
) -> None:
    seen = replace(CRITICAL, verdict=verdict, advice=advice, findings=findings, doubling_steps=doubling)
    control, actions = decide.advance(Control(), seen, ARMED)
    assert control.on is (done == "switched_on")
    assert bool(control.waiting) is (done not in {"switched_on", "nothing"})
    told = [f"{action.name}/{action.reason}" if action.name == "refused" else action.name for action in actions]
    assert told == ([] if done in {"waits", "nothing"} else [done])
    if (fault := seen.fault) is not None:
        assert fault["cause"] in actions[0].words


# --- Off: each reason against ---

REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("stopped", {"stopped": True}, {"stopped": True}, {}),
    ("not_advised", {"findings": (STALE, RAW)}, {}, {}),
    ("not_advised", {"findings": (MISSED,)}, {}, {}),
    ("not_advised", {"advice": "do_not_enable"}, {}, {}),
    ("not_advised", {"advice": None}, {}, {}),
    ("diagnosis_old", {"step": 301, "diagnosed_step": 100}, {}, {}),
    ("coverage_unknown", {"coverage": None}, {}, {}),
    ("low_coverage", {"coverage": 0.989}, {}, {}),
    ("impossible", {}, {"impossible": (MIS.fingerprint(), TIS.fingerprint())}, {}),
    ("cool_down", {}, {"last_switch": 1}, {}),
    ("rate_limit", {}, {"switched_at": (1, 2, 3, 4)}, {}),
    ("no_preview", {"trials": ()}, {}, {}),
    ("no_preview", {"trials": tried(None)}, {}, {}),
    ("no_preview", other(tokens=0), {}, {}),
    ("masks_too_much", other(masked_tokens=0.21), {}, {}),
    ("masks_too_much", other(masked_sequences=0.21), {}, {}),
    ("masks_too_much", other(masked_advantage=0.21), {}, {}),
    ("weights_degenerate", other(PRODUCT, weight_ess=0.09), {}, {"correction": PRODUCT}),
]
IDLE = [
    ("refused/mode_off", {}, {}, {"mode": Mode.OFF}),
    ("suggested/critical_growth", {}, {}, {"mode": Mode.SUGGEST}),
    *((f"refused/{reason}", situation, control, policy) for reason, situation, control, policy in REFUSALS),
]


def test_every_reason_is_documented_and_a_semantic_fault_is_named_before_others(repository: Path) -> None:
    page = (repository / "docs" / "correction.md").read_text(encoding="utf-8")
    assert [reason for reason, *_ in REFUSALS if f"`{reason}`" not in page] == []
    (action,) = decide.advance(Control(), replace(CRITICAL, findings=(MISSED, RAW)), ARMED)[1]
    assert "the semantic layer shows raw_logprobs: log-probs are taken before the temperature" in action.words


@pytest.mark.parametrize(("name", "situation", "control", "policy"), IDLE)
@pytest.mark.parametrize("verdict", ["critical", "growing"])
def test_a_bad_verdict_without_a_directive_has_a_reason_and_says_it_once(
    verdict: str, name: str, situation: dict, control: dict, policy: dict
) -> None:
    findings = (STALE, *situation.get("findings", ()))
    bad = replace(CRITICAL, **{**situation, "verdict": verdict, "findings": findings})
    known, rules = replace(Control(), **control), ARMED.model_copy(update=policy)
    decided, actions = decide.advance(known, bad, rules)
    assert names(actions) == [name if verdict == "critical" else name.replace("critical_growth", "staleness")]
    assert (decided.on, bool(decided.waiting)) == (False, True)
    assert decide.advance(decided, bad, rules) == (decided, ())
    if name.startswith("refused") and "mode" not in policy:  # a user is refused likewise, unless by force
        asked, (action,) = decide.switch_on(known, bad, rules, by="ann")
        assert (asked, names([action])) == (known, [name])
        forced, (action,) = decide.switch_on(known, bad, rules, by="ann", force=True)
        assert (forced.on, f"refused/{action.details['overridden']}") == (True, name)


@pytest.mark.parametrize(
    "situation",
    [
        {"coverage": 0.99},
        {"step": 300, "diagnosed_step": 100},
        {"findings": ({**RAW, "vetoes": False},)},  # it is over, say
        other(masked_tokens=0.2, masked_sequences=0.2, masked_advantage=None),
        other(weight_ess=0.0),  # token level: no products
    ],
)
def test_what_keeps_within_the_limits_is_not_refused(situation: dict) -> None:
    control = Control(last_switch=0, switches=3, switched_at=(0, 0, 0))
    assert refusal(replace(CRITICAL, **situation), control, ARMED) is None


# --- Which correction: the first that keeps to the limits ---

SHARES: list[tuple[tuple[float | None, ...], CorrectionConfig | None]] = [
    ((0.0,), MIS),
    ((0.2,), MIS),
    ((0.201, 0.0), TIS),  # the first item past the limit
    ((0.99, 0.0), TIS),
    ((0.44, 0.3), None),
    ((None, None), None),
    ((None, 0.0), TIS),
]


@pytest.mark.parametrize(("shares", "chosen"), SHARES)
def test_above_the_limit_the_next_correction_is_tried(
    shares: tuple[float | None, ...], chosen: CorrectionConfig | None
) -> None:
    control, (action,) = decide.advance(Control(), replace(CRITICAL, trials=tried(*shares)), ARMED)
    assert (control.config, action.name) == (chosen, "refused" if chosen is None else "switched_on")
    if chosen is not None:
        previews = [each["preview"] and each["preview"]["masked_tokens"] for each in action.details["tried"]]
        assert (previews, action.details["config"]) == ([*shares], chosen.to_dict())
    if len(shares) == 2 and shares[0] is not None:
        assert f"it would mask {shares[0]:.0%} of the tokens" in action.words


def test_where_every_correction_exceeds_a_limit_each_is_named_with_what_to_do() -> None:
    both = (*other(PRODUCT, weight_ess=0.05)["trials"], *tried(0.3, configs=(TIS,)))
    policy = ARMED.model_copy(update={"correction": PRODUCT})
    _, (action,) = decide.advance(Control(), replace(CRITICAL, trials=both), policy)
    assert action.severity == "critical"
    for words in ("30%", "5.0% effective", "`logprobe correct RUN on --force`", "bound the weight lag, lower the"):
        assert words in action.words


@pytest.mark.parametrize("config", [MIS, TIS, PRODUCT, CorrectionConfig(is_level="token", is_upper=None)])
def test_each_candidate_is_another_correction_and_the_configured_one_is_first(config: CorrectionConfig) -> None:
    found = candidates(config)
    assert (found[0], found[-1], len(set(found))) == (config, TIS, len(found))


# --- On ---

ON: list[tuple[float, float | None, tuple[float | None, ...], Mode, str, CorrectionConfig | None]] = [
    # trainer masks, records say, truncation would mask, mode → action, configuration afterwards
    (0.03, None, (), Mode.ARMED, "", MIS),
    (0.08, 0.03, (), Mode.ARMED, "", MIS),
    (0.0801, 0.03, (), Mode.ARMED, "rolled_back/masked_share", None),
    (0.15, 0.14, (), Mode.ARMED, "", MIS),
    (0.15, None, (), Mode.ARMED, "", MIS),  # unknown: keep
    (0.25, 0.03, (0.0,), Mode.ARMED, "rolled_back/masked_share", None),
    (0.25, None, (0.0,), Mode.ARMED, "kept/not_recomputed", MIS),
    (0.25, 0.24, (0.0,), Mode.ARMED, "switched_on/outgrown", TIS),
    (0.25, 0.24, (0.3,), Mode.ARMED, "kept/outgrown", MIS),
    (0.25, 0.24, (None,), Mode.ARMED, "kept/outgrown", MIS),
    (0.25, 0.24, (0.0,), Mode.SUGGEST, "kept/outgrown", MIS),  # a user switched it on
]


@pytest.mark.parametrize(("measured", "counted", "others", "mode", "action", "config"), ON)
@pytest.mark.parametrize(("verdict", "advice"), [("critical", "enable"), ("healthy", "do_not_enable")])
def test_a_working_correction_is_never_withdrawn(
    measured: float, counted: float | None, others: Any, mode: Mode, action: str, config: Any, verdict: str, advice: str
) -> None:
    seen = replace(
        CRITICAL, verdict=verdict, advice=advice, step=112, recount=counted,
        acknowledgements=(*acks(*range(75, 105)), *acks(*range(105, 110), masked=measured), *acks(110, 111)),
        trials=tried(*others, configs=(TIS,)),
    )  # fmt: skip
    policy = ARMED.model_copy(update={"mode": mode})
    assert decide.recount_step(APPLIED, seen, policy) == (109 if measured > 0.08 else None)
    control, actions = decide.advance(APPLIED, seen, policy)
    assert names(actions) == ([action] if action else [])
    assert control.on is (config is not None)
    assert config is None or control.config == config
    assert not action.startswith("kept") or actions[0].severity == "critical"
    if not action and counted is not None and measured > 0.08:
        assert (control.previewed, decide.recount_step(control, seen, policy)) == (counted, None)


def test_what_is_compared_with_what_the_trainer_masks() -> None:
    """A few steps are no ground to take it back; what a user forced, with a preview or without, has that or the limit."""

    def found(control: Control, *steps: int, masked: float, recount: float | None = None) -> list[str]:
        seen = replace(CRITICAL, trials=(), step=112, acknowledgements=acks(*steps, masked=masked), recount=recount)
        return names(decide.advance(replace(control, phase=Phase.APPLIED), seen, ARMED)[1])

    enough = range(105, 110)
    forced, _ = decide.switch_on(Control(), replace(CRITICAL, trials=()), ARMED, by="ann", force=True)
    assert found(APPLIED, 105, 106, 107, 108, masked=0.9, recount=0.0) == []
    assert found(replace(APPLIED, previewed=0.5), *enough, masked=0.52, recount=0.5) == []
    assert found(forced, *enough, masked=0.2) == []
    assert found(forced, *enough, masked=0.21) == ["kept/not_recomputed"]


@pytest.mark.parametrize(
    ("step", "said", "more", "told", "phase"),
    [
        (109, (), {}, [], Phase.ISSUED),
        (110, (), {}, ["not_acknowledged/no_record"], Phase.ISSUED),
        (110, (), {"heard": False}, [], Phase.ISSUED),
        (110, (), {"stopped": True}, ["stopped/kill_switch"], Phase.ISSUED),
        (110, acks(104), {}, ["not_acknowledged/no_record"], Phase.ISSUED),  # before the directive begins
        (110, (Acknowledgement(106, None, None),), {}, ["not_acknowledged/no_record"], Phase.ISSUED),
        (110, (Acknowledgement(106, "another", 0.0),), {}, ["not_acknowledged/other_config"], Phase.ISSUED),
        (106, acks(105), {}, ["acknowledged/applied"], Phase.APPLIED),
        (107, (*acks(106), Acknowledgement(107, "b", 0.0)), {}, ["acknowledged/applied"], Phase.APPLIED),
        (107, (*acks(107), Acknowledgement(107, "b", 0.0)), {}, ["acknowledged/applied", "ranks_disagree/other_config"],
         Phase.APPLIED),
        (108, (), {"impossible": "TRL applies none", **other(TIS)}, ["switched_on/impossible"], Phase.ISSUED),
        (108, (), {"impossible": "TRL applies none", "trials": ()}, ["rolled_back/impossible"], Phase.WITHDRAWN),
        (108, acks(106), {"impossible": "one rank complains"}, ["acknowledged/applied"], Phase.APPLIED),
    ],
)  # fmt: skip
def test_a_directive_counts_once_the_trainer_names_it(
    step: int, said: tuple[Acknowledgement, ...], more: dict, told: list[str], phase: Phase
) -> None:
    seen = replace(CRITICAL, step=step, acknowledgements=said, **more)
    control, actions = decide.advance(on(), seen, ARMED)
    assert (names(actions), control.phase) == (told, phase)
    if phase is Phase.WITHDRAWN:
        assert control.last_switch is None, "it was never applied: nothing has to cool down"
    else:
        assert decide.advance(control, replace(seen, impossible=""), ARMED)[1] == ()


@pytest.mark.parametrize(
    ("judgement", "verdict", "severity"),
    [
        ("helped", "healthy", "info"),
        ("helped", "growing", "warning"),
        ("no_effect_shown", "critical", "warning"),
        ("harmed", "healthy", "critical"),
        ("too_early", "critical", None),
    ],
)
def test_the_effect_is_judged_once(judgement: str, verdict: str, severity: str | None) -> None:
    applied = replace(APPLIED, applied_from=109)  # four steps after the directive
    effect = {"judgement": judgement, "words": "as measured"}
    due = replace(CRITICAL, verdict=verdict, step=159, acknowledgements=acks(109), effect=effect)
    assert decide.advance(applied, replace(due, step=158), ARMED)[1] == ()
    control, actions = decide.advance(applied, due, ARMED)
    assert [(each.name, each.reason, each.severity) for each in actions] == (
        [("effect", judgement, severity)] if severity else []
    )
    left = "bound the weight lag, lower the learning rate, or return to a checkpoint from before the onset"
    still = f"as measured; the run is still judged {verdict}: {left}"
    words = still if severity == "warning" else "as measured"
    assert [(each.words, each.details["words"]) for each in actions] == [(words, words)] * len(actions)
    assert decide.advance(control, due, ARMED) == (control, ())


@pytest.mark.parametrize(("every", "hidden"), [(1, ["hides_fault/raw_logprobs"]), (5, [])])
def test_a_fault_that_lasts_while_it_is_on_is_said_aloud_and_one_of_a_moment_is_not(
    every: int, hidden: list[str]
) -> None:
    control, said = APPLIED, []
    for step in range(110, 150):
        seen = replace(CRITICAL, step=step, findings=() if step % every else (RAW,))
        control, actions = decide.advance(control, seen, ARMED)
        said += [(step, name) for name in names(actions)]
    assert said == [(120, name) for name in hidden]
    assert control.on


# --- What users do, kill switch, return to a checkpoint ---


def test_a_user_switches_off_and_it_stays_off_until_armed() -> None:
    control, actions = decide.switch_off(on(), 120, by="ann")
    assert (names(actions), control.phase, control.mode) == (["switched_off/manual"], Phase.WITHDRAWN, Mode.OFF)
    later, actions = decide.advance(control, replace(CRITICAL, step=900), ARMED)
    assert (actions, later.on, bool(later.waiting)) == ((), False, True)  # that it stays off was said
    again, _ = decide.set_mode(control, Mode.ARMED, by="ann")
    assert names(decide.advance(again, replace(CRITICAL, step=219), ARMED)[1]) == ["refused/cool_down"]
    assert names(decide.advance(again, replace(CRITICAL, step=220), ARMED)[1]) == ["switched_on/critical_growth"]
    never, _ = decide.switch_off(Control(), 100, by="ann")
    assert names(decide.switch_on(never, CRITICAL, ARMED, by="bob")[1]) == ["switched_on/manual"], "nothing cools down"


def test_another_fault_is_another_reason_and_an_old_one_is_not_repeated() -> None:
    control, told = Control(), []
    for change in ({"findings": (RAW,)}, {"coverage": 0.5}, {"findings": (RAW,)}, {"findings": (MISSED,)}, {}):
        control, actions = decide.advance(control, replace(CRITICAL, **change), ARMED)
        told.append(names(actions))
    assert told == [["refused/not_advised"], ["refused/low_coverage"], [], ["refused/not_advised"],
                    ["switched_on/critical_growth"]]  # fmt: skip
    assert control.waiting is None


def test_what_is_news_again() -> None:
    """A kill switch of old once the run turns bad, a reason once a mode was chosen, the word that was missed before."""
    stopped, actions = decide.advance(Control(), replace(CRITICAL, verdict="healthy", stopped=True), ARMED)
    assert names(actions) == ["stopped/kill_switch"]
    assert names(decide.advance(stopped, replace(CRITICAL, stopped=True), ARMED)[1]) == ["refused/stopped"]
    low = replace(CRITICAL, coverage=0.5)
    control, _ = decide.set_mode(decide.advance(Control(), low, ARMED)[0], Mode.ARMED, by="ann")
    assert names(decide.advance(control, low, ARMED)[1]) == ["refused/low_coverage"]
    missed, (action,) = decide.advance(on(), replace(CRITICAL, step=110), ARMED)
    _, (came,) = decide.advance(missed, replace(CRITICAL, step=121, acknowledgements=acks(121)), ARMED)
    assert (action.severity, came.name, came.severity) == ("critical", "acknowledged", "critical")
    before = Control(phase=Phase.WITHDRAWN, suspect="raw_logprobs", suspect_since=3)
    assert decide.advance(before, CRITICAL, ARMED)[0].suspect is None, "that of an earlier correction is none of this"


@pytest.mark.parametrize(
    ("before", "by_user", "told", "phase"),
    [
        (Returned(), False, ["switched_off/returned"], Phase.IDLE),
        (Returned(TIS, 250), False, ["switched_on/returned"], Phase.ISSUED),
        (Returned(TIS, 250), True, ["switched_off/returned"], Phase.IDLE),  # what a user switched off stays off
        (Returned(None, 250), True, [], Phase.IDLE),
    ],
)
def test_a_return_to_before_the_last_switch_undoes_it(
    before: Returned, by_user: bool, told: list[str], phase: Phase
) -> None:
    control = replace(on(500), said=("refused/cool_down", "effect"), switched_at=(100, 500))
    if by_user:
        control, _ = decide.switch_off(control, 510, by="ann")
    control, actions = decide.advance(control, replace(CRITICAL, step=300, returned=before), ARMED)
    assert (names(actions), control.phase, control.switched_at) == (told, phase, (100,))
    assert (control.config, control.last_switch) == (before.config if phase is Phase.ISSUED else None, None)
    acknowledged = replace(CRITICAL, step=301, acknowledgements=acks(299, config=TIS))
    then = {Phase.ISSUED: ["acknowledged/applied"], Phase.IDLE: ["switched_on/critical_growth"]}[phase]
    assert names(decide.advance(control, acknowledged, ARMED)[1]) == (["refused/mode_off"] if by_user else then)


# --- When raw tokens are read ---


@pytest.mark.parametrize(
    ("control", "situation", "policy", "wanted"),
    [
        (Control(), {}, {}, True),
        (Control(said=("refused/masks_too_much",)), {}, {}, True),
        (Control(phase=Phase.SUGGESTED), {}, {}, True),  # it was armed since
        (Control(phase=Phase.SUGGESTED), {}, {"mode": Mode.SUGGEST}, False),
        (Control(mode=Mode.OFF), {}, {}, False),
        (Control(last_switch=99), {}, {}, False),
        (Control(), {"verdict": "healthy"}, {}, False),
        (Control(), {"findings": (RAW,)}, {}, False),
        (Control(), {"stopped": True}, {}, False),
        (APPLIED, {}, {}, False),
        (APPLIED, {"step": 112, "acknowledgements": acks(*range(105, 110), masked=0.25), "recount": 0.24}, {}, True),
        (
            replace(APPLIED, config=TIS),  # nothing comes after it
            {"step": 112, "acknowledgements": acks(*range(105, 110), masked=0.25, config=TIS), "recount": 0.24},
            {},
            False,
        ),
        (on(), {"step": 108, "impossible": "it has none"}, {}, True),
        (on(), {"step": 108, "impossible": "it has none"}, {"mode": Mode.SUGGEST}, False),
    ],
)
def test_raw_tokens_are_read_only_when_it_depends_on_them(
    control: Control, situation: dict, policy: dict, wanted: bool
) -> None:
    found = decide.wanted_trials(control, replace(CRITICAL, **situation), ARMED.model_copy(update=policy))
    assert found == (() if not wanted else (TIS,) if control.on else (MIS, TIS))


def test_what_was_suggested_stands_without_a_preview_and_gives_way_to_a_fault() -> None:
    control, _ = decide.advance(Control(), CRITICAL, Policy())
    unseen = replace(CRITICAL, trials=())  # tokens are not read again for what was suggested
    assert decide.advance(control, unseen, Policy()) == (control, ())
    assert names(decide.advance(control, replace(unseen, findings=(RAW,)), Policy())[1]) == ["refused/not_advised"]


# --- What users read is what the controller does ---


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("look", LOOKS)
def test_advice_and_controller_agree(mode: Mode, look: tuple[Any, ...]) -> None:
    verdict, advice, findings, doubling, _ = look
    conditions: list[dict[str, Any]] = [{}, {"coverage": 0.5}, {"stopped": True}, {"diagnosed_step": 100, "step": 400}]
    for (shares, _), more, phase in product(SHARES, conditions, (Phase.IDLE, Phase.SUGGESTED, Phase.WITHDRAWN)):
        seen = replace(CRITICAL, verdict=verdict, advice=advice, findings=findings, doubling_steps=doubling,
                       **{"trials": tried(*shares), **more})  # fmt: skip
        before, policy = Control(phase=phase, stopped=seen.stopped), ARMED.model_copy(update={"mode": mode})
        reads = bool(decide.wanted_trials(before, seen, policy))
        control, _ = decide.advance(before, seen if reads else replace(seen, trials=()), policy)
        correction = {"advice": advice or "do_not_enable", "why": "not measured"}
        document = dict(diagnosis(verdict, findings=findings, correction=correction))
        urges, case = advised(document, Standing(control)).startswith("switch one on"), (phase, shares, more)
        assert urges is (in_force(document, Standing(control))["advice"] == "enable" and not control.on), case
        assert advice == "enable" or not control.on, case
        if urges and not control.on and not control.stopped and verdict in {"growing", "critical"}:
            # What a user is told to do, an armed controller would do
            assert mode is not Mode.ARMED, case
            seen = replace(seen, trials=tried(*(shares if reads else (0.0,))))
            assert decide.switch_on(before, seen, policy, by="ann")[0].on, case
