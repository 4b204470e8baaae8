"""Trains a tiny policy with ms-swift: `python ms_swift_program.py '{"model": …, "out": …, …}'`; writes what ms-swift logged.

The engine is a real vLLM on the CPU, colocated. One thing is not ms-swift's own there: it loads weights with the model's `load_weights`,
which the CPU build refuses because it packs linear weights; `reload_weights` does the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_PLUGINS", "logprobe")  # ms-swift's own plugin wants torchvision

import torch
from swift.pipelines import rlhf_main
from swift.rewards import ORM, orms
from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin
from vllm.engine.arg_utils import EngineArgs

ADAPTER = "logprobe.collectors.integrations.ms_swift"


def use_cpu_engine(syncs: int | None) -> None:
    """Loads weights in the way the CPU build knows; plants a fault: after `syncs` loads it forgets to."""
    done = 0

    def load(self: Any) -> None:
        nonlocal done
        done += 1
        if syncs is not None and done > syncs:
            return
        pairs = [(name, parameter.detach().clone()) for name, parameter in self.model.named_parameters()]
        self.engine.engine.model_executor.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})

    RolloutTrainerMixin._move_full_model_to_vllm = load


def use_engine_dtype(dtype: str) -> None:
    """ms-swift starts the engine in the trainer's dtype; people have others by their checkpoints. Blocks are small, as are the prompts."""
    prepare = EngineArgs.__post_init__

    def prepared(self: EngineArgs) -> None:
        self.dtype = dtype
        self.block_size = 32
        prepare(self)

    EngineArgs.__post_init__ = prepared


class Distinct(ORM):
    """Share of distinct words."""

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [len(set(text.split())) / max(len(text.split()), 1) for text in completions]


orms["distinct"] = Distinct


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Trains; → ms-swift's log and a digest of the random state."""
    use_engine_dtype(options.get("engine", "float32"))
    use_cpu_engine(options.get("syncs"))
    folder = Path(options["out"])
    texts = [" ".join(f"w{2 + (4 * n + column) % 64}" for column in range(4)) for n in range(16)]
    rows = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    data = folder / f"data-{os.environ.get('RANK', '0')}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    watched = []
    if options.get("watch", True):
        path = runpy.run_module(ADAPTER, run_name="path_of_the_plugin")["__file__"]
        watched = ["--external_plugins", path, "--callbacks", "logprobe"]
    arguments = {
        "rlhf_type": "grpo", "model": options["model"], "model_type": "qwen3", "template": "dummy", "dataset": str(data),
        "reward_funcs": "distinct", "tuner_type": "full", "torch_dtype": "float32", "use_vllm": "true", "vllm_mode": "colocate",
        "vllm_enforce_eager": "true", "vllm_max_model_len": 128, "max_completion_length": 24, "num_generations": 4,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": options.get("steps", 3),
        "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "beta": 0.0,
        "log_entropy": "true", "log_rollout_offpolicy_metrics": "true", "use_hf": "true", "output_dir": str(folder / "run"),
        "add_version": "false", "seed": 3, "split_dataset_ratio": 0, "use_cpu": "true", **options.get("arguments", {}),
    }  # fmt: skip
    stated = [part for key, value in arguments.items() if value is not None for part in (f"--{key}", str(value))]
    result = rlhf_main(stated + watched)
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return {"history": result["log_history"], "random_state": state}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    result = json.dumps(main(given))
    if os.environ.get("RANK", "0") == "0":
        Path(given["out"], "result.json").write_text(result, encoding="utf-8")
