"""`logprobe alerts`, with a service and without one."""

from __future__ import annotations

import json
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from processes import called, connected, end, eventually, logprobe, start_service
from recorded_home import SAMPLE_DATA

from logprobe.app.processes import service as service_program
from logprobe.collectors.errors import QueryError
from logprobe.collectors.recorder.recorder import Recorder

RULES = """\
defaults: false
rules:
  - {name: high, severity: critical, metric: logprob_abs_diff_mean, when: {kind: threshold, above: 0.5}}
"""
OWN = "alerts:\n" + textwrap.indent(RULES, "  ")


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
def own_rules(home: Path) -> Path:
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


def test_an_alert_fires_is_acknowledged_and_silenced_through_the_service(own_rules: Path) -> None:
    home = own_rules
    record(home, "bad", [0.1, 0.1, 1.0])
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            eventually(lambda: listed(home)["alerts"], "the alert fires")
            status = json.loads(logprobe("status", "bad", "--home", home, "--json", code=2).stdout)
            assert [(alert["rule"], alert["started_step"]) for alert in status["alerts"]] == [("high", 2)]
            done = logprobe("alerts", "ack", "bad", "--author", "ann", "--reason", "mine", "--home", home).stdout
            assert done == "bad/high/2: acknowledged by ann\n"
            assert listed(home)["alerts"][0]["acknowledged_by"] == "ann"
            logprobe("alerts", "silence", "run=x*", "--for", "2h", "--reason", "ablation", "--home", home)
            (silence,) = listed(home)["silences"]
            assert datetime.fromisoformat(silence["expires_at"]) > datetime.now(UTC)
            wrong = logprobe("alerts", "silence", "run=x*", "--for", "soon", "--reason", "r", "--home", home, code=1)
            assert wrong.stderr == "logprobe: 'soon' is not a duration; write 90s, 10m, 2h or 1d\n"
            assert {"alerts.acknowledge", "alerts.silence"} <= set(_actions(reader))
            snoozed = logprobe("alerts", "ack", "bad", "--for", "soon", "--home", home, code=1).stderr
            assert snoozed == "logprobe: 'soon' is not a duration; write 90s, 10m, 2h or 1d\n"
            rewrite(home / "logprobe.yaml", OWN.replace("severity", "severty"))
            kept = "unknown key; did you mean 'severity'?; the previous version stays active"
            eventually(lambda: kept in logprobe("status", "bad", "--home", home, code=2).stdout, "the mistake is said")
            rewrite(home / "logprobe.yaml", OWN)
    finally:
        errors = end(process)
    assert "Traceback" not in errors
    # Without a service, straight in the store.
    logprobe("alerts", "silence", "--end", silence["id"], "--home", home)
    assert listed(home)["silences"] == []
    text = logprobe("alerts", "list", "--home", home).stdout
    assert "bad/high/2" in text
    history = listed(home, "--history")["transitions"]
    assert [(row["step"], row["before"], row["after"]) for row in history] == [(2, "normal", "firing")]


def _actions(reader) -> list[str]:
    with pytest.raises(QueryError, match="no action") as caught:
        reader.act("nothing", {})
    return str(caught.value).replace(",", " ").split()


def test_a_home_with_a_wrong_rule_file_does_not_start(own_rules: Path) -> None:
    (own_rules / "logprobe.yaml").write_text(OWN.replace("severity", "severty"))
    line = called(service_program.main, "--home", own_rules, code=1).stderr
    assert line == f"logprobe: {own_rules}/logprobe.yaml:4: `severty`: unknown key; did you mean 'severity'?\n"
    checked = logprobe("alerts", "check", own_rules / "logprobe.yaml", code=1)
    assert checked.stdout == line.removeprefix("logprobe: ")


def test_backtest_of_a_recorded_run_and_of_a_home_without_a_service(own_rules: Path, tmp_path: Path) -> None:
    document = json.loads(logprobe("alerts", "backtest", SAMPLE_DATA / "late-growth", "--json").stdout)[0]
    first = {row["rule"]: row["step"] for row in reversed(document["messages"])}
    assert document["steps"] == 800
    assert 500 < first["gap-growing"] <= first["gap-critical"] <= 560
    assert min(row["step"] for row in document["messages"]) > 500

    record(own_rules, "bad", [0.1, 1.0, 0.1])
    logprobe("ingest", "--once", "--home", own_rules)
    text = logprobe("alerts", "backtest", "bad", "--home", own_rules).stdout
    assert "bad: 3 steps, 2 messages" in text
    assert logprobe("alerts", "backtest", "bax", "--home", own_rules, code=1).stderr.startswith(
        "logprobe: no run 'bax'; did you mean"
    )
    assert "the rules have not evaluated this run yet" in logprobe("status", "bad", "--home", own_rules).stdout
    strict = tmp_path / "strict.yaml"
    strict.write_text(RULES.replace("0.5", "5"))
    assert "0 messages" in logprobe("alerts", "backtest", "bad", "--rules", strict, "--home", own_rules).stdout


def test_check_lists_what_is_in_force_and_prints_the_schema(own_rules: Path) -> None:
    assert "gap-critical" in logprobe("alerts", "check").stdout
    assert "gap-critical" not in logprobe("alerts", "check", "--home", own_rules).stdout  # that home's own rules
    assert "default_rules.yaml" in logprobe("alerts", "check").stdout
    (own_rules / "alerts.d").mkdir()
    (own_rules / "alerts.d" / "dashboard.yaml").write_text("rules:\n  - {name: high, severity: info}\n")
    listed = logprobe("alerts", "check", "--home", own_rules).stdout
    (row,) = [line.split() for line in listed.splitlines() if line.startswith("high")]
    assert (row[1], row[-1]) == ("info", "dashboard.yaml")
    (rule,) = json.loads(logprobe("alerts", "check", own_rules / "logprobe.yaml", "--json").stdout)
    assert (rule["name"], rule["when"]["above"]) == ("high", 0.5)
    assert json.loads(logprobe("alerts", "check", "--schema").stdout)["title"] == "logprobe alert rules"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["silence", "--reason", "r"], "write FIELD=PATTERN"),
        (["silence", "rule"], "--reason is required"),
        (["silence", "rule", "--reason", "r"], "write FIELD=PATTERN"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(home: Path, arguments: list[str], words: str) -> None:
    error = logprobe("alerts", *arguments, "--home", home, code=1).stderr
    assert words in error
    assert error.count("\n") == 1
