"""`logprobe alerts`, with a service and without one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from processes import called, connected, end, eventually, logprobe, start_service

from logprobe.app.processes import service as service_program
from logprobe.collectors.errors import QueryError
from logprobe.collectors.recorder.recorder import Recorder

OWN = "alerts:\n  - {name: high, severity: critical, metric: logprob_abs_diff_mean, above: 0.5, steps: 1}\n"


def record(home: Path, run: str, gaps: list[float]) -> None:
    rollout = np.full((2, 8), -3.0, np.float32)
    with Recorder(home, run, rank=0) as recorder:
        for step, gap in enumerate(gaps):
            recorder.training(
                step=step,
                sample_ids=[f"{step}-{i}" for i in range(2)],
                token_ids=np.ones((2, 8), np.int32),
                rollout_logprobs=rollout,
                trainer_logprobs=rollout + np.float32(gap),
                mask=np.ones((2, 8), bool),
            )


@pytest.fixture
def own(home: Path) -> Path:
    home.mkdir()
    (home / "logprobe.yaml").write_text(OWN)
    return home


def rewrite(file: Path, text: str) -> None:
    """In one go: a service that looks in the middle of a write finds a file without rules, and ends what fires."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def listed(home: Path, *more: str) -> dict:
    return json.loads(logprobe("alerts", "list", "--home", home, "--json", *more).stdout)


def firing(home: Path) -> list[dict]:
    return [row for row in listed(home)["alerts"] if row["rule"] == "high"]


def test_an_alert_fires_is_acknowledged_and_silenced_through_the_service(own: Path) -> None:
    home = own
    record(home, "bad", [0.1, 0.1, 1.0])
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            eventually(lambda: firing(home), "the alert fires")
            status = json.loads(logprobe("show", "bad", "--home", home, "--json", code=2).stdout)
            assert ("high", 2) in [(alert["rule"], alert["started_step"]) for alert in status["alerts"]]
            done = logprobe("alerts", "ack", "bad/high", "--reason", "mine", "--home", home, LOGNAME="ann").stdout
            assert done == "bad/high/2: acknowledged by ann\n"
            assert firing(home)[0]["acknowledged_by"] == "ann"
            logprobe("alerts", "silence", "run=x*", "--for", "2h", "--reason", "ablation", "--home", home)
            (silence,) = listed(home)["silences"]
            assert datetime.fromisoformat(silence["expires_at"]) > datetime.now(UTC)
            wrong = logprobe("alerts", "silence", "run=x*", "--for", "soon", "--reason", "r", "--home", home, code=1)
            assert wrong.stderr == "logprobe: 'soon' is not a duration; write 90s, 10m, 2h or 1d\n"
            assert {"alerts.acknowledge", "alerts.silence"} <= set(_actions(reader))
            snoozed = logprobe("alerts", "ack", "bad", "--for", "soon", "--home", home, code=1).stderr
            assert snoozed == "logprobe: 'soon' is not a duration; write 90s, 10m, 2h or 1d\n"
            rewrite(home / "logprobe.yaml", OWN.replace("severity", "severty"))
            kept = "alerts.0.severty: unknown key; did you mean 'severity'?; the previous version stays active"
            eventually(lambda: kept in logprobe("show", "bad", "--home", home, code=2).stdout, "the mistake is said")
            rewrite(home / "logprobe.yaml", OWN)
    finally:
        errors = end(process)
    assert "Traceback" not in errors
    # Without a service, straight in the store.
    logprobe("alerts", "silence", "--end", silence["id"], "--home", home)
    assert listed(home)["silences"] == []
    text = logprobe("alerts", "list", "--home", home).stdout
    assert "bad/high/2" in text
    history = [row for row in listed(home, "--history")["messages"] if row["rule"] == "high"]
    assert [(row["step"], row["state"]) for row in history] == [(2, "firing"), (2, "acknowledged")]


def _actions(reader) -> list[str]:
    with pytest.raises(QueryError, match="no action") as caught:
        reader.act("nothing", {})
    return str(caught.value).replace(",", " ").split()


def test_a_home_with_a_wrong_threshold_does_not_start(own: Path) -> None:
    (own / "logprobe.yaml").write_text(OWN.replace("severity", "severty"))
    line = called(service_program.main, "--home", own, code=1).stderr
    assert line == f"logprobe: {own}/logprobe.yaml:2: alerts.0.severty: unknown key; did you mean 'severity'?\n"
    for file in (["--thresholds", own / "logprobe.yaml"], ["--home", own]):
        assert logprobe("alerts", "try", *file, code=1).stderr == line


def test_backtest_of_runs_without_a_service(own: Path, recorded_runs: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing.yaml"
    growing.write_text("alerts: [{name: high, metric: k3_kl, above: 0.005}]\n")
    options = ("--thresholds", growing, "--json")
    document = json.loads(logprobe("alerts", "try", "late-growth", "--home", recorded_runs, *options).stdout)[0]
    first = {row["rule"]: row["step"] for row in reversed(document["messages"])}
    assert document["steps"] == 800
    assert first["high"] > 450  # noise reaches the limit shortly before growth does

    record(own, "bad", [0.1, 1.0, 0.1])
    logprobe("up", "--once", "--home", own)
    text = logprobe("alerts", "try", "bad", "--home", own).stdout
    assert "bad: 3 steps, 2 messages" in text
    assert logprobe("alerts", "try", "bax", "--home", own, code=1).stderr.startswith(
        "logprobe: no run 'bax'; did you mean"
    )
    strict = tmp_path / "strict.yaml"
    strict.write_text(OWN.replace("0.5", "5"))
    assert "0 messages" in logprobe("alerts", "try", "bad", "--thresholds", strict, "--home", own).stdout


def test_check_lists_what_is_in_force_and_prints_a_template(own: Path, tmp_path: Path) -> None:
    listed = logprobe("alerts", "try", "--home", own).stdout
    assert "high   critical" in listed
    (threshold,) = json.loads(logprobe("alerts", "try", "--thresholds", own / "logprobe.yaml", "--json").stdout)
    assert (threshold["name"], threshold["above"], threshold["steps"]) == ("high", 0.5, 1)
    template = tmp_path / "template.yaml"
    template.write_text(logprobe("alerts", "try", "--template").stdout)
    assert "few-effective-samples" in logprobe("alerts", "try", "--thresholds", template).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["silence", "--reason", "r"], "write run=PATTERN"),
        (["silence", "rule=a"], "--reason is required"),
        (["silence", "rule", "--reason", "r"], "write run=PATTERN"),
        (["silence", "severity=info", "--reason", "r"], "write run=PATTERN"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(home: Path, arguments: list[str], words: str) -> None:
    error = logprobe("alerts", *arguments, "--home", home, code=1).stderr
    assert words in error
    assert error.count("\n") == 1
