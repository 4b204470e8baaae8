"""A recorded engine's arguments are repeated whole: what an override does is no state of the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_process import ENGINE_ENVIRONMENT

pytestmark = pytest.mark.engine

RECORD = Path(__file__).resolve().parents[1] / "proof" / "recorded_run.py"
RUN = "overridden"
OVERRIDE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}


@pytest.fixture(scope="module")
def scored(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `logprobe bisect --only-score` says of a run whose engine had another rope_theta than the checkpoint."""
    home = tmp_path_factory.mktemp("replayed") / "home"
    settings = json.dumps({"hf_overrides": OVERRIDE})
    _run([sys.executable, str(RECORD), str(models / "new"), str(home), RUN, settings])
    logprobe = [sys.executable, "-m", "logprobe.app.cli"]
    _run([*logprobe, "up", "--once", f"--home={home}"])
    score = [*logprobe, "bisect", "--only-score", RUN, f"--home={home}", f"--model=7={models / 'new'}", "--json"]
    return json.loads(_run(score))


def _run(command: list[str]) -> str:
    environment = {**os.environ, **ENGINE_ENVIRONMENT, "PYTHONPATH": str(RECORD.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_fresh_engine_with_the_override_reports_what_was_recorded(scored):
    assert (scored["departs"], scored["departs_all"]) == ("engine", ["engine"])
    (pair,) = [pair for pair in scored["pairs"] if (pair["a"], pair["b"]) == ("r", "r_fresh")]
    assert pair["k3"] < 1e-9


def test_nothing_is_said_to_be_otherwise_than_recorded(scored):
    assert not [words for words in scored["not_measured"] if "not repeated" in words]
