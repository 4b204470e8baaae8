"""Agents with tools against a real ``vllm serve``: what is recorded is what they sampled, turn by turn. Run by `make campaign NAME=agents`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from engine_process import run_scenario
from processes import logprobe

from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.store.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
RUN = "a run"


@pytest.fixture(scope="module")
def trained(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Two training steps of trajectories; those of the second were sampled before, across and after a weight update."""
    home = tmp_path_factory.mktemp("agents") / "home"
    settings = {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN}
    told = run_scenario("agents", models, script="agent_scenario", timeout=1100, **settings)
    assert told["flushed"]
    assert logprobe("up", "--once", "--home", home).returncode == 0
    return home, told


def values(store: Store, step: int) -> dict[str, Any]:
    rows = store.query("SELECT metric, value FROM metrics WHERE step = ?", [step]).to_pylist()
    return {row["metric"]: row["value"] for row in rows}


def test_every_turn_is_measured_exactly(trained: tuple[Path, Any]) -> None:
    home, told = trained
    with Store.open(Home(home), read_only=True) as store:
        for step, expected in enumerate(told["steps"], 1):
            found = values(store, step)
            assert found["backend.coverage"] == 1
            assert found["length_mismatch_frac"] == found["token_mismatch_frac"] == found["unknown_version_frac"] == 0
            assert math.isclose(found["backend.k3_kl"], expected["k3"], rel_tol=1e-5, abs_tol=1e-12)
            assert found["response_length"] * len(expected["parts"]) == expected["tokens"]


def test_the_lag_of_every_part_is_that_of_its_weights(trained: tuple[Path, Any]) -> None:
    home, told = trained
    with Store.open(Home(home), read_only=True) as store:
        rows = store.query("SELECT * FROM sequences ORDER BY step, time, row").to_pylist()
        assert values(store, 1)["weight_lag_mean"] == 0
        old = sum(sum(parts[:2]) if number == 0 else parts[0] for number, parts in enumerate(told["steps"][1]["parts"]))
        assert math.isclose(values(store, 2)["weight_lag_mean"], old / told["steps"][1]["tokens"], rel_tol=1e-12)
        assert values(store, 2)["mixed_version_frac"] == 1
    assert [row["joined_by"] for row in rows] == ["parts"] * len(rows)
    recorded = [[part["end"] - part["start"] for part in row["parts"]] for row in rows if row["step"] == 2]
    assert sorted(recorded) == sorted(told["steps"][1]["parts"])


def test_nothing_is_found_but_what_the_update_explains(trained: tuple[Path, Any]) -> None:
    home, _ = trained
    with Store.open(Home(home), read_only=True) as store:
        first, both = diagnose(store, RUN, steps=(1, 1)), diagnose(store, RUN)
    assert first["findings"] == []
    assert first["layer"] in {"none", "unknown"}
    assert {finding["layer"] for finding in both["findings"]} <= {"objective"}, both["findings"]
