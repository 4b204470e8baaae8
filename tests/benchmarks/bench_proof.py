"""What `logprobe bisect` takes: ten knobs on a tiny model.

The engine computes in bfloat16; nine other settings differ from their safe values without making a gap, because it reports raw
log-probs. So each of the ten gets an arm, and the search ends after them. The target is one of processor time, which other work on
the machine does not change; on a quiet one wall time is about the same.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figure import Figure

E2E = Path(__file__).resolve().parent.parent / "e2e"
KNOBS = (
    "logprobs_mode",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "dtype",
    "head_dtype",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_num_seqs",
)
SAMPLING = {"top_p": 0.9, "top_k": 100, "min_p": 0.001, "repetition_penalty": 1.1}
ENGINE = (
    "--dtype bfloat16 --logprobs-mode raw_logprobs --enforce-eager --block-size 32 --max-num-seqs 32 --max-model-len 256 "
    "--enable-prefix-caching --enable-chunked-prefill --distributed-executor-backend uni"
)
SEQUENCES, TOKENS = 24, 24
MINUTES = 4.0


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder:
        return bisect_figures(**in_a_process(Path(folder)))


def bisect_figures(wall: float, processor: float, arms: int, first: str) -> list[Figure]:
    """The whole command."""
    if arms != len(KNOBS) or first != "dtype":
        raise RuntimeError(f"{arms} arms, {first} first: this measured something else")
    name = f"bisect, {len(KNOBS)} knobs, {SEQUENCES} × {TOKENS} tokens"
    minutes, note = processor / 60, "all processes, with two baselines and the reference; they run one after the other"
    return [
        Figure(name, minutes, "min CPU", f"≤ {MINUTES:.0f} min", minutes <= MINUTES, note=note),
        Figure(f"{name}, wall", wall / 60, "min", baseline="its processor time", baseline_value=minutes),
    ]


def in_a_process(folder: Path) -> dict[str, Any]:
    """Runs this module as a script: what its children cost is then that of the experiment alone."""
    environment = {**os.environ, "PYTHONPATH": str(E2E)}
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    answers = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not answers:
        raise RuntimeError(f"ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(answers[-1])


def experiments(folder: Path) -> dict[str, Any]:
    """Everything that is measured."""
    from engine_process import ENGINE_ENVIRONMENT

    os.environ.update(ENGINE_ENVIRONMENT)
    model, sample = folder / "model", folder / "sample.jsonl"
    subprocess.run([sys.executable, str(E2E / "tiny_model.py"), str(model)], check=True, capture_output=True)
    sample.write_text("".join(json.dumps(row) + "\n" for row in sequences()))
    return bisected(folder, model, sample)


def sequences() -> list[dict[str, Any]]:
    """Random tokens: the forced path scores whatever it is given."""
    rng = random.Random(3)
    return [
        {
            "sample_id": f"s{index}",
            "prompt_ids": [rng.randrange(2, 512) for _ in range(rng.randint(20, 60))],
            "response_ids": [rng.randrange(2, 512) for _ in range(TOKENS)],
            "temperature": 1.0,
            "sampling": SAMPLING,
        }
        for index in range(SEQUENCES)
    ]


def bisected(folder: Path, model: Path, sample: Path) -> dict[str, Any]:
    """The command as people run it, nothing cached."""
    what = ["--sample", str(sample), "--model", str(model), "--engine-args", ENGINE, "--cache", str(folder / "arms")]
    command = [sys.executable, "-m", "logprobe.app.cli", "bisect", *what, "--knobs", ",".join(KNOBS), "--json"]
    output: list[str] = []
    cost = costs(lambda: output.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    arms = json.loads(output[0])["arms"]
    return {**cost, "arms": sum(arm["removed"] is not None for arm in arms), "first": arms[0]["knob"]}


def costs(work: Callable[[], object]) -> dict[str, float]:
    """Wall time and processor time of all processes that `work` starts and ends, in seconds."""
    began, before = time.monotonic(), os.times()
    work()
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": time.monotonic() - began, "processor": spent}


if __name__ == "__main__":
    print("RESULT", json.dumps(experiments(Path(sys.argv[1]))))
