"""`logprobe report`: the incident report of one run, and that names are never markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from logprobe.app.cli import main
from logprobe.app.commands.report import read
from logprobe.app.report.chart import Chart, Line, figure
from logprobe.app.report.incident import Incident, report
from logprobe.monitor.compare import Places

EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def incident(recorded_runs: Path) -> Incident:
    with Places(str(recorded_runs)) as places:
        return read(places.find("v1-initial"))


def test_the_verdict_comes_first_and_the_remedy_with_its_evidence(incident: Incident) -> None:
    page = report(incident)
    assert "<h1>v1-initial is critical, since step 0</h1>" in page
    assert (
        page.index("Layer: semantic") < page.index("--logprobs-mode processed_logprobs") < page.index("calibration z")
    )
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "Findings", "Not measured", "Course", "Alerts", "Controller", "Weights", "Worst sequences", "Configuration",
    ]  # fmt: skip
    assert page.count('scope="row"') > 50
    assert len(page) < 300_000


def test_names_from_outside_are_text(incident: Incident) -> None:
    sequence = {**incident.sequences[0], "sample_id": EVIL, "finish_reason": "</style>"}
    history = replace(incident.history, label=EVIL, facts={EVIL: (EVIL,)})
    alert = dict.fromkeys(("step", "rule", "severity", "after", "words"), EVIL)
    page = report(replace(incident, history=history, headline=EVIL, sequences=[sequence], alerts=[alert]))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5
    assert page.count("</style>") == 1


def test_the_command_writes_where_it_says(
    capsys: pytest.CaptureFixture[str], recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "v0-reference", "--home", str(recorded_runs)]) == 0
    assert "wrote v0-reference.html" in capsys.readouterr().err
    assert "No cause was found." in (tmp_path / "v0-reference.html").read_text()


def test_steps_without_a_value_are_a_gap_and_not_a_line() -> None:
    points = [(float(step), 1.0 + step) for step in (0, 1, 2, 50, 51, 52)]
    drawn = str(figure(Chart("t", "alt", [Line("run", points)])))
    path = re.search('class="line c0"', drawn)
    assert path is not None
    assert re.search(r'd="([^"]*)" class="line c0"', drawn)[1].count("M") == 2
    assert "Not measured." in figure(Chart("t", "alt", [Line("run", [])]))
