"""Trains a tiny policy with PipelineRL's own loop: `python pipelinerl_program.py '{"model": …, "out": …}'`; writes what it logged.

PipelineRL's own are: `rl_finetuning_worker` with its micro-batches, sentinels, optimizer steps and metrics, `rl_step`, `WeightUpdateManager`, the
preparation of samples, packing, streams and logging. Its actors need GPUs: a copy of the policy, in another dtype, samples in their place. Replaced are
DeepSpeed, ring attention and the transport of weights, which the path on one process does not use or which needs NCCL; W&B is told what is logged.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES, LONGEST = 8, 12  # per step; tokens of an answer


def replace() -> None:
    """Modules that want GPUs."""
    contents = {
        "deepspeed": {"DeepSpeedEngine": type("DeepSpeedEngine", (), {})},
        "ring_flash_attn": {"substitute_hf_flash_attn": None, "update_ring_flash_attn_params": None},
        "pipelinerl.torch_utils": {},
    }
    for name, found in contents.items():
        sys.modules[name] = module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(found)
    torch.cuda.current_stream = lambda: None


class Engines:
    """The actors: sample with the weights that they were sent."""

    def __init__(self, policy: Any, options: dict[str, Any]) -> None:
        self.policy, self.options, self.version, self.seed, self.received = policy, options, 0, 0, 0
        self.model = AutoModelForCausalLM.from_pretrained(
            options["model"], dtype=getattr(torch, options.get("engine", "float32"))
        )
        self.names = [name for name, _ in policy.named_parameters()]

    def broadcast(self, tensor: Any, **_: Any) -> None:
        """A parameter arrives, in the order of their names; after so many versions PipelineRL only believes so."""
        place, version = self.received % len(self.names), self.received // len(self.names)
        self.received += 1
        if version < self.options.get("syncs", 1 << 30):
            self.model.get_parameter(self.names[place]).data.copy_(tensor)

    def sample(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        """Tokens of one answer and the engine's log-probs."""
        self.seed += 1
        generator, row, found = torch.Generator().manual_seed(self.seed), torch.tensor(prompt), []
        with torch.no_grad():
            for _ in range(4 + self.seed % (LONGEST - 4)):
                logits = self.model(row[None]).logits[0, -1].float() / self.options.get("temperature", 1.0)
                token = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
                found.append(float(torch.log_softmax(logits, -1)[token]))
                row = torch.cat([row, token])
        return row[len(prompt) :].tolist(), found


def entries(engines: Engines, step: int) -> list[dict[str, Any]]:
    """What the actor writes for one step: two groups of four answers."""
    found = []
    for place in range(SAMPLES):
        group = place // 4
        prompt = list(range(2 + group, 8 + group))
        tokens, logprobs = engines.sample(prompt)
        found.append(
            {"input_ids": prompt + tokens, "labels": [-100] * len(prompt) + tokens, "logprobs": logprobs, "ref_logprobs": logprobs,
             "reward": sum(token % 2 == 0 for token in tokens) / len(tokens), "group_id": f"{step}-{group}", "rollout_index": place,
             "step_index": 0, "model_version": step * SAMPLES, "finished": True}
        )  # fmt: skip
    return found


def batches(engines: Engines, options: dict[str, Any], tokenizer: Any, config: Any) -> Any:
    """Micro-batches as the preprocessor writes them, sampled when the trainer asks for them: one of padded rows, and packed ones of a single
    sequence, because only flash attention keeps packed sequences apart."""
    from pipelinerl.finetune.data import collate, collate_packed, preprocess_fn
    from pipelinerl.finetune.rl import populate_rl_data

    for step in range(options.get("steps", 3)):
        given = entries(engines, step)
        encoded = [{**entry, **preprocess_fn(entry, tokenizer, 64, is_rl=True)} for entry in given]
        ready = populate_rl_data(encoded, tokenizer.eos_token_id, config)
        yield collate(ready[: SAMPLES // 2], tokenizer)
        for one in ready[SAMPLES // 2 :]:
            yield collate_packed([one], tokenizer, 1)


class Queue(queue.Queue):  # type: ignore[type-arg]
    """The trainer's queue of micro-batches, filled as it asks."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def get(self, *_: Any, **__: Any) -> Any:
        return next(self.made)


def settings(options: dict[str, Any]) -> Any:
    """PipelineRL's own defaults with a tiny run's values. Its `reinforce` logs ratios that it has clamped."""
    source = Path(options["source"], "conf", "finetune", "base.yaml")
    document = OmegaConf.load(source)
    changed = {
        "output_dir": str(Path(options["out"], "finetune")), "max_train_steps": options.get("steps", 3), "gradient_accumulation_passes": SAMPLES,
        "cuda_empty_cache": False, "use_flash_attention": False, "force_restart": True, "max_lag": None, "save_final_training_state": False,
        "fp32_layer_prefix": "lm_head", "pop_old_data": False, "config_name": options["model"], "learning_rate": options.get("learning_rate", 1e-3),
        "rl": {"temperature": options.get("temperature", 1.0), "policy_loss": "ppo"}, "num_warmup_steps": 0,
    }  # fmt: skip
    return OmegaConf.merge(document, changed)


def main(options: dict[str, Any]) -> dict[str, Any]:
    sys.path.insert(0, options["source"])
    replace()
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    from pipelinerl.finetune.context import get_accelerator

    get_accelerator()
    loop = importlib.import_module("pipelinerl.finetune_loop")
    logged: list[dict[str, Any]] = []
    logging = importlib.import_module("pipelinerl.finetune.logging_")
    logging.wandb = SimpleNamespace(log=lambda metrics, step: logged.append({"step": step, **metrics}))
    loop.set_streams_backend("files")
    args, tokenizer = settings(options), AutoTokenizer.from_pretrained(options["model"])
    policy = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32, attn_implementation="eager")
    optimizer = loop.get_optimizer(args.optim, policy, args.learning_rate, args.weight_decay)
    schedule = loop.get_scheduler("constant", optimizer, 0, args.max_train_steps)
    policy, optimizer, schedule = get_accelerator().prepare(policy, optimizer, schedule)
    policy.train()
    engines = Engines(policy, options)
    stream = loop.SingleStreamSpec(exp_path=Path(options["out"]), topic="weight_update_request")
    manager = loop.WeightUpdateManager(["http://127.0.0.1:9"], policy, stream, engines)
    manager.send_weight_update(0)
    metrics, config = loop.TrainingMetrics(), loop.RLConfig(**args.rl)
    Path(args.output_dir).mkdir(parents=True)
    work = Queue(batches(engines, options, tokenizer, config))
    loop.rl_finetuning_worker(args, policy, optimizer, schedule, manager, tokenizer, metrics, work, stream)
    weights = [float(parameter.detach().double().sum()) for parameter in policy.parameters()]
    return {"history": logged, "weights": weights, "random_state": int(torch.randint(1 << 30, ()))}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    Path(given["out"], "result.json").write_text(json.dumps(main(given)), encoding="utf-8")
