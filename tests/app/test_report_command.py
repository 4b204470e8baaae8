"""`logprobe report`: the incident report of one run, and that names are never markup."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_home import SAMPLE_DATA

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
    assert page.index("<dd>semantic") < page.index("--logprobs-mode processed_logprobs") < page.index("calibration z")
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "What happened", "Findings", "Not measured", "Trend", "Worst sequences", "Records", "Configuration",
    ]  # fmt: skip
    assert page.count('scope="row"') > 50
    assert len(page) < 300_000


def test_the_first_screen_says_what_was_done_and_what_happened_in_order(incident: Incident) -> None:
    fires = {
        "step": 30,
        "rule": "gap-critical",
        "severity": "critical",
        "before": "pending",
        "after": "firing",
        "words": "K3 is high",
    }
    quiet = fires | {"step": 20, "before": "normal", "after": "pending", "words": "not yet"}
    masks = {
        "step": 40,
        "name": "issued",
        "reason": "critical_growth",
        "words": "masked IS from step 44",
        "severity": "warning",
    }
    happened = replace(
        incident,
        current=[fires | {"phase": "firing"}, fires | {"rule": "staleness", "phase": "normal"}],
        alerts=[fires, quiet],
        actions=[masks, masks | {"step": 35, "name": "suggested", "words": "would mask 8 %"}],
    )
    first, _, rest = report(happened).partition("What happened")
    assert "<dd>issued at step 40: masked IS from step 44</dd>" in first
    assert "<dd>gap-critical fires</dd>" in first
    events, _, _ = rest.partition("Findings")
    order = ["onset", "alert gap-critical fires", "correction suggested", "correction issued"]
    assert re.findall("<td>((?:alert|correction|onset)[^<]*)</td>", events) == order
    assert "not yet" not in events


def test_names_from_outside_are_text(incident: Incident) -> None:
    sequence = {**incident.sequences[0], "sample_id": EVIL, "finish_reason": "</style>"}
    history = replace(incident.history, label=EVIL, facts={EVIL: (EVIL,)})
    alert = dict.fromkeys(("step", "rule", "severity", "before", "after", "words", "phase"), EVIL)
    fires = alert | {"step": 3, "after": "firing", "phase": "firing"}
    page = report(
        replace(incident, history=history, headline=EVIL, sequences=[sequence], alerts=[alert, fires], current=[fires])
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5
    assert page.count("</style>") == 1


def test_the_command_writes_where_it_says(
    capsys: pytest.CaptureFixture[str], recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = ("--home", str(recorded_runs))
    assert main(["report", "v0-reference", *home]) == 0
    assert "wrote v0-reference.html" in capsys.readouterr().err
    assert "No cause was found." in (tmp_path / "v0-reference.html").read_text()
    assert main(["report", "v0-reference", "v1-fixed", "--html", "one.html", *home]) == 1
    assert "reports of several runs need a folder" in capsys.readouterr().err


def test_reports_of_several_runs_some_of_them_in_files(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE_DATA / "faults" / "healthy", tmp_path / "healthy")
    (tmp_path / "reports").mkdir()
    words = ("v0-reference", str(tmp_path / "healthy"), str(recorded_runs) + ":v0-reference")
    assert main(["report", *words, "--html", str(tmp_path / "reports"), "--home", str(recorded_runs)]) == 0
    found = {file.name: file.read_text() for file in (tmp_path / "reports").iterdir()}
    assert sorted(found) == ["healthy.html", "v0-reference-2.html", "v0-reference.html"]
    assert "Incident report: healthy" in found["healthy.html"]
    assert "Incident report: v0-reference" in found["v0-reference.html"]


def test_steps_without_a_value_are_a_gap_and_not_a_line() -> None:
    points = [(float(step), 1.0 + step) for step in (0, 1, 2, 50, 51, 52)]
    drawn = str(figure(Chart("t", "alt", [Line("run", points)])))
    path = re.search('class="line c0"', drawn)
    assert path is not None
    assert re.search(r'd="([^"]*)" class="line c0"', drawn)[1].count("M") == 2
    assert "Not measured." in figure(Chart("t", "alt", [Line("run", [])]))
