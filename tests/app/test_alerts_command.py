"""`logprobe alerts`, with a service and without one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from processes import called, eventually, logprobe, service

from logprobe.app.processes import service as service_program
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


def listed(home: Path, *more: str) -> dict:
    return json.loads(logprobe("alerts", "list", "--home", home, "--json", *more).stdout)


def firing(home: Path) -> list[dict]:
    return [row for row in listed(home)["alerts"] if row["rule"] == "high"]


def test_an_alert_fires_is_acknowledged_and_silenced_through_the_service(own: Path) -> None:
    home = own
    record(home, "bad", [0.1, 0.1, 1.0])
    with service(home) as reader:
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
        other = home / "logprobe.new"
        other.write_text(OWN.replace("severity", "severty"))
        other.replace(home / "logprobe.yaml")  # in one go: a file without rules would end what fires
        kept = "alerts.0.severty: unknown key; did you mean 'severity'?; the previous version stays active"
        eventually(lambda: kept in logprobe("show", "bad", "--home", home, code=2).stdout, "the mistake is said")
    # Without a service, straight in the store.
    logprobe("alerts", "silence", "--end", silence["id"], "--home", home)
    assert listed(home)["silences"] == []
    assert "bad/high/2" in logprobe("alerts", "list", "--home", home).stdout
    history = [row for row in listed(home, "--history")["messages"] if row["rule"] == "high"]
    assert [(row["step"], row["state"]) for row in history] == [(2, "firing"), (2, "acknowledged")]
    for words, said in (
        (["silence", "run=x*", "--for", "soon", "--reason", "r"], "'soon' is not a duration; write 90s"),
        (["silence", "rule=a"], "--reason is required"),
        (["silence", "severity=info", "--reason", "r"], "write run=PATTERN"),
    ):
        error = logprobe("alerts", *words, "--home", home, code=1).stderr
        assert (said in error, error.count("\n")) == (True, 1), words


def test_a_home_with_a_wrong_threshold_does_not_start(own: Path) -> None:
    (own / "logprobe.yaml").write_text(OWN.replace("severity", "severty"))
    line = called(service_program.main, "--home", own, code=1).stderr
    assert line == f"logprobe: {own}/logprobe.yaml:2: alerts.0.severty: unknown key; did you mean 'severity'?\n"
    for file in (["--thresholds", own / "logprobe.yaml"], ["--home", own]):
        assert logprobe("alerts", "try", *file, code=1).stderr == line


def test_backtest_of_runs_without_a_service(own: Path, tmp_path: Path) -> None:
    record(own, "bad", [0.1, 1.0, 0.1])
    logprobe("up", "--once", "--home", own)
    assert "bad: 3 steps, 2 messages" in logprobe("alerts", "try", "bad", "--home", own).stdout
    (document,) = json.loads(logprobe("alerts", "try", "bad", "--json", "--home", own).stdout)
    told = [(row["rule"], row["step"]) for row in document["messages"]]
    assert (document["steps"], sorted(told)) == (3, [("high", 1), ("high", 2)])
    assert "no run 'bax'; did you mean" in logprobe("alerts", "try", "bax", "--home", own, code=1).stderr
    strict = tmp_path / "strict.yaml"
    strict.write_text(OWN.replace("0.5", "5"))
    assert "0 messages" in logprobe("alerts", "try", "bad", "--thresholds", strict, "--home", own).stdout
    (threshold,) = json.loads(logprobe("alerts", "try", "--thresholds", strict, "--json").stdout)
    assert (threshold["name"], threshold["above"], threshold["steps"]) == ("high", 5, 1)
    strict.write_text(logprobe("alerts", "try", "--template").stdout)
    assert "few-effective-samples" in logprobe("alerts", "try", "--thresholds", strict).stdout
