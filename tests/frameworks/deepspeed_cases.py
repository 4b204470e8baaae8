"""TRL on DeepSpeed's ZeRO: two CPU ranks, each with a part of the optimizer, the gradients, the weights; `make campaign NAME=deepspeed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training import agree
from training import train as train_with

PROGRAM = Path(__file__).with_name("trl_program.py")
# transformers takes DeepSpeed for one of GPUs: without `use_cpu`, and gloo by name.
CONFIG = {"use_cpu": False, "ddp_backend": "gloo", "num_iterations": 2}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero(model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    """Numbers of TRL's log, and losses as without logprobe."""
    # Operators are compiled under a lock that outlives a killed process: not the user's.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(model.parent / "operators"))
    for name, value in {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", str(stage))
    common: dict[str, Any] = {"ranks": 2, "engine": "", "config": CONFIG}
    bare = train_with(PROGRAM, tmp_path, model, "bare", plugin=False, watch=False, **common)
    seen = train_with(PROGRAM, tmp_path, model, "seen", watching={"home": str(tmp_path / "home")}, **common)
    assert seen["distributed"] == "DistributedType.DEEPSPEED"
    losses = [[step.get("loss") for step in result["history"]] for result in (bare, seen)]
    assert losses[0] == losses[1]
    ours = seen.steps(capsys)
    assert {step: values["sequences"] for step, values in ours.items()} == dict.fromkeys(range(1, 5), 8)
    sampled = [logged for logged in seen["history"] if "reward" in logged]
    assert agree(ours, sampled, {"reward": "reward"}) == 2
    assert agree(ours, sampled, {"entropy": "entropy"}, tolerance=0.01) == 2
    assert ours[1]["update.k3_kl"] == 0 < ours[2]["update.k3_kl"]
    assert {values["weight_lag_mean"] for values in ours.values()} == {0}
