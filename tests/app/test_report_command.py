"""`logprobe show --html`: the incident report of one run, and that names are never markup."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded_home import SAMPLE_DATA

from logprobe.app.cli import main
from logprobe.app.report.chart import Chart, Line, figure
from logprobe.app.report.gather import read
from logprobe.app.report.incident import Incident, report
from logprobe.monitor.compare import Places

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def incident(recorded_runs: Path) -> Incident:
    with Places(str(recorded_runs)) as places:
        return read(places.find("v1-initial"))


def test_the_verdict_comes_first_and_the_remedy_with_its_evidence(incident: Incident) -> None:
    page = report(incident)
    assert "<h1>v1-initial: Critical, since step 0</h1>" in page
    assert page.index("<dd>semantic") < page.index("--logprobs-mode processed_logprobs") < page.index("calibration z")
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "Culprit", "What happened", "What changed in the 50 steps before", "Findings", "Not measured", "Trend", "Worst sequences", "Configuration",
    ]  # fmt: skip
    assert page.count('scope="row"') > 50
    assert len(page) < 300_000


def test_the_first_screen_says_what_was_done_and_what_happened_in_order(incident: Incident) -> None:
    fires = {
        "step": 30,
        "rule": "gap-critical",
        "severity": "critical",
        "state": "firing",
        "words": "K3 is high",
        "time": NOON + timedelta(seconds=30),
    }
    quiet = fires | {"step": 20, "state": "acknowledged", "words": "mine"}
    masks = {
        "step": 40,
        "name": "issued",
        "reason": "critical_growth",
        "words": "masked IS from step 44",
        "severity": "warning",
        "time": NOON + timedelta(seconds=40),
    }
    happened = replace(
        incident,
        current=[fires | {"phase": "firing"}, fires | {"rule": "staleness", "phase": "normal"}],
        alerts=[fires, quiet],
        actions=[
            masks,
            masks | {"step": 35, "name": "suggested", "words": "would mask 8 %", "time": NOON + timedelta(seconds=35)},
        ],
        deeds=[
            {
                "time": NOON + timedelta(seconds=50),
                "author": "Ada",
                "action": "acknowledged",
                "subject": "v1-initial/gap-critical/1",
                "words": "mine",
            }
        ],
        history=replace(incident.history, begun=NOON, seconds={0: 0.0}),
    )
    first, _, rest = report(happened).partition("What happened")
    assert "<dd>issued at step 40: masked IS from step 44</dd>" in first
    assert "<dd>gap-critical fires</dd>" in first
    events, _, _ = rest.partition("Findings")
    order = [
        "onset",
        "alert gap-critical fires",
        "correction suggested",
        "correction issued",
        "acknowledged: v1-initial/gap-critical/1",
    ]
    assert re.findall("<td>((?:alert|correction|onset|acknowledged:)[^<]*)</td>", events) == order
    times = re.findall(r"2026-03-01 12:00:(\d\d)", events.partition("What changed")[0])
    assert times == ["00", "30", "35", "40", "50"]
    assert "2026-03-01 12:00:00 UTC" in first
    assert "not yet" not in events


def test_what_changed_before_the_onset_and_what_is_unknown(incident: Incident) -> None:
    document = {**incident.document, "since_step": 100}
    update = {
        "kind": "weights",
        "label": "7",
        "happened_at": NOON,
        "step": 60,
        "cache_cleared": False,
        "pause_mode": "keep",
    }
    events = [
        update, {**update, "step": 20}, {**update, "kind": "config", "label": "engine_config", "step": 99},
        {**update, "kind": "restart", "label": "vllm", "step": 101},
    ]  # fmt: skip
    _, _, page = report(replace(incident, document=document, events=events)).partition(
        "What changed in the 50 steps before"
    )
    section, _, _ = page.partition("<h2>")
    assert "configuration changed" in section
    assert "1 weight update, 1 of which left the prefix cache as it was; pause mode: keep." in section
    assert "restarted" not in section  # it was after the onset


def test_names_from_outside_are_text(incident: Incident) -> None:
    sequence = {**incident.sequences[0], "sample_id": EVIL, "finish_reason": "</style>"}
    history = replace(incident.history, label=EVIL, facts={EVIL: (EVIL,)})
    alert = dict.fromkeys(("step", "rule", "severity", "state", "words", "phase"), EVIL) | {"time": NOON}
    fires = alert | {"step": 3, "state": "firing", "phase": "firing"}
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
    assert main(["show", "v0-reference", "--html", "page.html", *home]) == 0
    assert "wrote page.html" in capsys.readouterr().err
    assert "No cause was found." in (tmp_path / "page.html").read_text()
    assert main(["show", "v0-reference", "--html", "nowhere/page.html", *home]) == 1
    assert "cannot write the report nowhere/page.html" in capsys.readouterr().err


def test_a_report_of_a_run_in_files(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE_DATA / "faults" / "healthy", tmp_path / "healthy")
    page = tmp_path / "page.html"
    assert main(["show", str(tmp_path / "healthy"), "--html", str(page), "--home", str(tmp_path / "none")]) == 0
    assert "Incident report: healthy" in page.read_text()


def test_steps_without_a_value_are_a_gap_and_not_a_line() -> None:
    points = [(float(step), 1.0 + step) for step in (0, 1, 2, 50, 51, 52)]
    drawn = str(figure(Chart("t", "alt", [Line("run", points)])))
    path = re.search('class="line c0"', drawn)
    assert path is not None
    assert re.search(r'd="([^"]*)" class="line c0"', drawn)[1].count("M") == 2
    assert "Not measured." in figure(Chart("t", "alt", [Line("run", [])]))
