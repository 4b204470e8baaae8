"""The Diagnosis page: evidence row by row, what was looked for as well, and parity with a fix for what is not met."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from logprobe.app.dashboard.data.diagnosis import LatestDiagnosis
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.pages.diagnosis import Acceptances, diagnosis_blocks, parity_data, picture
from logprobe.app.dashboard.theme import LIGHT
from logprobe.monitor.judging.accepted import Expectation
from logprobe.monitor.judging.culprit import Picture
from logprobe.monitor.judging.expected import expected
from logprobe.monitor.judging.parity import Check, Parity, Setting
from logprobe.monitor.judging.result import Growth
from logprobe.monitor.judging.signatures import SIGNATURES

FINDING = {
    "cause": "raw_logprobs", "layer": "semantic", "confidence": 0.99, "since_step": 3, "explanation": "why", "fix": "the flag",
    "evidence": {"logprobs_mode": "raw_logprobs", "temperature": 0.85, "calibration_z": 61.0, "k3_kl": None},
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "verdict": "critical", "since_step": 3, "doubling_steps": None, "layer": "semantic", "findings": [FINDING],
    "not_measured": [], "correction": {"advice": "do_not_enable", "why": "first the flag"},
}  # fmt: skip


def blocks(document: dict[str, Any]) -> list[dict[str, Any]]:
    diagnosis = LatestDiagnosis(document, 3, datetime.now(UTC), Growth("no_data"))
    return unfolded(diagnosis_blocks(RunView(RunSeries("r"), diagnosis=diagnosis)))


def unfolded(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for block in blocks for each in (block, *unfolded(block.get("blocks", [])))]


def rows(document: dict[str, Any], name: str) -> list[list[str]]:
    (table,) = [block for block in blocks(document) if block["type"] == "table" and block["name"] == name]
    return [row["cells"] for row in table["rows"]]


def test_each_row_has_test_value_expected_verdict_and_the_cause_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.app.dashboard.pages.diagnosis.banner", lambda _: {"type": "verdict"})
    assert rows(DOCUMENT, "semantic") == [
        ["raw logprobs", "temperature 0.85", "should be absent", "certain, 99%, since step 3", "the flag"],
        ["logprobs mode", "raw_logprobs", "processed_logprobs", "off", ""],
        ["calibration z", "61", "within ±5", "off", ""],
    ]
    words = " ".join(block.get("text", "") for block in blocks(DOCUMENT))
    for cause in SIGNATURES:
        assert (cause.replace("_", " ") in words) == (cause not in {"raw_logprobs", "unknown"})


ROUNDING: dict[str, Any] = {
    "cause": "low_precision", "layer": "inference_path", "confidence": 0.9, "since_step": None, "explanation": "bf16", "fix": "none",
    "evidence": {}, "share": {"now": 0.8, "interval": [0.7, 0.9], "growth": 0.0}, "urgency": "watch", "vetoes": False, "accepted": None,
}  # fmt: skip
NOISY = {**DOCUMENT, "findings": [ROUNDING], "level": {"k3": 1e-3}}
STANDING = {"cause": "low_precision", "because": "bf16 by choice", "up_to": 3e-3, "was": None, "author": "ann", "source": "page",
            "accepted_at": datetime(2026, 3, 1, 12, tzinfo=UTC)}  # fmt: skip


def lines(document: dict[str, Any], name: str, known: Acceptances) -> list[dict[str, Any]]:
    diagnosis = LatestDiagnosis(document, 3, datetime.now(UTC), Growth("no_data"))
    view = RunView(RunSeries("r", 1, np.arange(4), np.ones(4), {}), diagnosis=diagnosis)
    (found,) = [block for block in unfolded(diagnosis_blocks(view, known)) if block.get("name") == name]
    return found["rows"]


def test_a_finding_is_accepted_with_the_limit_that_another_run_suggests() -> None:
    (line,) = lines(NOISY, "inference path", Acceptances(blocked=""))
    (accept,) = line["actions"]
    assert (accept["id"], accept["args"], accept["disabled"]) == ("accept", {"cause": "low_precision"}, "")
    assert {field["name"]: field.get("value") for field in accept["fields"]} == {
        "because": None, "up_to": "0.0016", "by": None,
    }  # fmt: skip
    earlier = Expectation("last-week", 1.1e-3, 200, same_setup=True)
    (line,) = lines(NOISY, "inference path", Acceptances(expected=earlier, blocked=""))
    assert line["actions"][0]["fields"][1]["value"] == "0.0022"
    assert "run last-week of the same setup had K3 0.0011" in line["actions"][0]["words"]
    (line,) = lines(NOISY, "inference path", Acceptances(blocked="read only"))
    assert line["actions"][0]["disabled"] == "read only"


def test_what_is_accepted_stays_visible_without_colour_and_says_when_it_is_back() -> None:
    lived_with = {
        **NOISY,
        "findings": [{**ROUNDING, "accepted": {"because": "bf16 by choice"}, "urgency": "informational"}],
    }
    known = Acceptances([STANDING], blocked="")
    (line,) = lines(lived_with, "needs no action", known)
    assert (line["tone"], line["actions"]) == ("", [])
    assert "80% of K3; accepted: bf16 by choice" in line["cells"][3]
    (line,) = lines(lived_with, "accepted", known)
    assert (line["cells"][1:4], line["tone"]) == (["8.00e-4", "0.003", "bf16 by choice"], "")
    assert [(action["id"], action["disabled"]) for action in line["actions"]] == [("withdraw", "")]
    (line,) = lines(NOISY, "accepted", known)
    assert (line["cells"][0], line["tone"]) == ("low precision: beyond what was accepted", "warning")
    (line,) = lines({**NOISY, "findings": []}, "accepted", Acceptances([{**STANDING, "source": "policy"}], blocked=""))
    assert line["cells"][1] == "not found"
    assert "logprobe.yaml" in line["actions"][0]["disabled"]


def test_without_data_nothing_is_ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.app.dashboard.pages.diagnosis.banner", lambda _: {"type": "verdict"})
    words = str(blocks(DOCUMENT | {"verdict": "no_data", "findings": []}))
    assert "Nothing could be checked." in words
    assert "without a sign" not in words


def test_what_alarms_nobody_is_folded_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.app.dashboard.pages.diagnosis.banner", lambda _: {"type": "verdict"})
    normal = {**ROUNDING, "urgency": "informational"}
    both = LatestDiagnosis(
        {**DOCUMENT, "findings": [*DOCUMENT["findings"], normal]}, 3, datetime.now(UTC), Growth("no_data")
    )
    shown = diagnosis_blocks(RunView(RunSeries("r"), diagnosis=both))
    assert [block["name"] for block in shown if block["type"] == "table"] == ["semantic", "not measured"]
    folded = {block["summary"]: unfolded(block["blocks"]) for block in shown if block["type"] == "details"}
    assert [
        table["rows"][0]["cells"][0] for table in folded["1 finding that needs no action"] if table["type"] == "table"
    ] == ["low precision"]
    assert f"{len(SIGNATURES) - 3} causes without a sign" in folded


def test_the_picture_is_logarithmic_where_all_values_allow_it() -> None:
    lines = {"requests with cached prompt tokens": [(0, 1e-2), (1, 2e-2)], "requests without": [(0, 1e-6), (1, None)]}
    proof = Picture("stale_prefix_cache", lines, 2e-3, "most that is normal", 1, sampled=False)
    shown = picture(proof, LIGHT)["chart"]
    layout = shown["figure"]["layout"]
    assert (layout["yaxis"]["type"], layout["annotations"][0]["text"]) == ("log", "most that is normal 0.002")
    assert layout["annotations"][0]["y"] == pytest.approx(np.log10(2e-3))
    assert [shape["x0"] for shape in layout["shapes"] if shape["yref"] == "paper"] == [1]
    assert shown["alt"].endswith(
        "Since step 1. Newest: requests with cached prompt tokens 0.02, requests without 1.00e-6."
    )
    flat = Picture("late_growth", {"all tokens": [(5, 0.0)]}, None, "baseline", None, sampled=True)
    layout = picture(flat, LIGHT)["chart"]["figure"]["layout"]
    assert (layout["yaxis"]["type"], layout["shapes"], layout["annotations"]) == ("linear", [], [])
    assert layout["xaxis"]["range"] == [4.5, 6.5]


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("calibration_z", -5.0, True), ("calibration_z", 5.1, False), ("z", float("nan"), None), ("correlation", 0.95, True),
        ("updates_without_clearing", 0.5, False), ("logprobs_mode", "processed_logprobs", True), ("logprobs_mode", None, None),
        ("sentinel", True, None),
    ],
)  # fmt: skip
def test_only_what_is_known_is_held_against_what_is_expected(name: str, value: Any, holds: bool | None) -> None:
    assert expected(name).holds(value) is holds


def check(name: str, outcome: str, reference: str | None = None) -> Check:
    settings = tuple(Setting(f"engine.{at}", True, at, "unset: default of vLLM 1", True, 9) for at in range(6))
    return Check(name, "semantic", "engine.0 = 1", outcome, reference, "because", "do this", settings)


def test_what_is_not_met_comes_first_with_its_fix_then_what_is_not_known() -> None:
    checks = (check("fine", "met"), check("open", "unknown"), check("broken", "violated"))
    data = parity_data(Parity("r", "the recipe", "not_at_parity", (), checks, (), ()), reference=None, others=["b"])
    assert [(item["name"], item["verdict"], item["fix"]) for item in data["checks"]] == [
        ("broken", "not met", "do this"), ("open", "unknown", "do this"), ("fine", "met", ""),
    ]  # fmt: skip
    assert data["checks"][0]["found"][0] == ["engine.0", "0", "unset: default of vLLM 1", ""]
    assert (len(data["checks"][0]["found"]), data["checks"][0]["more"]) == (4, 2)
    assert (data["compare"], data["settings"]) == ("", [])


def test_what_the_reference_does_not_meet_either_is_no_difference() -> None:
    checks = (check("both", "violated", "violated"),)
    data = parity_data(Parity("r", "b", "at_parity", (), checks, (), ()), reference="b", others=["b"])
    assert [(item["verdict"], item["fix"], item["found"][0][3]) for item in data["checks"]] == [
        ("as the reference", "", "9")
    ]
    assert "baseline=b" in data["compare"]
