"""Promises of the controller that hold on every walk through random situations."""

from __future__ import annotations

import json
from random import Random

import pytest
from diagnoses import finding

from logprobe.alerts.controller import decide
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.refusals import candidates, objection
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

MIS, TIS = candidates(Policy().correction)
PRODUCT = CorrectionConfig(is_level="sequence", is_mode="mask", is_upper=2.0)
STALE = finding("staleness", layer="objective", confidence=0.9)
RAW = finding("raw_logprobs", layer="semantic", vetoes=True)
MISSED = finding("missed_weight_sync", layer="inference_path", vetoes=True)


def _trial(config: CorrectionConfig, share: float | None) -> Trial:
    return Trial(config, None if share is None else Preview((96, 100), 5000, share, 0.0, share, 0.9))


def _situation(r: Random, control: Control, step: int, policy: Policy) -> Situation:
    findings = [each for each, odds in ((STALE, 0.6), (RAW, 0.1), (MISSED, 0.1)) if r.random() < odds]
    shares = [r.choice([None, 0.0, 0.03, 0.19, 0.21, 0.6]) for _ in range(r.choice([0, 1, 2, 2]))]
    fingerprints = [control.config.fingerprint() if control.config else None] * 8 + [None, "another"]
    masked, first = r.choice([None, 0.03, 0.1, 0.3]), decide.since(control)
    reports = [
        Acknowledgement(at, r.choice(fingerprints), masked)
        for at in range(max(0, first - 2), min(step, first + 12) + 1)
        if control.on and r.random() < 0.7
    ]
    return Situation(
        step=step,
        verdict=r.choice(["critical", "critical", "growing", "healthy", "watch", "unknown", "calibrating", "no_data"]),
        findings=tuple(findings),
        diagnosed_step=r.choice([None, step, step - 250]),
        advice=r.choice(["enable", "enable", "enable", "do_not_enable", None]),
        doubling_steps=r.choice([None, 20.0, 80.0]),
        coverage=r.choice([1.0, 1.0, 1.0, 0.9, None]),
        trials=tuple(map(_trial, candidates(policy.correction), shares)),
        acknowledgements=tuple(reports),
        stopped=r.random() < 0.1,
        recount=r.choice([None, 0.03, 0.3]),
        heard=r.random() < 0.8,
        impossible=r.choice(["", "", "no advantages"]),
        returned=r.choice([None] * 9 + [Returned(), Returned(TIS, 2)]),
        effect=r.choice([None, {"judgement": "helped", "words": "w"}]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_holds_on_every_walk(seed: int) -> None:
    r = Random(seed)
    policy = Policy(
        mode=r.choice(list(Mode)), correction=r.choice([MIS, PRODUCT, TIS]), cool_down_steps=r.choice([0, 20])
    )
    control, step = Control(), 100
    for _ in range(60):
        step += r.choice([0, 1, 3, 20])
        seen = _situation(r, control, step, policy)
        before, deed = control, r.random()
        if deed < 0.9:
            control, actions = decide.advance(before, seen, policy)
        elif deed < 0.95:
            control, actions = decide.switch_off(before, step, by="ann")
        else:
            control, actions = decide.set_mode(before, r.choice(list(Mode)), by="ann")
        assert Control.parse(json.loads(json.dumps(control.document()))) == control
        assert all(each.words and each.severity in {"info", "warning", "critical"} for each in actions)
        mode, named = before.mode or policy.mode, {each.name for each in actions}
        if control.on and not before.on and seen.returned is None:  # switched on by itself
            assert mode is Mode.ARMED
            assert seen.fault is None
            assert (seen.advice, seen.stopped, seen.verdict in {"critical", "growing"}) == ("enable", False, True)
            assert (seen.coverage or 0) >= policy.min_coverage
            assert any(each.config == control.config and objection(each, policy) is None for each in seen.trials)
        if control.phase is Phase.APPLIED and before.phase is not Phase.APPLIED:
            expected = before.config.fingerprint() if before.config else None
            assert any(a.fingerprint == expected and a.step >= decide.since(before) for a in seen.acknowledgements)
        if before.on and not control.on:
            assert named & {"rolled_back", "switched_off"}
        if deed < 0.9 and seen.returned is None:
            assert control.waiting or control.on or before.on or seen.verdict != "critical"
            settled = control.on or before.on or decide.advance(control, seen, policy) == (control, ())
            assert settled, "looking again does nothing"
