"""Decisions of the controller for every combination of verdict, advice, preview, mode and phase; the advice people read never differs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from diagnoses import diagnosis, finding

from logprobe.alerts.controller import decide
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.refusals import candidates
from logprobe.alerts.controller.situation import (
    Acknowledgement,
    Control,
    Phase,
    Preview,
    Situation,
    Trial,
)
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import advised, in_force
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.document import FindingDocument

ARMED = Policy(mode=Mode.ARMED)
MIS, TIS = candidates(ARMED.correction)
STALE: FindingDocument = finding("staleness", layer="objective", confidence=0.9)
MISSED: FindingDocument = finding("missed_weight_sync", confidence=0.9, vetoes=True, explanation="as counted")
UNKNOWN = "semantic and inference-path faults could not be ruled out; see what was not measured"


def preview(masked: float, ess: float = 0.9) -> Preview:
    return Preview(
        steps=(96, 100),
        tokens=5000,
        masked_tokens=masked,
        masked_sequences=0.0,
        masked_advantage=masked,
        weight_ess=ess,
    )


def tried(*masked: float | None) -> tuple[Trial, ...]:
    """Shares that each candidate would mask, in order; None: it could not be previewed."""
    return tuple(
        Trial(config, None if share is None else preview(share))
        for config, share in zip(candidates(ARMED.correction), masked, strict=False)
    )


def situation(verdict: str = "critical", advice: str | None = "enable", **more: Any) -> Situation:
    given = {"step": 100, "coverage": 1.0, "trials": tried(0.03), "why": UNKNOWN, **more}
    return Situation(verdict=verdict, advice=advice, **given)


# --- Which correction: the first that keeps to the limits ---

SHARES: list[tuple[tuple[float | None, ...], CorrectionConfig | None]] = [
    ((0.0,), MIS),
    ((0.2,), MIS),
    ((0.201, 0.0), TIS),  # the first item past the limit
    ((0.44, 0.0), TIS),
    ((0.99, 0.0), TIS),
    ((0.44, 0.3), None),
    ((None, None), None),
    ((None, 0.0), TIS),
]


@pytest.mark.parametrize(("shares", "chosen"), SHARES)
def test_above_the_limit_the_next_correction_is_tried(
    shares: tuple[float | None, ...], chosen: CorrectionConfig | None
) -> None:
    control, (action,) = decide.advance(Control(), situation(trials=tried(*shares)), ARMED)
    assert control.config == chosen
    assert action.name == ("refused" if chosen is None else "switched_on")
    if chosen is not None:
        told = [
            (each["config"], each["preview"] and each["preview"]["masked_tokens"]) for each in action.details["tried"]
        ]
        assert told == [(t.config.to_dict(), t.preview and t.preview.masked_tokens) for t in tried(*shares)]
        assert action.details["config"] == chosen.to_dict()
    if chosen not in {None, MIS} and shares[0] is not None:
        assert f"{shares[0]:.0%}" in action.words


def test_degenerate_weights_are_passed_over() -> None:
    product = CorrectionConfig(is_level="sequence", is_upper=2.0)
    policy = ARMED.model_copy(update={"correction": product})
    control, _ = decide.advance(
        Control(), situation(trials=(Trial(product, preview(0.0, ess=0.05)), Trial(TIS, preview(0.0)))), policy
    )
    assert control.config == TIS
    both = (Trial(product, preview(0.0, ess=0.05)), Trial(TIS, preview(0.3)))
    control, (action,) = decide.advance(Control(), situation(trials=both), policy)
    assert (control.on, action.name, action.severity) == (False, "refused", "critical")
    for share in ("30%", "5.0% effective"):
        assert share in action.words
    assert "`logprobe correct RUN on --force`" in action.words
    assert "lower the learning rate" in action.words


def test_a_refusal_never_blocks_and_is_said_once() -> None:
    control, (said,) = decide.advance(Control(), situation(trials=tried(0.44, 0.3)), ARMED)
    assert said.name == "refused"
    for step in range(101, 140):
        control, actions = decide.advance(control, situation(step=step, trials=tried(0.5, 0.4)), ARMED)
        assert actions == ()
        assert "50%" in (control.waiting or "")
    control, (action,) = decide.advance(control, situation(step=140, trials=tried(0.6, 0.0)), ARMED)
    assert (action.name, control.config) == ("switched_on", TIS)


@pytest.mark.parametrize(
    "config",
    [
        MIS,
        TIS,
        CorrectionConfig(is_level="sequence", is_upper=2.0),
        CorrectionConfig(rs_level="geometric", rs_lower=0.999, rs_upper=1.002),
        CorrectionConfig(rs_level="token", rs_lower=-0.2, rs_upper=0.2, rs_measure="prob_diff", rs_by_advantage=True),
        CorrectionConfig(is_level="token", is_mode="mask", is_upper=1.0, veto=1e-4),
        CorrectionConfig(is_level="token", is_upper=None),
    ],
)
def test_each_candidate_is_another_correction_and_the_configured_one_is_first(config: CorrectionConfig) -> None:
    found = candidates(config)
    assert found[0] == config
    assert len({each.fingerprint() for each in found}) == len(found)
    assert TIS in found


# --- When: verdict × advice × pace ---

LOOKS: list[tuple[str, str | None, tuple[FindingDocument, ...], float | None, str]] = [
    # verdict, advice of the diagnosis, findings, doubling time → what an armed controller does
    ("critical", "enable", (STALE,), 22.0, "switched_on"),
    ("critical", "enable", (), None, "switched_on"),
    ("unknown", "enable", (STALE,), 22.0, "nothing"),
    ("critical", "do_not_enable", (), 22.0, "refused/not_advised"),
    ("critical", "do_not_enable", (STALE,), 22.0, "refused/not_advised"),
    ("critical", None, (STALE,), 22.0, "refused/not_advised"),  # a diagnosis that does not say
    ("critical", "do_not_enable", (MISSED,), 22.0, "refused/not_advised"),
    ("growing", "enable", (STALE,), None, "switched_on"),
    ("growing", "enable", (), 22.0, "switched_on"),
    ("growing", "enable", (), 50.0, "switched_on"),
    ("growing", "enable", (), 50.1, "waits"),
    ("growing", "enable", (), None, "waits"),
    ("growing", "do_not_enable", (), 22.0, "refused/not_advised"),
    ("growing", "do_not_enable", (), 500.0, "waits"),
    ("healthy", "not_needed", (), None, "nothing"),
    ("healthy", "enable", (STALE,), 22.0, "nothing"),
    ("calibrating", "do_not_enable", (), None, "nothing"),
    ("no_data", None, (), None, "nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "advice", "findings", "doubling", "done"), LOOKS)
def test_when_it_acts(
    verdict: str, advice: str | None, findings: tuple[FindingDocument, ...], doubling: float | None, done: str
) -> None:
    seen = situation(verdict, advice, findings=findings, doubling_steps=doubling)
    control, actions = decide.advance(Control(), seen, ARMED)
    assert control.on is (done == "switched_on")
    assert bool(control.waiting) is (done not in {"switched_on", "nothing"})
    told = [f"{action.name}/{action.reason}" if action.name == "refused" else action.name for action in actions]
    assert told == ([] if done in {"waits", "nothing"} else [done])


# --- One mind: what people read is what the controller does ---

MODES = [Mode.OFF, Mode.SUGGEST, Mode.ARMED]
PHASES = [Phase.IDLE, Phase.SUGGESTED, Phase.WITHDRAWN]
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"coverage": None},
    {"coverage": 0.5},
    {"stopped": True},
    {"diagnosed_step": 100, "step": 400},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("look", LOOKS)
def test_advice_and_controller_agree(mode: Mode, phase: Phase, look: tuple[Any, ...]) -> None:
    verdict, advice, findings, doubling, _ = look
    for (shares, _), more in product(SHARES, CONDITIONS):
        seen = situation(verdict, advice, findings=findings, doubling_steps=doubling, trials=tried(*shares), **more)
        before, policy = (
            Control(phase=phase, stopped=bool(more.get("stopped"))),
            ARMED.model_copy(update={"mode": mode}),
        )
        reads = bool(decide.wanted_trials(before, seen, policy))
        looked = seen if reads else replace(seen, trials=())  # then it is not known what tokens would say
        control, actions = decide.advance(before, looked, policy)
        standing = Standing(
            phase=control.phase, stopped=control.stopped, objection=control.objection, waiting=control.waiting
        )
        document = _document(verdict, advice, findings)
        words, correction = advised(document, standing), in_force(document, standing)
        case = (mode, phase, look, shares, more, words)
        urges = words.startswith("switch one on")
        assert urges is (correction["advice"] == "enable" and not control.on), case
        if control.on:
            assert advice == "enable", case
            assert actions[0].name == "switched_on", case
        elif urges and not control.stopped and verdict in {"growing", "critical"}:
            # What a person is told to do, an armed controller would do
            assert mode is not Mode.ARMED, case
            assert decide.switch_on(
                before, replace(seen, trials=tried(*(shares if reads else (0.0,)))), policy, by="ann"
            )[0].on, case


def _document(verdict: str, advice: str | None, findings: tuple[FindingDocument, ...]) -> dict[str, Any]:
    correction = {"advice": advice or "do_not_enable", "why": UNKNOWN}
    return dict(diagnosis(verdict, findings=findings, correction=correction))


# --- A correction that is on ---


def on(config: CorrectionConfig = MIS, **more: Any) -> Control:
    given = {
        "from_step": 100,
        "previewed": 0.03,
        "switches": 1,
        "last_switch": 95,
        "config": config,
        "masked_from": 105,
        "applied_from": 105,
        **more,
    }
    return Control(phase=Phase.APPLIED, **given)


def masking(share: float, config: CorrectionConfig = MIS) -> tuple[Acknowledgement, ...]:
    return tuple(Acknowledgement(step, config.fingerprint(), share) for step in range(105, 110))


ON: list[tuple[float, float | None, tuple[float | None, ...], Mode, str, CorrectionConfig | None]] = [
    # trainer masks, records say, other candidates would mask, mode → action, configuration afterwards
    (0.03, None, (), Mode.ARMED, "", MIS),
    (0.08, 0.03, (), Mode.ARMED, "", MIS),
    (0.0801, 0.03, (), Mode.ARMED, "rolled_back/masked_share", None),
    (0.15, 0.14, (), Mode.ARMED, "", MIS),
    (0.15, None, (), Mode.ARMED, "", MIS),  # unknown: keep
    (0.15, 0.05, (), Mode.ARMED, "rolled_back/masked_share", None),
    (0.25, 0.03, (0.0,), Mode.ARMED, "rolled_back/masked_share", None),
    (0.25, None, (0.0,), Mode.ARMED, "kept/not_recomputed", MIS),
    (0.99, None, (), Mode.ARMED, "kept/not_recomputed", MIS),
    (0.25, 0.24, (0.0,), Mode.ARMED, "switched_on/outgrown", TIS),
    (0.25, 0.24, (0.3,), Mode.ARMED, "kept/outgrown", MIS),
    (0.25, 0.24, (None,), Mode.ARMED, "kept/outgrown", MIS),
    (0.25, 0.24, (), Mode.ARMED, "kept/outgrown", MIS),
    (0.25, 0.24, (0.0,), Mode.SUGGEST, "kept/outgrown", MIS),  # a person switched it on
]


@pytest.mark.parametrize(("measured", "counted", "others", "mode", "action", "config"), ON)
@pytest.mark.parametrize("verdict", ["critical", "growing", "healthy"])
@pytest.mark.parametrize("advice", ["enable", "do_not_enable"])
def test_a_working_correction_is_never_withdrawn(
    measured: float,
    counted: float | None,
    others: tuple[float | None, ...],
    mode: Mode,
    action: str,
    config: CorrectionConfig | None,
    verdict: str,
    advice: str,
) -> None:
    trials = tuple(
        Trial(each, None if share is None else preview(share)) for each, share in zip((TIS,), others, strict=False)
    )
    seen = situation(verdict, advice, step=112, acknowledgements=masking(measured), recount=counted, trials=trials)
    control, actions = decide.advance(on(), seen, ARMED.model_copy(update={"mode": mode}))
    assert [f"{each.name}/{each.reason}" for each in actions] == ([action] if action else [])
    assert control.on is (config is not None)
    assert config is None or control.config == config
    if action.startswith("kept"):
        assert actions[0].severity == "critical"
        assert decide.advance(control, seen, ARMED.model_copy(update={"mode": mode})) == (
            control,
            (),
        )  # the message is not repeated
    if action == "switched_on/outgrown":
        assert control.from_step == 112 + ARMED.notice_steps
        assert control.switches == 1  # still the same correction of this run, as far as the limit of switches goes


def test_what_was_kept_is_looked_at_again() -> None:
    worse = situation(step=112, acknowledgements=masking(0.25), recount=0.24)
    control, _ = decide.advance(on(), replace(worse, trials=()), ARMED)
    again = replace(worse, trials=(Trial(TIS, preview(0.0)),))
    assert decide.wanted_trials(control, again, ARMED) == (TIS,)
    assert decide.advance(control, again, ARMED)[0].config == TIS


def test_a_correction_that_the_trainer_cannot_apply_gives_way_to_the_next() -> None:
    control, _ = decide.advance(Control(), situation(), ARMED)
    cannot = situation(step=108, impossible="TRL applies none", trials=(Trial(TIS, preview(0.0)),))
    assert decide.wanted_trials(control, cannot, ARMED) == (TIS,)
    control, (action,) = decide.advance(control, cannot, ARMED)
    assert (control.config, control.phase, action.reason) == (TIS, Phase.ISSUED, "impossible")
    assert "TRL applies none" in action.words
    assert MIS.fingerprint() in control.impossible


def test_when_the_trainer_can_apply_none_people_are_called_and_nothing_is_said_to_be_on() -> None:
    control, _ = decide.advance(Control(), situation(), ARMED)
    for step in (108, 116):
        left = decide.wanted_trials(control, cannot := situation(step=step, impossible="it has none"), ARMED)
        control, actions = decide.advance(
            control, replace(cannot, trials=tuple(Trial(c, preview(0.0)) for c in left[:1])), ARMED
        )
    assert (control.on, actions[-1].name, actions[-1].severity) == (False, "rolled_back", "critical")
    assert len(control.impossible) == 2
    control, (refused,) = decide.advance(control, situation(step=300, trials=()), ARMED)
    assert (refused.reason, control.on) == ("impossible", False)
    assert decide.wanted_trials(control, situation(step=301, trials=()), ARMED) == ()


def test_an_acknowledged_correction_is_not_impossible() -> None:
    seen = situation(step=112, acknowledgements=masking(0.03), impossible="one rank complains")
    assert decide.advance(on(), seen, ARMED) == (on(), ())
