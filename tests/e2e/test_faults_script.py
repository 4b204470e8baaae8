"""`sample_data/faults.py` makes a fault with a real engine: small, labelled apart, and really there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logprobe.monitor.recorded import RecordedRun

pytestmark = pytest.mark.engine

STEPS = 3


def make(repository: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    size = ("--steps", str(STEPS), "--pretraining-steps", "5", "--policies", str(out / "policies"))
    command = [sys.executable, str(repository / "sample_data" / "faults.py"), *arguments, "--out", str(out), *size]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}  # see engine_process
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)


def test_a_cache_that_is_not_cleared_makes_the_sides_disagree_after_the_first_update(
    repository: Path, tmp_path: Path
) -> None:
    done = make(repository, tmp_path, "stale_prefix_cache")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "expected.json").read_text())["stale_prefix_cache"]["causes"] == [
        "stale_prefix_cache"
    ]
    run = RecordedRun(tmp_path / "stale_prefix_cache")
    rollouts = {row["sample_id"]: row for row in run.table("rollout").to_pylist()}
    gaps: dict[int, list[float]] = {}
    for row in run.table("training").to_pylist():
        rollout = rollouts[row["sample_id"]]
        assert row["token_ids"] == rollout["token_ids"]
        gap = np.abs(np.subtract(row["trainer_logprobs"], rollout["logprobs"])).max()
        gaps.setdefault(row["step"], []).append(gap)
    assert sorted(gaps) == list(range(STEPS))
    assert max(gaps[0]) < 1e-4
    assert min(np.median(gaps[1]), np.median(gaps[2])) > 1e-4


def test_an_unknown_name_is_refused(repository: Path, tmp_path: Path) -> None:
    done = make(repository, tmp_path, "no_such_fault")
    assert done.returncode == 2
    assert "unknown: no_such_fault" in done.stderr
