"""Trains a tiny policy with verl's own loops: `python verl_program.py '{"model": …, "out": …, "trainer": "v1", …}'`; writes what verl logged.

verl's own are: the entry point, the configuration, `PPOTrainer.fit` (v1) or `RayPPOTrainer.fit` (v0), data loading, the replay buffer, the
TransferQueue on Ray, advantages, rollout correction, the actor's loss and everything that is logged. Its workers want GPUs, so the worker
group and the engine are replaced: a torch policy on the CPU, and a copy of it, in another dtype, that samples.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(RAY_DEDUP_LOGS="0", VERL_LOGGING_LEVEL="ERROR", TRANSFER_QUEUE_ENABLE="1", HYDRA_FULL_ERROR="1")
os.environ.update(RAY_worker_niceness="0")  # 15 is Ray's own: beside other work its actors then miss their deadlines

import numpy as np
import ray
import torch
import verl  # its entry points are loaded here
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

LONGEST = 12


def logprobs_of(model: Any, rows: list[Any], temperature: float) -> tuple[list[Any], list[Any]]:
    """Per sequence, [tokens]: log-prob of the next token and entropy at each place; the last place is 0."""
    width = max(len(row) for row in rows)
    padded = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    reach = torch.tensor([len(row) for row in rows])[:, None] > torch.arange(width)
    logits = model(padded, attention_mask=reach.long()).logits.float() / temperature
    table = torch.log_softmax(logits, -1)
    chosen = torch.nn.functional.pad(table[:, :-1].gather(-1, padded[:, 1:, None])[..., 0], (0, 1))
    entropy = -(table.exp() * table).sum(-1)
    return (
        [c[: len(r)] for c, r in zip(chosen, rows, strict=True)],
        [e[: len(r)] for e, r in zip(entropy, rows, strict=True)],
    )


def jagged(rows: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def keep(found: tuple[Any, Any], file: str) -> None:
    """Writes a batch of verl to `file` (npz): padded tensors as they are, nested ones as values and lengths, the rest as JSON."""
    if Path(file).exists():
        return
    tensors, labels = found
    arrays = {}
    for name, value in tensors.items():
        if isinstance(value, torch.Tensor) and value.is_nested:
            arrays[f"{name}.values"] = value.values().detach().numpy()
            arrays[f"{name}.lengths"] = value.offsets().diff().numpy()
        elif isinstance(value, torch.Tensor):
            arrays[name] = value.detach().numpy()
    plain = {
        name: np.asarray(value).tolist() if isinstance(value, np.ndarray) else value for name, value in labels.items()
    }
    np.savez_compressed(file, labels=json.dumps(plain, default=str), **arrays)


class Policy:
    """The worker group: verl calls its methods with a batch."""

    store = ""  # a file for the first batch that the actor is updated with

    def __init__(self, config: Any, options: dict[str, Any]) -> None:
        path = config.actor_rollout_ref.model.path
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.engine = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, options.get("engine", "bfloat16"))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=options.get("learning_rate", 0.5))
        self.actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.temperature = float(config.actor_rollout_ref.rollout.temperature)
        self.version, self._dispatch_info = 0, {"actor": [0]}

    def init_model(self) -> None: ...

    def sample(self, prompt: Any, seed: int) -> tuple[Any, Any]:
        """Tokens and the engine's log-probs of one answer."""
        generator, row, logprobs = torch.Generator().manual_seed(seed), prompt.clone(), []
        with torch.no_grad():
            for _ in range(4 + seed % (LONGEST - 4)):
                logits = self.engine(row[None]).logits[0, -1].float()
                table = torch.log_softmax(logits / self.temperature, -1)
                token = torch.multinomial(table.exp(), 1, generator=generator)
                logprobs.append(float(table[token]))
                row = torch.cat([row, token])
        return row[len(prompt) :], torch.tensor(logprobs)

    def send(self) -> None:
        """The engine gets the policy's weights."""
        self.engine.load_state_dict(self.model.state_dict())

    def forward(self, rows: Any) -> dict[str, Any]:
        logprobs, entropies = logprobs_of(self.model, list(rows.unbind()), self.temperature)
        return {"log_probs": jagged(logprobs), "entropy": jagged(entropies)}

    def train(self, data: Any) -> dict[str, Any]:
        """One step with verl's own loss; → its metrics."""
        if "response_mask" in data and data["response_mask"].is_nested:
            tokens = int(data["response_mask"].values().sum())
        else:
            tokens = int(data["response_mask"].sum())
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(data))
        loss, metrics = ppo_loss(self.actor, self.forward(data["input_ids"]), data)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        plain = {k.removeprefix("actor/"): getattr(v, "aggregate", lambda v=v: v)() for k, v in metrics.items()}
        return {k: [float(v)] for k, v in plain.items()} | {"mfu": [0.0]}

    def before_update(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the actor is updated with: tensors, and what else belongs to the batch."""
        if not hasattr(batch, "partition_id"):
            return self.trainer_batch.batch, dict(self.trainer_batch.non_tensor_batch)
        import transfer_queue as tq

        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        return {name: data[name] for name in data.keys()}, {"keys": batch.keys, "tags": batch.tags}  # noqa: SIM118

    def compute_log_prob(self, batch: Any) -> Any:
        with torch.no_grad():
            if not hasattr(batch, "partition_id"):  # v0 hands over tensors, v1 names of them
                return tu.get_tensordict(self.forward(batch["input_ids"]), {"metrics": {"mfu": 0.0}})
            import transfer_queue as tq

            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
            fields = TensorDict(self.forward(data["input_ids"]), batch_size=len(batch))
            return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def update_actor(self, batch: Any) -> Any:
        if self.store:
            keep(self.before_update(batch), self.store)
        if not hasattr(batch, "partition_id"):
            return tu.get_tensordict({}, {"metrics": self.train(batch)})
        import transfer_queue as tq

        return {"metrics": self.train(tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id))}


class Manager:
    """Takes the place of a manager of GPU workers: whatever is called does nothing, but weights are sent."""

    policy: Any = None
    syncs: int | None = None  # so many times the weights are sent; after that verl only believes so
    reward_loop_worker_handles: tuple[Any, ...] = ()
    resource_pool_dict: dict[str, Any] = {"global_pool": "global_pool"}  # noqa: RUF012

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def create(cls, *_: Any, **__: Any) -> Manager:
        return cls()

    def update_weights(self, global_steps: int) -> None:
        self.policy.version = global_steps
        if Manager.syncs is None or global_steps < Manager.syncs:
            self.policy.send()

    def get_resource_pool(self, role: Any) -> str:
        return "global_pool"

    def get_n_gpus(self) -> int:
        return 1

    def spawn(self, prefix_set: Any) -> dict[str, Any]:
        return dict.fromkeys(prefix_set, self.policy)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Agents:
    """v1's agent loops: answers go into the TransferQueue, as verl's own put them there."""

    def __init__(self, policy: Policy, n: int) -> None:
        self.policy, self.n, self.seed = policy, n, 0

    def generate_sequences(self, prompts: Any) -> None:
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        step = int(prompts["global_steps"])
        for row, uid in enumerate(list(prompts["uid"])):
            prompt = torch.tensor(list(range(2 + row, 8 + row)))
            keys, fields, tags = [], [], []
            for session in range(self.n):
                self.seed += 1
                tokens, logprobs = self.policy.sample(prompt, self.seed)
                scores = torch.zeros(len(tokens))
                scores[-1] = float((tokens % 2 == 0).float().mean())
                keys.append(f"{uid}_{session}_0")
                row_fields = {"prompts": prompt, "responses": tokens, "response_mask": torch.ones_like(tokens)}
                row_fields |= {
                    "rollout_log_probs": logprobs,
                    "rm_scores": scores,
                    "input_ids": torch.cat([prompt, tokens]),
                }
                row_fields |= {"loss_mask": row_fields["response_mask"], "uid": uid, "num_turns": 2}
                row_fields["position_ids"] = torch.arange(len(row_fields["input_ids"]))
                fields.append(row_fields)
                version = {"min_global_steps": self.policy.version, "max_global_steps": self.policy.version}
                lengths = {"prompt_len": len(prompt), "response_len": len(tokens), "seq_len": len(prompt) + len(tokens)}
                tags.append({"status": "success", "global_steps": step, **lengths, **version})
            tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")
            tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})


class PaddedAgents:
    """v0's rollout manager: answers as a padded DataProto."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.seed = policy, 0

    def generate_sequences(self, batch: Any) -> Any:
        from verl import DataProto

        rows, width = [], LONGEST
        for place in range(len(batch)):
            self.seed += 1
            prompt = torch.tensor(list(range(2 + place % 5, 8 + place % 5)))
            tokens, logprobs = self.policy.sample(prompt, self.seed)
            pad = (0, width - len(tokens))
            real = torch.nn.functional.pad(torch.ones_like(tokens), pad)
            scores = torch.zeros(width)
            scores[len(tokens) - 1] = float((tokens % 2 == 0).float().mean())
            answer, whole = torch.nn.functional.pad(tokens, pad), torch.cat([torch.ones_like(prompt), real])
            rows.append(
                {"prompts": prompt, "responses": answer, "response_mask": real, "attention_mask": whole, "rm_scores": scores,
                 "input_ids": torch.cat([prompt, answer]), "position_ids": (whole.cumsum(0) - 1).clamp(min=0),
                 "rollout_log_probs": torch.nn.functional.pad(logprobs, pad)}
            )  # fmt: skip
        tensors = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        version = np.array([self.policy.version] * len(rows), dtype=object)
        labels = {"min_global_steps": version, "max_global_steps": version.copy()}
        labels["multi_modal_inputs"] = np.array([{}] * len(rows), dtype=object)
        labels["__num_turns__"] = np.array([2] * len(rows), dtype=np.int32)
        return DataProto.from_dict(tensors, labels, {"timing": {}, "reward_extra_keys": []})


def configuration(options: dict[str, Any]) -> Any:
    """verl's default configuration with a tiny run's values."""
    data = Path(options["out"], "data.parquet")
    import pandas as pd

    message = [{"role": "user", "content": "w2 w3"}]
    rows = [
        {"prompt": message, "data_source": "x", "reward_model": {"ground_truth": ""}, "extra_info": {"index": n}}
        for n in range(16)
    ]
    pd.DataFrame(rows).to_parquet(data)
    overrides = {
        "actor_rollout_ref.model.path": options["model"], "data.train_files": str(data), "data.val_files": str(data),
        "data.train_batch_size": 4, "data.dataloader_num_workers": 0, "data.filter_overlong_prompts": "false",
        "data.max_prompt_length": 64, "actor_rollout_ref.rollout.n": 4, "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 16, "algorithm.adv_estimator": "grpo",
        "trainer.logger": "[file]", "trainer.val_before_train": "false", "trainer.n_gpus_per_node": 1, "trainer.device": "cpu",
        "trainer.total_training_steps": options.get("steps", 3), "trainer.save_freq": -1, "trainer.test_freq": -1,
        "trainer.resume_mode": "disable", "trainer.balance_batch": "false", "trainer.default_local_dir": options["out"],
        "trainer.experiment_name": "tiny", "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        **options.get("config", {}),
    }  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"{key}={value}" for key, value in overrides.items()])
    OmegaConf.resolve(config)
    with open_dict(config):
        config.transfer_queue.enable = True
    return config


