"""The main job on a real engine: what vLLM sampled and torch recomputed, through plugin, spool, ingest and store."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineHost
from processes import logprobe

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def recorded(engines: EngineHost, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of four steps: temperature 1 (1: r joined from the plugin, 2: r as received), temperature 0.7 (3, 4 alike)."""
    home = tmp_path_factory.mktemp("real") / "home"
    told = engines.run("exactness", models, LOGPROBE_HOME=str(home), LOGPROBE_RUN="real")
    assert told["flushed"]
    assert logprobe("up", "--once", "--home", home).returncode == 0
    answer = json.loads(logprobe("show", "--metrics", "real", "--json", "--home", home).stdout)
    return home, told["tokens"], {step["step"]: step for step in answer["steps"]}


@pytest.mark.parametrize("step", [1, 2])
def test_same_weights_agree(recorded: Any, step: int) -> None:
    _, tokens, steps = recorded
    found = steps[step]
    assert found["tokens"] == tokens["1"] >= 1000
    assert 0 <= found["metrics"]["backend.k3_kl"] < 1e-9
    assert found["metrics"]["backend.logprob_abs_diff_max"] < 1e-3
    assert found["metrics"]["backend.coverage"] == 1
    assert found["metrics"]["weight_lag_mean"] == 0


@pytest.mark.parametrize("step", [3, 4])
def test_raw_logprobs_at_another_temperature_are_found_out(recorded: Any, step: int) -> None:
    """vLLM's default reports log-probs before temperature; the trainer scales: not the distribution that was sampled from."""
    _, tokens, steps = recorded
    metrics = steps[step]["metrics"]
    assert steps[step]["tokens"] == tokens["3"] >= 1000
    offset = metrics["backend.kl"]  # rollout − trainer
    assert -1 < offset < -0.05
    assert metrics["backend.k3_kl"] > 1e-2
    assert abs(metrics["backend.calibration_z"]) > 3


def test_the_engines_own_records_give_what_the_trainer_received(recorded: Any) -> None:
    """Without rollout log-probs from the trainer, the join with the plugin's records gives the same numbers."""
    _, _, steps = recorded
    for joined, received in ((1, 2), (3, 4)):
        ours, theirs = steps[joined]["metrics"], steps[received]["metrics"]
        for name in ("backend.k3_kl", "backend.kl", "backend.ess", "backend.ratio_mean"):
            assert math.isclose(ours[name], theirs[name], rel_tol=1e-9, abs_tol=1e-15), name


def test_every_sequence_was_joined_and_matches(recorded: Any) -> None:
    home, _, steps = recorded
    query = "SELECT rollout_source, token_match, length_match, count(*) AS n FROM sequences GROUP BY ALL ORDER BY ALL"
    rows = json.loads(logprobe("sql", query, "--json", "--home", home).stdout)
    assert [(r["rollout_source"], r["token_match"], r["length_match"], r["n"]) for r in rows] == [
        ("joined", True, True, 128),
        ("received", True, True, 128),
    ]
    assert all(steps[step]["sequences"] == 64 for step in steps)
