"""Trains a tiny policy with TRL's own trainer: `python trl_program.py '{"model": …, "out": …, …}'`; prints one JSON line with what TRL logged.

The engine is a real vLLM, colocated. One thing is not TRL's own on a CPU: its `sync_weights` loads tensor by tensor with the
model's `load_weights`, which the CPU build refuses because it packs linear weights. `reload_weights` does the same in one call.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import numpy as np
import torch
import trl
from datasets import Dataset
from served import reload, server
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.integrations import trl as watching


def use_cpu_engine(dtype: str, syncs: int | None = None) -> None:
    """Has TRL start the engine eagerly in `dtype`, and load weights in the way the CPU build knows; after `syncs` of them it forgets to."""
    engine = functools.partial(vllm_generation.LLM, enforce_eager=True, dtype=dtype, block_size=32)
    vllm_generation.LLM = engine
    done = 0

    def sync_weights(self: Any) -> None:
        nonlocal done
        done += 1
        if syncs is not None and done > syncs:
            return
        load(self.llm, self._iter_named_params())
        self.llm.reset_prefix_cache()

    vllm_generation.VLLMGeneration.sync_weights = sync_weights


def load(engine: Any, parameters: Iterable[tuple[str, Any]]) -> None:
    """Loads weights in the way the CPU build knows."""
    pairs = [(name, parameter.detach().clone()) for name, parameter in parameters]
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Share of even token ids: something that a policy of random weights can learn."""
    return [sum(token % 2 == 0 for token in ids) / max(len(ids), 1) for ids in completion_ids]


TURN, ANSWER = 6, [5, 6, 7]  # tokens per turn; the tool's answer


def turns_with_a_tool(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Two turns with a tool's answer between, which the mask leaves out."""
    from vllm import SamplingParams

    engine = trainer.vllm_generation.llm
    settings = SamplingParams(temperature=trainer.args.temperature, max_tokens=TURN, min_tokens=TURN, logprobs=0)
    asked = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    ids: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    masks: list[list[int]] = [[] for _ in prompts]
    for turn in range(2):
        inputs = [{"prompt_token_ids": first + rest} for first, rest in zip(asked, ids, strict=True)]
        for row, output in enumerate(engine.generate(inputs, settings, use_tqdm=False)):
            found = output.outputs[0]
            ids[row] += found.token_ids
            logprobs[row] += [at[token].logprob for token, at in zip(found.token_ids, found.logprobs, strict=True)]
            masks[row] += [1] * len(found.token_ids)
            if turn == 0:
                ids[row], logprobs[row] = ids[row] + ANSWER, logprobs[row] + [0.0] * len(ANSWER)
                masks[row] += [0] * len(ANSWER)
    return {"prompt_ids": asked, "completion_ids": ids, "logprobs": logprobs, "env_mask": masks}


def trainer_of(options: dict[str, Any]) -> Any:
    """A trainer of TRL on the tiny model."""
    kind = options.get("trainer", "GRPOTrainer")
    model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32)
    model.name_or_path = options["model"]
    prompts = [" ".join(f"w{(4 * row + column) % 40}" for column in range(2, 6)) for row in range(8)]
    defaults = {
        "save_strategy": "no",
        "seed": 3,
        "beta": 0.0,
        "bf16": False,
        "use_cpu": True,
        "learning_rate": 1e-3,
        "gradient_accumulation_steps": 1,
        "vllm_mode": "colocate",
    }
    sizes = {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 24,
        "vllm_max_model_length": 128,
    }
    configuration = getattr(trl, kind.replace("Trainer", "Config"))(
        output_dir=options["out"],
        max_steps=options.get("steps", 4),
        logging_steps=1,
        report_to=[],
        use_vllm=bool(options.get("engine", "float32")),
        **{**defaults, **sizes, **options.get("config", {})},
    )
    return getattr(trl, kind)(
        model=model,
        reward_funcs=reward,
        args=configuration,
        train_dataset=Dataset.from_dict({"prompt": prompts * 32}),
        processing_class=AutoTokenizer.from_pretrained(options["model"]),
        **({"rollout_func": turns_with_a_tool} if options.get("tool") else {}),
    )


class Dying(TrainerCallback):
    """A rank that is killed once it has trained a step."""

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if os.environ["RANK"] == str(self.rank) and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def direct(home: str, run: str, from_step: int) -> None:
    """What the controller does when it switches masked importance sampling on."""
    config = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0)
    DirectiveFile(Path(home), run).write(Directives(run).issue(from_step, config, "a test"), None)


def store(trainer: Any, file: str) -> None:
    """Writes the first generation of TRL to `file` (npz): its batch, the rewards, and the loss's own forward pass."""
    kept: dict[str, Any] = {}

    def keep(prefix: str, values: dict[str, Any]) -> None:
        tensors = {k: v.detach().cpu().numpy() for k, v in values.items() if isinstance(v, torch.Tensor)}
        kept.update({f"{prefix}.{k}": v for k, v in tensors.items() if f"{prefix}.{k}" not in kept})

    def watched(method: str, names: Callable[[Any], dict[str, Any]]) -> None:
        original = getattr(trainer, method)

        def call(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            keep(method, names(result))
            np.savez_compressed(file, **kept)
            return result

        setattr(trainer, method, call)

    watched("_generate_and_score_completions", dict)
    watched("_calculate_rewards", lambda result: {"rewards": result})
    watched(
        "_get_per_token_logps_and_entropies", lambda r: {"logps": r[0], "entropies": r[1]} if r[1] is not None else {}
    )


def served(options: dict[str, Any]) -> dict[str, Any]:
    """As `main`, with a `vllm serve` of its own in place of an engine in this process."""
    folder = Path(shutil.copytree(options["model"], Path(options["out"], "served")))
    with server(options["model"], Path(options["out"])) as address:
        VLLMClient.init_communicator = lambda *_, **__: None
        VLLMClient.close_communicator = lambda *_: None
        VLLMClient.update_named_params = lambda _, __, named: reload(address, folder, named)
        place = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 600}
        return main({**options, "server": False, "config": {**options.get("config", {}), **place}})


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Trains; → TRL's log, a digest of the weights and of the random state."""
    if options.get("server"):
        return served(options)
    engine = options.get("engine", "float32")
    on_cpu = options.get("config", {}).get("use_cpu", True)
    if engine and on_cpu and "server" not in options:
        use_cpu_engine(engine, options.get("syncs"))
    if "engine_arguments" in options:
        vllm_generation.LLM = functools.partial(vllm_generation.LLM, **options["engine_arguments"])
    trainer = trainer_of(options)
    if "directive" in options:
        direct(os.environ["LOGPROBE_HOME"], os.environ["LOGPROBE_RUN"], options["directive"])
    if "store" in options:
        store(trainer, options["store"])
    if options.get("watch", True):
        watching.watch(trainer, **options.get("watching", {}))
    if "dies" in options:
        trainer.add_callback(Dying(**options["dies"]))
    trainer.train(resume_from_checkpoint=options.get("checkpoint"))
    weights = hashlib.sha256(
        b"".join(p.detach().cpu().numpy().tobytes() for p in trainer.model.parameters())
    ).hexdigest()
    return {
        "trl": trl.__version__,
        "sampled": 2 * TURN,
        "distributed": str(trainer.accelerator.distributed_type),
        "history": trainer.state.log_history,
        "weights": weights,
        "random_state": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    result = json.dumps(main(given))
    if os.environ.get("RANK", "0") == "0":
        Path(given["out"], "result.json").write_text(result, encoding="utf-8")
