"""`logprobe preflight` on a real engine, and with transformers in its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from diagnoses import diagnosis as document_of
from engine_process import ENGINE_ENVIRONMENT
from recorded_home import ingest_recorded

from logprobe.app.cli import main
from logprobe.app.commands.preflight import judged, verdict
from logprobe.monitor.home import Home
from logprobe.monitor.judging.parity import Parity
from logprobe.monitor.judging.parity.judging import Check
from logprobe.monitor.proof.forward import score
from logprobe.monitor.proof.scorers import trial_process
from logprobe.monitor.proof.scorers.running import Outcome
from logprobe.monitor.store.store import Store


def preflight(
    home: Path, model: Path, *more: str, engine: str = "", stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "logprobe.app.cli",
        "preflight",
        "--model",
        str(model),
        "--home",
        str(home),
        "--json",
    ]
    arguments = f"--enforce-eager --block-size 32 --max-model-len 256 {engine}"
    return subprocess.run(
        [*command, "--engine-args", arguments, *more],
        env={**os.environ, **ENGINE_ENVIRONMENT},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.engine
def test_a_model_is_sampled_scored_recorded_and_judged(
    models: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's bfloat16 is found, from one step, and is what such a setup has; the level is kept for the next one."""
    done = preflight(home, models / "new", "--run", "mine")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["result"] == "fine"
    assert re.fullmatch(r"vLLM \S+, bfloat16", found["sampler"])
    assert 1e-6 < found["k3"] < 1e-2
    assert (found["run"], found["sequences"], found["trainer"]) == ("mine", 20, "transformers, float32")
    (finding,) = found["diagnosis"]["findings"]
    assert (finding["cause"], finding["urgency"]) == ("low_precision", "informational")
    assert main(["show", "--metrics", "mine", "--home", str(home), "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["metrics"]["backend.k3_kl"] == pytest.approx(found["k3"], rel=1e-3)
    with Store.open(Home(home)) as store:
        (known,) = store.query("SELECT run, low, high FROM diagnoses WHERE setup IS NOT NULL").to_pylist()
    assert known["run"] == "mine"
    assert known["low"] == known["high"] == pytest.approx(found["k3"], rel=1e-3)


@pytest.mark.engine
@pytest.mark.long
def test_log_probs_of_another_distribution_fail(models: Path, home: Path) -> None:
    done = preflight(home, models / "new", "--temperature", "0.7", engine="--logprobs-mode raw_logprobs")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["result"] == "wrong"
    wrong = {check["check"] for check in found["checks"] if check["outcome"] == "wrong"}
    assert {"configuration", "finding"} <= wrong


def test_an_engine_that_does_not_start_is_unknown_and_not_wrong(
    models: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(None, "no GPU", 1.0)
    monkeypatch.setattr("logprobe.app.commands.preflight.run_scorer", lambda *_, **__: outcome)
    assert main(["preflight", "--model", str(models / "new"), "--home", str(home)]) == 2
    assert "nothing could be sampled" in capsys.readouterr().err


def broken(*_: object, **__: object) -> None:
    raise OSError("no space left")


@pytest.mark.parametrize(
    ("more", "error"),
    [(["--recipe", "missing.yaml"], "missing.yaml"), ([], "no space left")],
)
def test_errors_are_unknown_and_not_wrong(
    more: list[str], error: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("logprobe.app.commands.preflight.run_scorer", broken)
    for form in ([], ["--json"]):
        assert main(["preflight", "--model", "tiny", "--home", str(home), *more, *form]) == 2
        out, err = capsys.readouterr()
        assert error in err
    document = json.loads(out)
    assert error in document.pop("error")
    assert document == {"result": "unknown", "checks": []}


def test_a_full_disk_under_the_result_is_unknown_and_not_wrong(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = preflight(home, Path("nowhere"), stdout=full)
    assert done.returncode == 2, done.stderr
    assert "nowhere" in done.stderr


def test_a_level_that_cannot_be_kept_leaves_the_result_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process takes the home after the run was judged."""
    ingest_recorded(home, "v0-reference", before_step=3)
    with ExitStack() as held:

        def fine_and_taken(_: object) -> str:
            held.enter_context(Home(home).lock())
            return "fine"

        tried = {"run": "v0-reference", **FOUND}
        monkeypatch.setattr("logprobe.app.commands.preflight._tried", lambda *_: tried)
        monkeypatch.setattr("logprobe.app.commands.preflight._checkpoint", lambda *_: home)
        monkeypatch.setattr("logprobe.app.commands.preflight.verdict", fine_and_taken)
        assert main(["preflight", "--model", "tiny", "--home", str(home), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["result"] == "fine"
    assert "the level of v0-reference is not kept" in err


FOUND = {"sampler": "vLLM 0.32.0, bfloat16"}
LEVEL = {"k3": 6e-4, "expected": {"low": 1e-5, "high": 2e-3}}
PARITY = Parity("mine", "recipe", "at_parity", (), (), (), ())
UNMET = Check("log-probs", "semantic", "processed", "violated", None, "why", "fix", ())
RAW = {"cause": "raw_logprobs", "layer": "semantic"}


def diagnosed(verdict: str = "calibrating", *, status: str = "as expected", **parts: Any) -> Any:
    return document_of(verdict, level={**LEVEL, "status": status}, findings=[{**RAW, **parts}] if parts else [])


FINE = diagnosed()


@pytest.mark.parametrize(
    ("found", "diagnosis", "parity", "strict", "result"),
    [
        (FOUND, FINE, PARITY, False, "fine"),
        (FOUND, document_of("calibrating"), PARITY, False, "unknown"),
        (FOUND, diagnosed(status="unknown set-up"), PARITY, False, "unknown"),
        (FOUND, diagnosed(status="above"), PARITY, False, "wrong"),
        (FOUND, diagnosed("critical", status="far above"), PARITY, False, "wrong"),
        (FOUND, diagnosed("critical", urgency="act"), PARITY, False, "wrong"),
        (FOUND, diagnosed(urgency="watch"), PARITY, False, "unknown"),
        (FOUND, diagnosed(urgency="watch", vetoes=True), PARITY, False, "wrong"),
        (FOUND, diagnosed(urgency="informational"), PARITY, False, "fine"),
        ({"sampler": "transformers in bfloat16 (a stand-in)"}, FINE, PARITY, False, "unknown"),
        (FOUND, FINE, replace(PARITY, checks=(UNMET,)), False, "wrong"),
        (FOUND, FINE, replace(PARITY, checks=(replace(UNMET, layer="inference_path"),)), False, "fine"),
        (FOUND, FINE, replace(PARITY, checks=(replace(UNMET, layer="inference_path"),)), True, "wrong"),
        (FOUND, FINE, replace(PARITY, checks=(replace(UNMET, outcome="unknown"),)), False, "fine"),
        (FOUND, FINE, replace(PARITY, checks=(replace(UNMET, outcome="unknown"),)), True, "unknown"),
    ],
)
def test_what_decides(found: dict[str, str], diagnosis: Any, parity: Parity, strict: bool, result: str) -> None:
    assert verdict(list(judged(found, diagnosis, parity, strict=strict))) == result


def test_without_an_engine_transformers_take_its_place_and_are_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_process, "has_engine", lambda: False)
    answer = trial_process.main({"model": str(models / "new"), "answers": 3, "tokens": 8}, Path())
    assert answer["sampler"] == "transformers in bfloat16 (a stand-in: vLLM is not installed here)"
    assert answer["config"] is None
    rows = [{**row, "temperature": 1.0} for row in answer["sequences"]]
    exact = np.concatenate(score(rows, models / "new", dtype="bfloat16"))
    assert np.concatenate([row["rollout_logprobs"] for row in rows]) == pytest.approx(
        exact, abs=0.2
    )  # a cache rounds otherwise
    assert len(exact) == 24
