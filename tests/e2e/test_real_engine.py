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


@pytest.mark.parametrize(("joined", "received"), [(1, 2), (3, 4)])
def test_the_engines_own_records_give_what_the_trainer_received(recorded: Any, joined: int, received: int) -> None:
    """Same weights agree; vLLM's default reports log-probs before temperature, and a trainer that scales is found out."""
    _, tokens, steps = recorded
    ours, theirs = steps[joined]["metrics"], steps[received]["metrics"]
    assert steps[joined]["tokens"] == steps[received]["tokens"] == tokens[str(joined)] >= 1000
    for name in ("backend.k3_kl", "backend.kl", "backend.ess", "backend.ratio_mean"):
        assert math.isclose(ours[name], theirs[name], rel_tol=1e-9, abs_tol=1e-15), name
    assert (ours["backend.coverage"], ours["weight_lag_mean"]) == (1, 0)
    if joined == 1:
        assert 0 <= ours["backend.k3_kl"] < 1e-9
        assert ours["backend.logprob_abs_diff_max"] < 1e-3
    else:
        assert -1 < ours["backend.kl"] < -0.05  # rollout − trainer
        assert ours["backend.k3_kl"] > 1e-2
        assert abs(ours["backend.calibration_z"]) > 3


def test_every_sequence_was_joined_and_matches(recorded: Any) -> None:
    home, _, steps = recorded
    query = "SELECT rollout_source, token_match, length_match, count(*) AS n FROM sequences GROUP BY ALL ORDER BY ALL"
    rows = json.loads(logprobe("sql", query, "--json", "--home", home).stdout)
    assert [(r["rollout_source"], r["token_match"], r["length_match"], r["n"]) for r in rows] == [
        ("joined", True, True, 128),
        ("received", True, True, 128),
    ]
    assert all(steps[step]["sequences"] == 64 for step in steps)