def replace(module: Any, policy: Policy) -> None:
    """Puts the local policy where `module` of verl starts workers on GPUs."""
    Manager.policy = policy
    names = (
        "RayWorkerGroup",
        "ResourcePoolManager",
        "LLMServerManager",
        "CheckpointEngineManager",
        "RewardLoopManager",
    )
    for name in names:
        setattr(module, name, Manager)
    module.create_colocated_worker_cls = lambda class_dict: None


def train_v1(config: Any, policy: Policy) -> None:
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base

    replace(trainer_base, policy)
    tq.init(config.transfer_queue)
    trainer = get_trainer_cls("sync")(config=config)
    trainer.init()
    trainer.fit(Agents(policy, config.actor_rollout_ref.rollout.n))
    tq.close()


def train_v0(config: Any, policy: Policy) -> None:
    from torch.utils.data import SequentialSampler
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.utils import Role
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    replace(ray_trainer, policy)
    tokenizer = omega_conf_to_dataclass(config.actor_rollout_ref.model).tokenizer
    dataset = RLHFDataset(config.data.train_files, tokenizer, config.data)
    trainer = ray_trainer.RayPPOTrainer(
        config, tokenizer, {Role.ActorRollout: Policy}, Manager(), train_dataset=dataset, val_dataset=dataset,
        collate_fn=collate_fn, train_sampler=SequentialSampler(dataset), device_name="cpu",
    )  # fmt: skip
    update = trainer._update_actor

    def updating(batch: Any) -> Any:
        policy.trainer_batch = batch
        return update(batch)

    if policy.store:
        trainer._update_actor = updating
    trainer.actor_rollout_wg, trainer.checkpoint_manager = policy, Manager()
    trainer.async_rollout_manager, trainer.llm_server_manager = PaddedAgents(policy), Manager()
    policy.async_calls_finalize_fn_exec = lambda blocking: None
    trainer.fit()


