"""The first screen says what the diagnosis says, and never more than is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from recorded_home import ingest_recorded

from logprobe.app.dashboard.charts.panels import OVERVIEW
from logprobe.app.dashboard.charts.steps_chart import chart_of
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.feed import Feed, RunView
from logprobe.app.dashboard.data.judgement import K3, Judgement, growth_of
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.pages.diagnosis import diagnosis_blocks
from logprobe.app.dashboard.pages.verdict import VERDICTS, banner
from logprobe.app.dashboard.theme import LIGHT
from logprobe.monitor.diagnosis.job import DiagnosisJob
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store import Store


def judged(verdict: str, *, since: int | None = None, doubling: float | None = None, **parts: Any) -> RunView:
    """A run of 400 steps whose K3 doubles every 40 steps from step 300 on, and what was said about it."""
    steps = np.arange(400)
    k3 = 1e-3 * 2.0 ** (np.maximum(0, steps - 300) / 40)
    series = RunSeries("r", 1, steps, np.full(400, 10.0), {K3: k3})
    document = {
        "run": "r", "verdict": verdict, "since_step": since, "doubling_steps": doubling, "layer": "objective",
        "findings": [], "not_measured": [], "correction": {"advice": "not_needed", "why": ""}, **parts,
    }  # fmt: skip
    judgement = Judgement(document, 399, datetime.now(UTC), growth_of(series, []), ("gap-growing",))
    return RunView(series, marks=(Event("alert", 320, "alert gap-growing"),), judgement=judgement, news="1")


def test_the_banner_answers_in_order() -> None:
    found = {"cause": "late_growth", "layer": "objective", "confidence": 0.9, "fix": "Lower the learning rate.", "since_step": 300,
             "evidence": {"z": 9.0}, "explanation": "It grew."}  # fmt: skip
    advice = {"advice": "enable", "why": "the policies differ"}
    shown = banner(judged("growing", since=300, doubling=40.0, findings=[found], correction=advice))
    assert (shown["icon"], shown["word"], shown["tone"]) == ("▲", "Growing", "growing")
    assert [name for name, _ in shown["facts"]] == ["since step", "KL (k3)", "doubles every", "layer", "alerts firing"]
    assert shown["facts"][0][1] == "300"
    assert float(shown["facts"][1][1].split("×")[0]) == pytest.approx(2 ** (94.5 / 40), rel=0.01)
    assert shown["do"] == [
        ["late growth", "Lower the learning rate."],
        ["correction", "enable one: the policies differ"],
    ]


def test_what_is_unknown_is_not_healthy() -> None:
    unknown = banner(RunView(RunSeries("r", 1, np.arange(3), np.ones(3), {})))
    assert unknown["tone"] == "unknown"
    assert unknown["word"] == "Not diagnosed yet"
    assert {words[1] for words in VERDICTS.values()} & {"Healthy"} == {"Healthy"}
    assert len({words[0] for name, words in VERDICTS.items() if name != "calibrating"}) == len(VERDICTS) - 1


def test_what_is_found_while_a_run_calibrates_is_not_called_too_early() -> None:
    found = {"cause": "raw_logprobs", "layer": "semantic", "confidence": 0.9, "fix": "Set it.", "since_step": 0,
             "evidence": {}, "explanation": "Raw."}  # fmt: skip
    assert "but what follows" in banner(judged("calibrating", since=0, findings=[found]))["words"]
    assert "but" not in banner(judged("calibrating", findings=[{**found, "confidence": 0.2}]))["words"]


def test_a_finding_that_is_not_credible_gives_no_advice() -> None:
    doubtful = {"cause": "staleness", "layer": "objective", "confidence": 0.3, "fix": "Bound the lag.", "since_step": None,
                "evidence": {}, "explanation": "Perhaps."}  # fmt: skip
    view = judged("healthy", findings=[doubtful])
    assert banner(view)["do"] == []
    assert "Bound the lag." in json.dumps(diagnosis_blocks(view))  # the evidence is on its page all the same


def test_the_chart_marks_normal_and_onset() -> None:
    data = chart_of(judged("growing", since=300), OVERVIEW, LIGHT)
    go.Figure(data["figure"])  # raises on unknown properties and values
    shapes = data["figure"]["layout"]["shapes"]
    (band,) = [shape for shape in shapes if shape["type"] == "rect"]
    assert (band["y0"], band["y1"]) == pytest.approx((0.5e-3, 2e-3))
    assert 300 in [shape["x0"] for shape in shapes]
    assert "baseline 0.001" in data["rows"][0]["notes"]["log"]
    assert {"kind": "alert", "step": 320, "words": "alert gap-growing"} in data["events"]
    assert data["alt"].startswith("Growing: since step 300")
    early = chart_of(judged("critical", since=0), OVERVIEW, LIGHT)
    assert early["figure"]["layout"]["annotations"] == []  # it was never otherwise


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunView]:
    home = tmp_path_factory.mktemp("verdict") / "home"
    ingest_recorded(home, "v1-initial")
    with Store.open(Home(home)) as store:
        DiagnosisJob(store).run_once()
    with open_reader(home) as reader:
        view = Feed(lambda: reader).look("v1-initial").view
        assert view is not None
        yield view


def test_a_recorded_run_with_a_semantic_fault(diagnosed: RunView) -> None:
    shown = banner(diagnosed)
    assert shown["word"] == "Critical"
    assert shown["facts"][0] == ["since step", "0, its first"]
    assert shown["do"][0][0] == "raw logprobs"
    assert "processed_logprobs" in shown["do"][0][1]
    tables = [block for block in diagnosis_blocks(diagnosed) if block["type"] == "table"]
    assert [table["name"] for table in tables] == ["semantic", "inference path", "objective", "not measured"]
    assert tables[0]["rows"][0]["cells"][0] == "raw logprobs"
    assert "temperature 0.85" in tables[0]["rows"][0]["cells"][1]
