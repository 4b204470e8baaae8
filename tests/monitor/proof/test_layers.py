"""The first layer that drifts: real forward passes with a fault in one layer, and the command that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROOF = Path(__file__).resolve().parents[2] / "proof"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROOF)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layers")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """Layers named by fault; a process of its own, pytest's stays free of torch."""
    command = [sys.executable, str(PROOF / "layer_faults.py"), str(folder)]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(answer.removeprefix("RESULT "))


def test_the_first_layer_is_named_and_no_layer_of_a_right_trainer(found):
    right = found.pop("nothing of layer 0")
    assert right["named"] == []
    named = {fault: document["named"][:1] for fault, document in found.items()}
    assert named == {fault: [f"layer {fault.rsplit(maxsplit=1)[-1]}"] for fault in found}


def test_bisect_says_at_which_layer_the_trainer_drifts(found, folder, tmp_path, monkeypatch):
    """The command without an engine that starts: the trainer's side is searched all the same."""
    rows = [
        {
            "sample_id": str(at),
            "prompt_ids": [5, 6, 7 + at],
            "response_ids": [9, 8, 7, 6, 5, 4],
            "temperature": 1.0,
            "sampling": {},
        }
        for at in range(6)
    ]
    sample = tmp_path / "sample.jsonl"
    sample.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "logprobe.app.cli",
        "bisect",
        "--sample",
        str(sample),
        "--model",
        str(folder),
        "--json",
    ]
    command += ["--trainer", "layer_faults:score", "--trainer-args", json.dumps({"fault": "o_proj", "layer": 3})]
    command += [
        "--knobs",
        "trainer.dtype",
        "--engine-args",
        "--max-model-len nothing",
        "--cache",
        str(tmp_path / "arms"),
    ]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert document["departs"] == "trainer"
    assert document["smallest_set"] == []
    assert document["drifts_at"][0] == "layer 3"
