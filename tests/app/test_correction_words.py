"""What is said of a correction: case by case, of its state, its effect and the diagnosis."""

from __future__ import annotations

from typing import Any

import pytest
from diagnoses import diagnosis, finding

from logprobe.alerts.controller.situation import Control, Phase
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import advised, remedy
from logprobe.collectors.correction import CorrectionConfig

MIS = CorrectionConfig(is_level="token", is_mode="mask")
LAG = finding("staleness", layer="objective", fix="Bound the lag, and correct.")
FAULT = finding("raw_logprobs", layer="semantic", confidence=1.0, vetoes=True)


def act(name: str, step: int, words: str) -> dict[str, Any]:
    """Return a line of the audit."""
    return {"name": name, "step": step, "words": words, "details": {}}


def off(phase: str = "idle", **parts: Any) -> Standing:
    return Standing(Control(phase=Phase(phase), **parts))


def on(*told: dict[str, Any], phase: str = "applied", **parts: Any) -> Standing:
    return Standing(Control(phase=Phase(phase), from_step=531, config=MIS, **parts), told)


HELPED = act("effect", 581, "helped: the reward is above where it was")
ENDED = act("rolled_back", 590, "rolled back: it masked")


HELD = {"waiting": "it would mask 44% of the tokens", "objection": "masks_too_much"}
CASES: list[tuple[str, list[dict[str, Any]], Standing, str]] = [
    ("enable", [], off(), "{advice}: because"),
    ("enable", [], off("suggested"), "{advice}: because"),
    ("enable", [], off(waiting="mode suggest: a person has to"), "{advice}: because"),  # nothing speaks against it
    ("enable", [], off(**HELD), "do not switch one on: it would mask 44% of the tokens"),
    ("not_needed", [], off(**HELD), ""),
    ("do_not_enable", [], off(**HELD), "{advice}: because"),
    ("enable", [], on(phase="issued", **HELD), "switched on from step 531 (MIS), not acknowledged by the trainer yet"),
    ("not_needed", [], off(), ""),
    ("do_not_enable", [], off(), "{advice}: because"),
    ("enable", [], on(phase="issued"), "switched on from step 531 (MIS), not acknowledged by the trainer yet"),
    ("enable", [], on(), "on since step 531 (MIS); too early to judge"),
    ("enable", [], on(applied_from=540), "on since step 540 (MIS); too early to judge"),
    ("enable", [LAG], on(HELPED), "on since step 531 (MIS); as of step 581: helped: the reward is above where it was"),
    ("do_not_enable", [], on(HELPED), "on since step 531 (MIS); as of step 581: helped: the reward is above where it was"),  # not ruled out: no ground to take it off
    ("do_not_enable", [FAULT], on(HELPED), "on since step 531 (MIS), but it hides a fault: because"),
    ("enable", [], on(stopped=True), "{advice}: because; the kill switch is set, so none applies until it is released"),
    ("enable", [], on(ENDED, phase="withdrawn"), "off: the one from step 531 was rolled back: it masked"),
    ("enable", [], on(phase="withdrawn"), "{advice}: because"),
]  # fmt: skip


@pytest.mark.parametrize(("advice", "findings", "standing", "words"), CASES)
def test_advice_knows_the_state_of_the_correction(
    advice: str, findings: list[dict[str, Any]], standing: Standing, words: str
) -> None:
    document = diagnosis("critical", findings=findings, correction={"advice": advice, "why": "because"})
    shown = {"enable": "switch one on", "do_not_enable": "do not switch one on"}.get(advice, "")
    assert advised(document, standing) == words.format(advice=shown)


def test_a_remedy_does_not_ask_for_the_correction_that_is_on() -> None:
    assert remedy(LAG) == "Bound the lag, and correct."
    assert remedy(LAG, on()) == (
        "Bound the lag (fewer batches in front of the trainer, a limit on asynchronous steps)."
    )
    assert remedy(LAG, on(ENDED, phase="withdrawn")) == remedy(LAG, on())
    other = {"cause": "raw_logprobs", "fix": "Set the mode."}
    assert remedy(other, on()) == "Set the mode."


@pytest.mark.parametrize(("first", "seen"), [(100, "helped"), (300, "helped"), (500, None)])
def test_an_effect_belongs_to_the_correction_that_is_on(first: int, seen: str | None) -> None:
    told = [act("effect", step, word) for step, word in ((200, "harmed"), (400, "helped"))]
    standing = Standing(Control(phase=Phase.APPLIED, from_step=first, config=MIS), told)
    assert (standing.effect or {}).get("words") == seen
    assert (standing.on, standing.applied) == (True, True)


@pytest.mark.parametrize(("phase", "words"), [("withdrawn", "rolled back: it masked"), ("issued", None)])
def test_how_a_correction_ended_is_said_until_the_next_one(phase: str, words: str | None) -> None:
    told = [act("effect", 150, "harmed"), act("rolled_back", 160, "rolled back: it masked")]
    assert Standing(Control(phase=Phase(phase), from_step=100, config=MIS), told).ended == words
