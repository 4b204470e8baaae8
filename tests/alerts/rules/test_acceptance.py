"""Findings that people live with: accepted by command or policy, stored, audited, visible, and back when they grow."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from recorded_home import take_in

from logprobe.alerts.rules import acceptance as actions
from logprobe.alerts.rules.acceptance import ACCEPT, Accepted, acceptance_part, follow
from logprobe.app import cli
from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.accepted import accepted
from logprobe.monitor.judging.job import PACES, DiagnosisStage
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.settings import settings_file
from logprobe.monitor.store.store import Store

RUN = "prod-7"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENGINE = {"model": "m", "dtype": "bfloat16"}


def record(home: Path, run: str) -> None:
    """A short run whose log-ratios spread by 0.03; K3 is about half its square."""
    rng = np.random.default_rng(0)
    with Recorder(home, run) as recorder:
        recorder.config(ENGINE, kind="engine_config")
        for step in range(6):
            rollout = [-rng.exponential(1.0, 50).astype(np.float32) - 0.2 for _ in range(8)]
            recorder.training(
                step=step,
                sample_ids=[f"s{step}-{index}" for index in range(8)],
                token_ids=[np.arange(50)] * 8,
                trainer_logprobs=[r + rng.normal(0, 0.03, 50).astype(np.float32) for r in rollout],
                rollout_logprobs=rollout,
            )
        assert recorder.flush(120)
    with Store.open(Home(home)) as store:
        take_in(store)
        Turns(DiagnosisStage(store)).run_once()


def command(home: Path, *words: str, by: str = "ann") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, LOGNAME=by), redirect_stdout(out), redirect_stderr(err):
        code = cli.main(["alerts", "accept", "--home", str(home), *words])
    return code, out.getvalue(), err.getvalue()


def listed(home: Path) -> list[dict[str, Any]]:
    out = io.StringIO()
    with redirect_stdout(out):
        cli.main(["show", RUN, "--json", "--home", str(home)])
    found: list[dict[str, Any]] = json.loads(out.getvalue())["accepted"]
    return found


def audit(home: Path) -> list[tuple[str, str, str]]:
    with Store.open(Home(home)) as store:
        rows = store.read("alert_audit", run="", count=20).to_pylist()
    return [(row["author"], row["action"], row["subject"]) for row in rows]


def test_a_finding_is_accepted_listed_and_taken_back(home: Path) -> None:
    record(home, RUN)
    because = ("--reason", "bf16 by choice")
    code, out, said = command(home, RUN, "low_precision", *because, "--up-to", "3e-3", "--json")
    assert (code, "up to a K3 of 0.003" in said) == (0, True)
    assert json.loads(out) == {"run": RUN, "cause": "low_precision", "up_to": 3e-3}
    assert command(home, RUN, "low_precision", *because, "--up-to", "3e-3")[0] == 0  # twice is once
    with redirect_stdout(io.StringIO()) as shown:
        cli.main(["show", RUN, "--home", str(home)])
    assert "low_precision up to K3 0.003: bf16 by choice (ann)" in shown.getvalue()
    (entry,) = listed(home)
    assert (entry["cause"], entry["up_to"], entry["by"], entry["source"]) == ("low_precision", 3e-3, "ann", "command")
    assert command(home, RUN, "low_precision", "--withdraw", by="bob")[0] == 0
    assert listed(home) == []
    subject = f"{RUN}/low_precision"
    assert audit(home) == [("bob", "acceptance withdrawn", subject), ("ann", "finding accepted", subject)]


MISTAKES = [
    ((RUN, "low_precison", "--reason", "b", "--up-to", "1"), "did you mean 'low_precision'"),
    ((RUN, "low_precision"), "--reason"),
    ((RUN, "misaligned_tokens", "--reason", "b"), "--up-to 3e-3"),
    (("nowhere", "low_precision", "--reason", "b", "--up-to", "1"), "no run 'nowhere'"),
    ((RUN, "low_precision", "--withdraw"), "is not accepted"),
]


def test_what_makes_no_sense_is_refused(home: Path) -> None:
    record(home, RUN)
    for words, says in MISTAKES:
        code, _, said = command(home, *words)
        assert (code, says in said) == (1, True), (words, said)
    assert audit(home) == []


def test_accepting_makes_the_run_due_for_a_diagnosis(home: Path) -> None:
    record(home, RUN)
    with Store.open(Home(home)) as store:
        assert store.read("diagnosis_due").num_rows == 0
    command(home, RUN, "low_precision", "--reason", "b", "--up-to", "1e-2")
    with Store.open(Home(home)) as store:
        assert store.read("diagnosis_due")["run"].to_pylist() == [RUN]
        Turns(DiagnosisStage(store)).run_once()
        assert store.read("diagnosis_due").num_rows == 0


def test_whoever_accepts_does_not_wait_for_the_next_turn(home: Path) -> None:
    record(home, RUN)
    command(home, RUN, "low_precision", "--reason", "b", "--up-to", "1e-2")
    seconds = itertools.count()
    with Store.open(Home(home)) as store:
        stage = DiagnosisStage(store)
        job = Turns(stage, paces=PACES, processor=lambda: float(next(seconds)))
        assert job.run_once()["runs"] == 1  # and now it rests
        request = {"run": RUN, "cause": "staleness", "because": "b", "up_to": 1e-3, "author": "ann"}
        acceptance_part(store, threading.Event()).actions[ACCEPT].run(request)
        assert job.run_once()["runs"] == 1
        assert job.run_once()["runs"] == 0


def test_a_policy_accepts_for_patterns_of_runs(home: Path) -> None:
    record(home, RUN)
    record(home, "ablation-1")
    (home / settings_file.FILE).write_text(
        "accepted:\n  - {match: 'prod-*', cause: low_precision, because: bf16 by choice, up_to: 3e-3}\n"
    )
    entries = actions.load(home)
    with Store.open(Home(home)) as store:
        assert follow(store, entries, NOW) == {"accepted": 1, "withdrawn": 0}
        assert follow(store, entries, NOW) == {"accepted": 0, "withdrawn": 0}
        (acceptance,) = accepted(store, RUN)
        assert (acceptance.cause, acceptance.up_to, acceptance.source) == ("low_precision", 3e-3, "policy")
        assert accepted(store, "ablation-1") == ()
        assert follow(store, (Accepted(match="prod-*", cause="low_precision", because="b", up_to=1e-3),), NOW) == {
            "accepted": 1,
            "withdrawn": 1,
        }
        assert accepted(store, RUN)[0].up_to == 1e-3
    code, _, said = command(home, RUN, "low_precision", "--withdraw")
    assert (code, "logprobe.yaml; change it there" in said) == (1, True)
    command(home, RUN, "low_precision", "--reason", "less", "--up-to", "5e-4")
    with Store.open(Home(home)) as store:
        assert accepted(store, RUN)[0].up_to == 5e-4  # a person's word counts before the policy's
        follow(store, (), NOW)
        assert [each.because for each in accepted(store, RUN)] == ["less"]


def test_the_file_is_read_again_and_a_mistake_changes_nothing(home: Path) -> None:
    record(home, RUN)
    file = home / settings_file.FILE
    entry = "accepted:\n  - {match: '*', cause: low_precision, because: b, up_to: %s}\n"
    with Store.open(Home(home)) as store:
        part = acceptance_part(store, threading.Event())
        (job,) = part.jobs
        assert job.run_now() == {"accepted": 0, "withdrawn": 0}
        file.write_text(entry % "3e-3")
        assert job.run_now()["accepted"] == 1
        file.write_text(entry % "many")
        assert "logprobe.yaml:2" in job.run_now()["problem"]
        assert accepted(store, RUN)[0].up_to == 3e-3
        assert part.actions[ACCEPT].run(
            {"run": RUN, "cause": "staleness", "because": "b", "up_to": 1e-3, "author": "ann"}
        )
        file.unlink()
        assert job.run_now() == {"accepted": 0, "withdrawn": 1}
        assert [each.cause for each in accepted(store, RUN)] == ["staleness"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accept: []", ":1: unknown key 'accept'"),
        (
            "accepted:\n  - {match: x, cause: low_precison, because: b}",
            ":2: accepted.0.cause: unknown cause 'low_precison'; did you mean",
        ),
        ("accepted:\n  - {match: x, cause: staleness}", ":2: accepted.0.because: Field required"),
        (
            "accepted:\n  - {match: x, cause: staleness, because: b, upto: 1}",
            ":2: accepted.0.upto: unknown key; did you mean 'up_to'",
        ),
        (
            "accepted:\n  - {match: x, cause: staleness, because: b, up_to: -1}",
            ":2: accepted.0.up_to: `up_to`: -1 is not a K3",
        ),
        ("accepted:\n  - {match: x, cause: staleness, because: b, up_to: .inf}", "is not a K3"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / settings_file.FILE).write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        actions.load(tmp_path)
    assert says in str(caught.value)
