"""What is said of a correction: case by case, of its state, its effect and the diagnosis."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from diagnoses import diagnosis, finding

from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import advised, remedy

MIS = {"is_level": "token", "is_mode": "mask"}
LAG = finding("staleness", layer="objective", fix="Bound the lag, and correct.")
FAULT = finding("raw_logprobs", layer="semantic", confidence=1.0, vetoes=True)


HELPED = {"judgement": "helped", "words": "helped: the reward is above where it was"}


def on(found: dict[str, Any] | None = None, phase: str = "applied", **parts: Any) -> Standing:
    return Standing(phase, 531, MIS, effect=found, judged_at=581, **parts)


HELD = {"waiting": "it would mask 44% of the tokens", "objection": "masks_too_much"}
CASES: list[tuple[str, list[dict[str, Any]], Standing, str]] = [
    ("enable", [], Standing(), "{advice}: because"),
    ("enable", [], Standing("suggested"), "{advice}: because"),
    ("enable", [], Standing(waiting="mode suggest: a person has to"), "{advice}: because"),  # nothing speaks against it
    ("enable", [], Standing(**HELD), "do not switch one on: it would mask 44% of the tokens"),
    ("not_needed", [], Standing(**HELD), ""),
    ("do_not_enable", [], Standing(**HELD), "{advice}: because"),
    ("enable", [], on(phase="issued", **HELD), "switched on from step 531 (MIS), not acknowledged by the trainer yet"),
    ("not_needed", [], Standing(), ""),
    ("do_not_enable", [], Standing(), "{advice}: because"),
    ("enable", [], on(phase="issued"), "switched on from step 531 (MIS), not acknowledged by the trainer yet"),
    ("enable", [], on(), "on since step 531 (MIS); too early to judge"),
    ("enable", [], on(applied_from=540), "on since step 540 (MIS); too early to judge"),
    ("enable", [LAG], on(HELPED), "on since step 531 (MIS); as of step 581: helped: the reward is above where it was"),
    ("do_not_enable", [], on(HELPED), "on since step 531 (MIS); as of step 581: helped: the reward is above where it was"),  # not ruled out: no ground to take it off
    ("do_not_enable", [FAULT], on(HELPED), "on since step 531 (MIS), but it hides a fault: because"),
    ("enable", [], on(stopped=True), "{advice}: because; the kill switch is set, so none applies until it is released"),
    ("enable", [], on(phase="withdrawn", ended="rolled back: it masked"), "off: the one from step 531 was rolled back: it masked"),
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
    assert remedy(LAG, Standing("withdrawn", ended="rolled back")) == remedy(LAG, on())
    other = {"cause": "raw_logprobs", "fix": "Set the mode."}
    assert remedy(other, on()) == "Set the mode."


class Recorded:
    """What the controller wrote of a run."""

    def __init__(self, control: dict[str, Any], *judged: tuple[int, str]) -> None:
        actions = [
            {"name": "effect", "step": step, "words": "", "details": json.dumps({"judgement": word})}
            for step, word in judged
        ]
        self.rows = {"controller_read": [{"control": json.dumps(control)}], "controller_actions": actions}

    def read(self, name: str, /, **_asked: Any) -> pa.Table:
        return pa.Table.from_pylist(self.rows[name])


@pytest.mark.parametrize(("first", "seen"), [(100, "helped"), (300, "helped"), (500, None)])
def test_an_effect_belongs_to_the_correction_that_is_on(first: int, seen: str | None) -> None:
    control = {"phase": "applied", "from_step": first, "config": MIS, "stopped": False}
    standing = Standing.read(Recorded(control, (200, "harmed"), (400, "helped")), "r")
    assert (standing.effect or {}).get("judgement") == seen
    assert (standing.on, standing.applied, standing.judged_at is None) == (True, True, seen is None)


@pytest.mark.parametrize(("phase", "words"), [("withdrawn", "rolled back: it masked"), ("issued", None)])
def test_how_a_correction_ended_is_said_until_the_next_one(phase: str, words: str | None) -> None:
    control = {"phase": phase, "from_step": 100, "config": MIS, "stopped": False}
    found = Recorded(control, (150, "harmed"))
    ended = {"name": "rolled_back", "step": 160, "words": "rolled back: it masked", "details": "{}"}
    found.rows["controller_actions"].append(ended)
    assert Standing.read(found, "run").ended == words
