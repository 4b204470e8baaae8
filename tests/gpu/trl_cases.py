"""TRL trains on a real CUDA device, watched: every number that it logs, and training does not notice."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training import Agreement, Trained
from training import train as train_with
from trl_cases import CLIPPED, PROGRAM, RATIOS, SAME

HERE = {"use_cpu": False}
# Room that is stated needs no look at what is free: vLLM fails where another process frees memory while it looks.
ROOM = {"kv_cache_memory_bytes": 256 << 20}
ENGINE = pytest.mark.skipif(find_spec("vllm") is None, reason="no vllm in this environment")


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Any:
    """Trains on the device; further settings of TRL in `config`."""

    def run(name: str, config: dict[str, Any], **options: Any) -> Trained:
        watching = {"home": str(tmp_path / "home"), **options.pop("watching", {})}
        return train_with(PROGRAM, tmp_path, model, name, watching=watching, config={**HERE, **config}, **options)

    return run


def test_without_an_engine(train: Any, capsys: Any) -> None:
    bare = train("bare", {"num_iterations": 2}, engine="", watch=False, plugin=False)
    seen = train("seen", {"num_iterations": 2}, engine="")
    assert (bare["weights"], bare["random_state"]) == (seen["weights"], seen["random_state"])
    ours = seen.steps(capsys)
    names = {"entropy": "entropy", "reward": "reward"} | CLIPPED
    assert Agreement().check("no engine", ours, seen["history"], names) >= 10
    assert all(values["backend.k3_kl"] is None for values in ours.values())


@ENGINE
def test_a_colocated_engine(train: Any, capsys: Any) -> None:
    """TRL's own way of loading weights into the engine; bfloat16 samples, float32 trains."""
    settings = {
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 1e9,
        "vllm_gpu_memory_utilization": 0.05,
    }
    seen = train("engine", settings, engine="bfloat16", engine_arguments=ROOM)
    ours = seen.steps(capsys)
    assert Agreement().check("engine", ours, seen["history"], SAME | RATIOS) >= 20
    for values in ours.values():
        assert values["backend.k3_kl"] > 1e-9
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0


@ENGINE
def test_the_switch_sets_the_weights_of_trl(train: Any, capsys: Any) -> None:
    settings = {"vllm_gpu_memory_utilization": 0.05}
    seen = train(
        "corrected", settings, engine="bfloat16", engine_arguments=ROOM, directive=2, watching={"correction": True}
    )
    ours = seen.steps(capsys)
    assert ours[1]["is_weight_mean"] is None
    assert ours[2]["is_weight_mean"] is not None
