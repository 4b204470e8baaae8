"""Findings that users accept: in a run or in runs of a pattern, stored, audited, visible, and withdrawn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from processes import JUDGED, logprobe
from recorded_home import take_in
from training_calls import rows

from logprobe.alerts.rules.acceptance import ACCEPT, WITHDRAW
from logprobe.alerts.rules.actions import of as offered
from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.accepted import accepted_by_run
from logprobe.monitor.judging.job import PACES, DiagnosisStage
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

RUN = "prod-7"
ENGINE = {"model": "m", "dtype": "bfloat16"}


def record(home: Path, run: str) -> None:
    """A short run whose log-ratios spread by 0.03; K3 is about half its square."""
    with Recorder(home, run) as recorder:
        recorder.config(ENGINE, kind="engine_config")
        for step in range(6):
            recorder.training(**rows(step, (8, 50), spread=0.03))
        assert recorder.flush(120)
    with Store.open(Home(home)) as store:
        take_in(store)
        Turns(DiagnosisStage(store)).run_once()


def audit(home: Path) -> list[tuple[str, str, str]]:
    with Store.open(Home(home)) as store:
        rows = store.read("user_actions_of", run=None).to_pylist()
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
    assert (entry["cause"], entry["up_to"], entry["by"]) == ("low_precision", 3e-3, "ann")
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
    ((RUN, "low_precision", "--reason", "b", "--up-to", "inf"), "is not a K3 in nats"),
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
        offered(store)[ACCEPT].run(request)
        assert job.run_once()["runs"] == 1
        assert job.run_once()["runs"] == 0


def test_a_pattern_accepts_in_runs_of_such_names_also_later_ones(home: Path) -> None:
    record(home, RUN)
    record(home, "ablation-1")
    with Store.open(Home(home)) as store:
        act, stage = offered(store), DiagnosisStage(store)
        request = {"run": "prod-*", "cause": "low_precision", "because": "bf16", "author": "ann"}
        with pytest.raises(ConfigurationError, match="--up-to 3e-3"):
            act[ACCEPT].run(request)
        act[ACCEPT].run({**request, "up_to": "3e-3"})
        assert [(row["run"], row["awaited"]) for row in stage.rows()] == [(RUN, True)]
        later = accepted_by_run(store, [RUN, "ablation-1", "prod-8"])
        assert {run: [each.up_to for each in found] for run, found in later.items()} == {RUN: [3e-3], "prod-8": [3e-3]}
        with pytest.raises(ConfigurationError, match=r"in all runs 'prod-\*'; withdraw it there"):
            act[WITHDRAW].run({**request, "run": RUN})
        for run, up_to in ((RUN, 5e-4), ("prod-*", 2e-3), ("*", 1e-3)):
            act[ACCEPT].run({**request, "run": run, "up_to": up_to})
        found = accepted_by_run(store, [RUN, "prod-8"])
        assert [found[run][0].up_to for run in (RUN, "prod-8")] == [5e-4, 1e-3], "of the run itself, then the newest"
        for pattern in ("prod-*", "*"):
            act[WITHDRAW].run({**request, "run": pattern})
        assert accepted_by_run(store, [RUN, "prod-8"]).keys() == {RUN}
