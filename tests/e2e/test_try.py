"""`logprobe try` on a real engine, and with transformers in its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_process import ENGINE_ENVIRONMENT

from logprobe.app.cli import main
from logprobe.monitor.proof.forward import score
from logprobe.monitor.proof.scorers import trial_process


@pytest.mark.engine
def test_a_model_is_sampled_scored_recorded_and_diagnosed(
    models: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's bfloat16 is found, from one step."""
    command = [sys.executable, "-m", "logprobe.app.cli", "try", "--model", str(models / "new"), "--run", "mine"]
    done = subprocess.run(
        [
            *command,
            "--home",
            str(home),
            "--engine-args",
            "--enforce-eager --block-size 32 --max-model-len 256",
            "--json",
        ],
        env={**os.environ, **ENGINE_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert re.fullmatch(r"vLLM \S+, bfloat16", found["sampler"])
    assert 1e-6 < found["k3"] < 1e-2
    assert (found["run"], found["sequences"], found["trainer"]) == ("mine", 16, "transformers, float32")
    assert main(["metrics", "mine", "--home", str(home), "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["metrics"]["backend.k3_kl"] == pytest.approx(found["k3"], rel=1e-3)
    assert main(["diagnose", "mine", "--home", str(home), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["cause"] == "low_precision"


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
