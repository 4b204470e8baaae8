"""The first screen says what the diagnosis says, and never more than is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pytest
from diagnoses import diagnosis as diagnosis_document
from diagnoses import finding

from logprobe.alerts.controller.situation import Control, Phase
from logprobe.alerts.controller.standing import Standing
from logprobe.app.dashboard.verdict import LatestDiagnosis, verdict_of
from logprobe.app.text.diagnosis import extent
from logprobe.app.text.judgement import VERDICTS
from logprobe.app.view.story import Item, findings
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judgement import Firing, Judgement
from logprobe.monitor.judging.document import Verdict
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.judging.judgement import GROWS, Growth


@dataclass(frozen=True)
class View:
    """What is known of a run."""

    judgement: Judgement = field(default_factory=Judgement)
    diagnosis: LatestDiagnosis | None = None
    steps: tuple[int, ...] = tuple(range(400))


def banner(view: View) -> dict[str, Any]:
    return asdict(verdict_of(view.judgement, view.diagnosis, view.steps))


def judged(verdict: str, *, since: int | None = None, doubling: float | None = None, **parts: Any) -> View:
    """A run of 400 steps whose K3 doubles every 40 steps from step 300 on, and what was said about it."""
    steps = np.arange(400)
    k3 = 1e-3 * 2.0 ** (np.maximum(0, steps - 300) / 40)
    growth = Tracker().follow(steps.tolist(), k3.tolist()).verdict().document()
    parts = {"layer": "objective", "growth": growth, **parts}
    document = diagnosis_document(verdict, since_step=since, doubling_steps=doubling, **parts)
    diagnosis = LatestDiagnosis(document, 399, datetime.now(UTC))
    firing = (Firing("gap-growing", "warning", started_step=320),) if verdict in GROWS else ()
    judgement = Judgement(cast("Verdict", verdict), since, step=399, newest=399, alerts=firing)
    return View(judgement, diagnosis)


def test_what_is_unknown_is_not_healthy() -> None:
    unknown = banner(View(steps=(0, 1, 2)))
    assert (unknown["tone"], unknown["word"]) == ("unknown", "Not diagnosed yet")
    assert len({words[0] for name, words in VERDICTS.items() if name != "calibrating"}) == len(VERDICTS) - 1


def test_the_banner_has_the_numbers_of_the_growth_and_says_what_to_do() -> None:
    advice = {"advice": "enable", "why": "the policies differ"}
    shown = banner(judged("growing", since=300, doubling=40.0, findings=[GREW], correction=advice))
    assert [name for name, _ in shown["facts"]] == ["since step", "K3", "doubles every", "layer", "alerts firing"]
    assert shown["facts"][0][1] == "300"
    assert float(shown["facts"][1][1].split("×")[0]) == pytest.approx(2 ** (94.5 / 40), rel=0.01)
    assert [name for name, _ in shown["do"]] == ["late growth", "setting", "correction"]
    share = dict(banner(judged("critical", since=310, findings=[LAG, SHAPE], correction=ENABLE))["facts"])
    assert share["cause"] == "staleness, 100% of K3"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("as expected", "normal for this setup"),
        ("unknown set-up", "no setup recorded to compare with"),
        ("not measured", "not known whether normal"),
    ],
)
def test_noise_is_called_normal_only_for_a_recorded_set_up(status: str, words: str) -> None:
    view = judged("healthy", findings=[{**ROUNDING, "share": part(0.5)}], level={"status": status})
    assert dict(banner(view)["facts"])[words] == "low precision"


def test_a_finding_that_is_not_credible_gives_no_advice() -> None:
    doubtful = made("staleness", layer="objective", confidence=0.3, fix="Bound the lag.", explanation="Perhaps.")
    view = judged("healthy", findings=[doubtful])
    assert banner(view)["do"] == []
    assert view.diagnosis is not None
    (section,) = findings(view.diagnosis.document, view.diagnosis.standing)
    (item,) = section.parts
    assert isinstance(item, Item)
    assert ("Fix", "Bound the lag.") in item.lines  # it is on its page all the same


def made(cause: str, layer: str, **parts: Any) -> dict[str, Any]:
    """One of a diagnosis: credible, alarming, and no veto, unless `parts` say otherwise."""
    return dict(finding(cause, layer=layer, **{"fix": f"Mend {cause}.", "explanation": cause, **parts}))


def part(now: float) -> dict[str, Any]:
    return {"now": now, "growth": None}


GREW = made("late_growth", "objective", since_step=300)
ROUNDING = made("low_precision", "inference_path", urgency="informational")
LIVED_WITH = {**ROUNDING, "accepted": {"because": "bf16 by choice"}}
CACHE = made("stale_prefix_cache", "inference_path", vetoes=True, since_step=250)
LESSER = made("batch_variance", "inference_path", urgency="watch")
RAW = made("raw_logprobs", "semantic", vetoes=True, since_step=0)
RAW_LIVED_WITH = {**RAW, "accepted": {"because": "ablation"}, "urgency": "informational"}
SHAPE = {**GREW, "share": part(0.0)}
LAG = made("staleness", "objective", since_step=310, share=part(1.0))
MOST, OWN = {**LAG, "share": part(0.7)}, {**GREW, "share": part(0.3)}
ENABLE = {"advice": "enable", "why": "the policies differ"}
AS_EXPECTED = {"status": "as expected"}
NOT_NEEDED = {"advice": "not_needed", "why": "within what is expected"}


def first(cause: str) -> dict[str, str]:
    return {"advice": "do_not_enable", "why": f"fix {cause} first"}


# verdict, layer and findings of a diagnosis and its advice → cause, layer and advice in the banner; what is shown beside it.
BANNERS: list[tuple[str, str, list[dict[str, Any]], dict[str, str], tuple[str, str, str], dict[str, str]]] = [
    ("healthy", "none", [], NOT_NEEDED, ("", "", ""), {}),
    ("healthy", "none", [ROUNDING], NOT_NEEDED, ("", "", ""), {"normal for this setup": "low precision"}),
    ("healthy", "none", [LIVED_WITH], NOT_NEEDED, ("", "", ""), {"accepted": "low precision (bf16 by choice)"}),
    ("healthy", "none", [LESSER], first("batch_variance"), ("", "", ""), {"also found": "batch variance"}),
    ("growing", "objective", [GREW], ENABLE, ("late growth", "objective", "switch one on"), {}),
    ("growing", "inference_path", [CACHE, GREW], first("stale_prefix_cache"), ("stale prefix cache", "inference path", "do not"), {"also found": "late growth"}),
    ("growing", "unknown", [], first("what is unknown"), ("", "unknown", "do not"), {}),
    ("critical", "objective", [GREW, ROUNDING], ENABLE, ("late growth", "objective", "switch one on"), {"normal for this setup": "low precision"}),
    ("critical", "objective", [ROUNDING, GREW], ENABLE, ("late growth", "objective", "switch one on"), {"normal for this setup": "low precision"}),
    ("critical", "objective", [GREW, LESSER], ENABLE, ("late growth", "objective", "switch one on"), {"also found": "batch variance"}),
    ("critical", "objective", [LIVED_WITH, GREW], ENABLE, ("late growth", "objective", "switch one on"), {"accepted": "low precision (bf16 by choice)"}),
    ("critical", "semantic", [RAW, GREW, CACHE], first("raw_logprobs"), ("raw logprobs", "semantic", "do not"), {"also found": "late growth, stale prefix cache"}),
    ("critical", "objective", [GREW, RAW_LIVED_WITH], first("raw_logprobs"), ("late growth", "objective", "do not"), {"accepted": "raw logprobs (ablation)"}),
    ("critical", "objective", [LAG, SHAPE], ENABLE, ("staleness", "objective", "switch one on"), {"also found": "late growth (0% of K3)"}),
    ("growing", "objective", [MOST, OWN], ENABLE, ("staleness", "objective", "switch one on"), {"also found": "late growth (30% of K3)"}),
    ("growing", "objective", [SHAPE, {**LAG, "urgency": "informational"}], ENABLE, ("late growth", "objective", "switch one on"), {"needs no action": "staleness"}),
    ("critical", "semantic", [RAW, SHAPE, LAG], first("raw_logprobs"), ("raw logprobs", "semantic", "do not"), {"also found": "late growth (0% of K3), staleness (100% of K3)"}),
    ("critical", "unknown", [ROUNDING], first("what is unknown"), ("", "unknown", "do not"), {"normal for this setup": "low precision"}),
    ("calibrating", "semantic", [RAW], first("raw_logprobs"), ("raw logprobs", "semantic", "do not"), {}),
    ("calibrating", "none", [ROUNDING], NOT_NEEDED, ("", "", ""), {"normal for this setup": "low precision"}),
    ("no_data", "semantic", [made("missing_logprobs", "semantic", vetoes=True)], first("missing_logprobs"), ("missing logprobs", "semantic", "do not"), {}),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "layer", "findings", "correction", "expected", "beside"), BANNERS)
def test_the_banner_never_contradicts_itself(
    verdict: str, layer: str, findings: list[dict[str, Any]], correction: dict[str, str], expected: tuple[str, str, str],
    beside: dict[str, str],
) -> None:  # fmt: skip
    named = expected[0].replace(" ", "_")
    began = next((each["since_step"] for each in findings if each["cause"] == named), None)
    more = {"layer": layer, "findings": findings, "correction": correction, "level": AS_EXPECTED}
    shown = banner(judged(verdict, since=began, **more))
    facts, remedies = dict(shown["facts"]), dict(shown["do"])
    assert shown["tone"] == verdict  # what is informational or accepted colours nothing
    cause = next((name for name in remedies if name != "correction"), "")
    assert (cause, facts.get("layer", "").partition(":")[0]) == expected[:2]
    assert remedies.get("correction", "").startswith(expected[2])
    assert bool(remedies.get("correction")) == bool(expected[2])
    assert {
        name: facts[name]
        for name in ("normal for this setup", "needs no action", "accepted", "also found")
        if name in facts
    } == beside
    assert facts.get("since step", "").removesuffix(", its first") == ("" if began is None else str(began))


def test_banner_page_and_command_say_the_same_of_a_correction_that_is_on() -> None:
    effect = {"name": "effect", "step": 398, "words": "harmed: the reward is below where it was"}
    config = CorrectionConfig(is_level="token", is_mode="mask")
    on = Standing(Control(phase=Phase.APPLIED, from_step=351, config=config), [effect])
    view = judged("critical", findings=[LAG, SHAPE], correction=ENABLE)
    assert view.diagnosis is not None
    view = replace(view, diagnosis=replace(view.diagnosis, standing=on))
    (_, remedy), *_, (_, said) = banner(view)["do"]
    assert said == "on since step 351 (MIS); as of step 398: harmed: the reward is below where it was"
    assert remedy.startswith("Bound the lag")
    assert "switch one on" not in str(banner(view))


# What the verdict is about, what has grown, and the level of the setup → how large K3 is said to be.
EXTENTS: list[tuple[str, Growth, dict[str, Any] | None, str]] = [
    ("critical", Growth("critical", baseline=6.1e-4, ratio=238.0), {"k3": 0.145, "expected": {"high": 2e-3}}, "238× its baseline of 6.10e-4"),
    ("critical", Growth("healthy", baseline=0.016, ratio=0.752), {"k3": 0.014, "expected": {"high": 1e-5}}, "0.014, 1,400× the most that is normal for this setup (1e-5)"),
    ("critical", Growth("calibrating"), {"k3": 0.014, "expected": {"high": None}}, "0.014"),
    ("critical", Growth("healthy", baseline=1e-3, ratio=1.0), {"k3": 1e-3, "expected": {"high": 2e-3}}, "0.001, normal for this setup: at most 0.002"),
    ("critical", Growth("healthy", baseline=0.016, ratio=0.752), None, "0.752× its baseline of 0.016"),
    ("healthy", Growth("healthy", baseline=1e-5, ratio=1.0), {"k3": 8e-13, "expected": {"high": 1e-5}}, "below 1e-5, too small to matter"),
    ("healthy", Growth("healthy", baseline=1e-3, ratio=1.1), {"k3": 1e-3, "expected": {"high": 2e-3}}, "1.1× its baseline of 0.001"),
    ("growing", Growth("growing", baseline=1e-5, ratio=4.0), {"k3": 4e-5, "expected": {"high": 1e-5}}, "4× its baseline of 1.00e-5"),
    ("calibrating", Growth("calibrating"), {"k3": 1e-3, "expected": {"high": 2e-3}}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "growth", "level", "words"), EXTENTS)
def test_a_gap_is_measured_by_what_says_something(
    verdict: str, growth: Growth, level: dict[str, Any] | None, words: str
) -> None:
    assert extent(diagnosis_document(verdict, level=level, growth=growth.document())) == words


BROKEN = made(
    "nonfinite_logprobs", "semantic", vetoes=True, share=part(0.0), evidence={"share": 0.5},
    explanation="900 tokens have a log-prob that is NaN, infinite or a placeholder (−9999), most of them from the engine; they are in no mean.",
)  # fmt: skip


@pytest.mark.parametrize("verdict", ["no_data", "critical", "calibrating"])
def test_broken_tokens_are_the_headline(verdict: str) -> None:
    view = judged(verdict, findings=[BROKEN], correction=first("nonfinite_logprobs"))
    shown = banner(view)
    assert "900 tokens have a log-prob that is NaN" in shown["words"]
    assert dict(shown["facts"])["cause"] == "nonfinite logprobs, 50% of the tokens"
    fires = replace(view.judgement, alerts=(Firing("coverage-low", "critical", started_step=3),))
    assert banner(replace(view, judgement=fires))["word"] == "Critical"


@pytest.mark.parametrize(
    ("status", "k3", "high", "words"),
    [
        (None, None, None, "."),
        ("as expected", 6e-4, 2e-3, ". Level normal for bf16: 6.00e-4, at most 0.002."),
        ("far above", 0.03, 2e-3, ". Level far above normal for bf16: 0.03, at most 0.002."),
        ("unknown set-up", 0.03, None, ". K3 was 0.03; no setup was recorded to compare it with."),
    ],
)
def test_a_run_that_ended_calibrates_no_more(
    status: str | None, k3: float | None, high: float | None, words: str
) -> None:
    of_level = {
        "status": status,
        "k3": k3,
        "expected": {"low": None, "high": high},
        "setup": {"engine_dtype": "bfloat16"},
    }
    view = judged("calibrating", **({} if status is None else {"level": of_level}))
    shown = banner(replace(view, judgement=replace(view.judgement, ended_after=30)))
    assert (shown["word"], shown["words"]) == ("Too short", f"No trend, as it ended after 30 of 200 steps{words}")
    assert banner(view)["word"] == "Calibrating"  # while it goes on
