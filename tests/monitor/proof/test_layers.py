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
LAYERS = 6
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(PROOF), str(PROOF.parent / "e2e")])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layers")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """Layers and operations named by fault of the trainer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(PROOF))
        from layer_faults import judge

        return judge(folder)


def test_the_first_layer_is_named_and_no_layer_of_a_right_trainer(found):
    named = {fault: document["named"][:1] for fault, document in found.items()}
    assert named == {fault: [] if "nothing" in fault else [f"layer {fault.rsplit(maxsplit=1)[-1]}"] for fault in found}


def test_the_first_operation_that_differs_is_named_and_none_where_all_are_equal(found):
    named = {fault: document["breaks"]["operation"] for fault, document in found.items()}
    assert named == {fault: document["operation"] for fault, document in found.items()}
    assert found["q_proj of layer 0"]["breaks"]["token"] == 0
    assert found["rope of layer 4"]["breaks"]["token"] == 1  # the first token attends to itself alone
    assert found["nothing of layer 0"]["breaks"]["equal"] > 18 * LAYERS


@pytest.mark.long
@pytest.mark.engine
def test_the_first_layer_and_operation_of_an_engine_are_named(tmp_path):
    """A real engine, made wrong and right again: hidden states beside the reference's, operations beside its own."""
    command = [sys.executable, str(PROOF / "layer_faults.py"), str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(answer.removeprefix("RESULT "))
    right = found.pop("nothing of layer 0")
    assert (right["named"], right["breaks"]["operation"]) == ([], None)
    assert right["breaks"]["equal"] > 12 * LAYERS
    named = {fault: document["named"][:1] for fault, document in found.items()}
    assert named == {fault: [f"layer {fault.rsplit(maxsplit=1)[-1]}"] for fault in found}
    assert {fault: document["breaks"]["operation"] for fault, document in found.items()} == {
        fault: document["operation"] for fault, document in found.items()
    }


@pytest.fixture
def sample(tmp_path: Path) -> Path:
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
    path = tmp_path / "sample.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def printed(code: int, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "logprobe.app.cli", *words, "--json"]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_bisect_says_at_which_layer_the_trainer_drifts(found, folder, sample, tmp_path):
    """The command without an engine that starts: the trainer's side is searched all the same."""
    words = ["bisect", f"--sample={sample}", f"--model={folder}", f"--cache={tmp_path / 'arms'}"]
    words += ["--trainer=layer_faults:score", "--trainer-args", json.dumps({"fault": "o_proj", "layer": 3})]
    document = printed(0, *words, "--knobs=trainer.dtype", "--engine-args=--max-model-len nothing")
    assert document["departs"] == "trainer"
    assert document["smallest_set"] == []
    assert {side: layers[0] for side, layers in document["drifts_at"].items()} == {"trainer": "layer 3"}


@pytest.mark.long
@pytest.mark.engine
def test_a_setting_of_the_network_that_is_no_knob_shows_by_layer_and_by_operation(found, folder, sample, tmp_path):
    """A real engine with another epsilon in all norms: the first layer, and the first norm."""
    engine = "--dtype float32 --enforce-eager --max-model-len 256"
    words = [f"--sample={sample}", f"--model={folder}"]
    wrong = f"--engine-args={engine} --hf-overrides '{json.dumps({'rms_norm_eps': 0.05})}'"
    document = printed(0, "bisect", *words, "--knobs=max_num_seqs", wrong, f"--cache={tmp_path / 'arms'}")
    assert (document["departs"], document["smallest_set"]) == ("engine", [])
    assert document["drifts_at"]["engine"][0] == "layer 0"
    breaks = printed(1, "bisect", "--only-score", *words, wrong, "--exact")["breaks"]
    assert (breaks["operation"], breaks["after"], breaks["token"]) == ("layer 0 input_layernorm", "embedding", 0)