def direct(from_step: int) -> None:
    """What the controller does when it switches masked importance sampling on."""
    from logprobe.collectors.correction import CorrectionConfig
    from logprobe.collectors.directives import DirectiveFile, Directives

    home, run = os.environ["LOGPROBE_HOME"], os.environ["LOGPROBE_RUN"]
    config = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0)
    DirectiveFile(Path(home), run).write(Directives(run).issue(from_step, config, "a test"), None)


def start_ray() -> None:
    """A cluster of its own, whatever else runs. Ray gives its node 30 seconds to start, which a busy machine may not meet the first time."""
    for chance in (2, 1, 0):
        try:
            path = {
                "PYTHONPATH": os.pathsep.join(
                    [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parent)]
                )
            }
            ray.init(
                address="local",
                num_cpus=16,
                include_dashboard=False,
                logging_level="ERROR",
                runtime_env={"env_vars": path},
            )
        except Exception:
            ray.shutdown()
            if not chance:
                raise
        else:
            return


@ray.remote
class TaskRunner:
    """As verl's own: the loop runs in an actor of Ray."""

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        Policy.store = options.get("store", "")
        torch.manual_seed(0)
        config = configuration(options)
        policy = Policy(config, options)
        Manager.syncs = options.get("syncs")
        if "directive" in options:
            direct(options["directive"])
        {"v0": train_v0, "v1": train_v1}[options.get("trainer", "v1")](config, policy)
        lines = Path(os.environ["VERL_FILE_LOGGER_PATH"]).read_text().splitlines()
        history = [{"step": line["step"], **line["data"]} for line in map(json.loads, lines)]
        weights = [float(parameter.detach().double().sum()) for parameter in policy.model.parameters()]
        return {
            "verl": verl.__version__,
            "history": history,
            "weights": weights,
            "plugin": sorted(n for n in sys.modules if "integrations.verl" in n),
        }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    os.environ["VERL_FILE_LOGGER_PATH"] = str(Path(given["out"], "verl.jsonl"))
    start_ray()
    result = ray.get(TaskRunner.remote().run.remote(given))
    ray.shutdown()
    Path(given["out"], "result.json").write_text(json.dumps(result), encoding="utf-8")
