"""Findings that people live with: accepted by command or policy, stored, audited, visible, and back when they grow."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import JUDGED, logprobe
from recorded_home import take_in

from logprobe.alerts.rules import acceptance as actions
from logprobe.alerts.rules.acceptance import ACCEPT, acceptance_part, follow
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


def audit(home: Path) -> list[tuple[str, str, str]]:
    with Store.open(Home(home)) as store:
        rows = store.read("alert_audit", run="", count=20).to_pylist()
    return [(row["author"], row["action"], row["subject"]) for row in rows]


def command(home: Path, *words: str, by: str = "ann", code: int = 0) -> str:
    done = logprobe("alerts", "accept", "--home", home, *words, code=code, LOGNAME=by)
    return str(done.stdout + done.stderr)


def listed(home: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(logprobe("show", RUN, "--json", "--home", home, code=JUDGED).stdout)[
        "accepted"
    ]
    return found


def test_a_finding_is_accepted_listed_and_taken_back(home: Path) -> None:
    record(home, RUN)
    for words, says in MISTAKES:
        assert says in command(home, *words, code=1), words
    assert audit(home) == []
    because = (RUN, "low_precision", "--reason", "bf16 by choice", "--up-to", "3e-3")
    assert "up to a K3 of 0.003" in command(home, *because)
    command(home, *because)  # twice is once
    shown = logprobe("show", RUN, "--home", home, code=JUDGED).stdout
    assert "low_precision up to K3 0.003: bf16 by choice (ann)" in shown
    (entry,) = listed(home)
    assert (entry["cause"], entry["up_to"], entry["by"], entry["source"]) == ("low_precision", 3e-3, "ann", "command")
    with Store.open(Home(home)) as store:
        stage = DiagnosisStage(store)
        assert [row["run"] for row in stage.rows()] == [RUN]
        Turns(stage).run_once()
        assert stage.rows() == []
    command(home, RUN, "low_precision", "--withdraw", by="bob")
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


def test_the_file_accepts_for_patterns_of_runs_is_read_again_and_a_mistake_changes_nothing(home: Path) -> None:
    record(home, RUN)
    record(home, "ablation-1")
    file, entry = (
        home / settings_file.FILE,
        "accepted:\n  - {match: 'prod-*', cause: low_precision, because: b, up_to: %s}\n",
    )
    with Store.open(Home(home)) as store:
        part = acceptance_part(store, threading.Event())
        (job,) = part.jobs
        assert job.run_now() == {"accepted": 0, "withdrawn": 0}
        file.write_text(entry % "3e-3")
        assert job.run_now() == {"accepted": 1, "withdrawn": 0}
        assert job.run_now() == {"accepted": 0, "withdrawn": 0}
        (acceptance,) = accepted(store, RUN)
        assert (acceptance.cause, acceptance.up_to, acceptance.source) == ("low_precision", 3e-3, "policy")
        assert accepted(store, "ablation-1") == ()
        file.write_text(entry % "many")
        assert "logprobe.yaml:2" in job.run_now()["problem"]
        assert accepted(store, RUN)[0].up_to == 3e-3
    assert "logprobe.yaml; change it there" in command(home, RUN, "low_precision", "--withdraw", code=1)
    command(home, RUN, "low_precision", "--reason", "less", "--up-to", "5e-4")
    with Store.open(Home(home)) as store:
        assert accepted(store, RUN)[0].up_to == 5e-4  # a person's word counts before the policy's
        file.unlink()
        follow(store, (), NOW)
        assert [each.because for each in accepted(store, RUN)] == ["less"]


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
