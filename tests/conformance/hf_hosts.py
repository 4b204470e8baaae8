"""TRL and ms-swift. TRL's GRPO hands out one generation that TRL 1.16 itself produced (`trl_program.py`, option "store")."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from conformance.host import Host, Rows, arrays, rename

GENERATION = "trl_1_16.npz"


def accelerator() -> Any:
    return SimpleNamespace(process_index=0, num_processes=1, mixed_precision="no", is_main_process=True)


class Grpo:
    """What `trl.watch` reads of a GRPOTrainer."""

    def __init__(self) -> None:
        self.accelerator = accelerator()
        self.state = SimpleNamespace(global_step=6, is_world_process_zero=True)
        self.args = SimpleNamespace(
            run_name=None, output_dir="/runs/stand-in", temperature=1.0, epsilon=0.2, loss_type="grpo",
            gradient_accumulation_steps=1, use_vllm=True, vllm_importance_sampling_correction=True,
        )  # fmt: skip
        self.model = SimpleNamespace(training=True, dtype=torch.float32)
        self.reward_weights = torch.ones(1)
        self.num_generations = 4
        self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        self.callbacks: list[Any] = []
        self.loads = True  # the engine, before each generation
        self.logged = {"loss": 0.5, "entropy": 3.0}
        self.renamed: str | None = None

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def is_world_process_zero(self) -> bool:
        return True

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        return arrays(GENERATION, "_calculate_rewards.")["rewards"]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any
    ) -> Any:
        forward = arrays(GENERATION, "_get_per_token_logps_and_entropies.")
        return forward["logps"], forward["entropies"], None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if self.loads:
            self.vllm_generation.sync_weights()
        self._calculate_rewards(inputs, None, None, None)
        return rename(arrays(GENERATION, "_generate_and_score_completions."), self.renamed)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> float:
        self.ratio = inputs.get("importance_sampling_ratio")
        self._get_per_token_logps_and_entropies(model, inputs.get("completion_ids"), None, 1)
        return 0.25

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.logged)

    def step(self) -> dict[str, Any]:
        batch = self._generate_and_score_completions([{}] * 4)
        assert self._compute_loss(self.model, batch) == 0.25
        self.state.global_step += 1
        logs: dict[str, float] = {}
        self.log(logs)
        assert logs == self.logged
        return batch


class Trl(Host):
    framework, said, count = "TRL", "trl", 4
    needed = ("completion_mask", "completion_ids", "old_per_token_logps")
    spared = ("sampling_per_token_logps", "advantages")
    lacks = "_compute_loss has no parameter model"
    repeats = corrects = True
    marks, logged = ("6",), {7: {"loss": 0.5, "entropy": 3.0}}
    configured = {"temperature": 1.0, "compute_dtype": "float32", "loss_type": "grpo"}  # noqa: RUF012

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.trainer = Grpo()
        self.at = 7  # TRL logs after the update

    def later(self) -> None:
        self.trainer._compute_loss = lambda inputs: 0.25  # type: ignore[method-assign, assignment]

    def wrapped(self) -> Any:
        return self.trainer

    def begin(self) -> None:
        from logprobe.collectors.integrations import trl

        self.recorder = trl.watch(self.trainer, correction=self.correction)

    def step(self, renamed: str | None = None) -> None:
        self.trainer.renamed = renamed
        self.batch = self.trainer.step()
        own = arrays(GENERATION, "_generate_and_score_completions.")["importance_sampling_ratio"]
        ratio = getattr(self.trainer, "ratio", None)
        self.applied = None if ratio is None or torch.equal(ratio, own) else ratio

    def sides(self) -> tuple[Any, Any, Any]:
        return tuple(
            self.batch[name] for name in ("sampling_per_token_logps", "old_per_token_logps", "completion_mask")
        )  # type: ignore[return-value]

    def trained(self) -> Rows:
        batch, rewards = self.batch, arrays(GENERATION, "_calculate_rewards.")["rewards"]
        forward, rows = arrays(GENERATION, "_get_per_token_logps_and_entropies."), {}
        for place, name in enumerate(batch["logprobe_names"]):
            valid = batch["completion_mask"][place].bool()
            rows[name] = {
                "step": 7,
                "weight_version": "6",
                "token_ids": batch["completion_ids"][place][valid].tolist(),
                "trainer_logprobs": batch["old_per_token_logps"][place][valid].tolist(),
                "rollout_logprobs": batch["sampling_per_token_logps"][place][valid].tolist(),
                "current_logprobs": forward["logps"][place][valid].tolist(),
                "entropy": forward["entropies"][place][valid].tolist(),
                "advantages": [float(batch["advantages"][place])] * int(valid.sum()),
                "reward": float(rewards[place, 0]),
                "group_id": "6-1-0",
            }
        return rows

    def sampled(self) -> Rows:
        columns = {"token_ids": "token_ids", "rollout_logprobs": "logprobs"}
        return {
            name: {ours: row[theirs] for theirs, ours in columns.items()} | {"group_id": row["group_id"]}
            for name, row in self.trained().items()
        }


# --- Asynchronous GRPO: a queue of samples, and batches packed as TRL 1.16 packs them ---


class Policy(torch.nn.Module):
    """Log-probs of the next tokens, whatever came before."""

    def forward(self, input_ids: Any, shift_labels: Any) -> Any:
        return SimpleNamespace(log_probs=-shift_labels.float() / 10, entropy=torch.ones(shift_labels.shape))


class Collator:
    """Lays samples behind one another, as TRL does where they share no token."""

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        (sets,) = examples
        names = ("input_ids", "shift_labels", "token_index", "old_log_probs", "advantages", "segment_id")
        packed: list[dict[str, list[Any]]] = []
        for row in sets:
            columns: dict[str, list[Any]] = {name: [] for name in names}
            for place, sample in enumerate(row.samples):
                ids, start = [int(token) for token in sample["input_ids"]], len(columns["input_ids"])
                columns["input_ids"] += ids
                columns["shift_labels"] += [*ids[1:], -100]
                for at in np.flatnonzero(sample["completion_mask"]):
                    columns["token_index"].append(start + at - 1)
                    columns["old_log_probs"].append(sample["old_log_probs"][at])
                    columns["advantages"].append(sample["advantage"])
                    columns["segment_id"].append(place)
            packed.append(columns)
        batch = {}
        for name in names:
            longest = max(len(columns[name]) for columns in packed)
            empty = {"token_index": -1, "shift_labels": -100}.get(name, 0)
            batch[name] = torch.tensor([columns[name] + [empty] * (longest - len(columns[name])) for columns in packed])
        lengths = torch.tensor([len(columns["input_ids"]) for columns in packed])
        batch["attention_mask"] = (torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]).long()
        return batch


class Worker:
    """TRL's own, by its module."""

    __module__ = "trl.experimental.async_grpo.async_rollout_worker"


class AsyncGrpo:
    """What `trl.watch` reads of an AsyncGRPOTrainer."""

    def __init__(self) -> None:
        self.accelerator = accelerator()
        self.state = SimpleNamespace(global_step=0)
        self.args = SimpleNamespace(run_name=None, output_dir="/runs/async", temperature=1.0, max_staleness=4)
        self.model = Policy()
        self.rollout_queue: Any = queue.Queue()
        self.rollout_worker: Any = Worker()
        self.model_version = 0
        self.loader = SimpleNamespace(collate_fn=Collator())
        self.laid_out: Any = np.array  # how a release keeps what belongs to tokens

    def add_callback(self, callback: Any) -> None:
        pass

    def is_world_process_zero(self) -> bool:
        return True

    def get_train_dataloader(self) -> Any:
        return self.loader

    def _sync_weight_merged(self, t0: float) -> tuple[float, ...]:
        self.model_version += 1
        return t0, t0, t0

    def _sync_weight_lora(self, t0: float) -> tuple[float, ...]:
        return self._sync_weight_merged(t0)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False) -> float:
        mask = inputs["attention_mask"].bool()
        model(inputs["input_ids"][mask].unsqueeze(0), shift_labels=inputs["shift_labels"][mask].unsqueeze(0))
        return 0.25

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs["ratio"] = 1.0

    def sample(self, completion: list[int], version: int, handed_over: float | None, group: int = 5) -> None:
        """Puts a sample of two prompt tokens into the workers' queue."""
        ids, mask = np.array([6, 7, *completion]), np.array([0, 0, *[1] * len(completion)])
        old = np.where(mask, -ids / 10 - 0.01, 0.0).astype(np.float32)
        self.rollout_queue.put(
            SimpleNamespace(
                input_ids=self.laid_out(ids), completion_mask=self.laid_out(mask), old_log_probs=self.laid_out(old), advantage=0.5, group_id=group,
                model_version=version, metrics={"reward": len(completion) / 10}, enqueued_at=handed_over,
            )
        )  # fmt: skip

    def step(self, sizes: list[int], renamed: str | None = None) -> list[dict[str, Any]]:
        """Trains on as many samples per rank; → what each rank's loss got."""
        loader, taken = self.get_train_dataloader(), []
        for size in sizes:
            found = [self.rollout_queue.get() for _ in range(size)]
            names = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id", "metrics")
            taken.append(SimpleNamespace(samples=[{name: getattr(each, name) for name in names} for each in found]))
        batch = loader.collate_fn.torch_call([taken])
        parts = [{name: value[rank : rank + 1] for name, value in batch.items()} for rank in range(len(sizes))]
        for part in parts:
            assert self.compute_loss(self.model, rename(part, renamed)) == 0.25
        self.state.global_step += 1
        self._sync_weight_merged(0.0)
        self.log({})
        return parts


class TrlAsync(Host):
    framework, said, count = "TRL", "trl", 3
    needed = ("advantages", "token_index")
    lacks = "has no method _sync_weight_merged"
    repeats = True
    marks, logged = ("0", "1"), {1: {"ratio": 1.0}}
    configured = {"temperature": 1.0, "max_staleness": 4}  # noqa: RUF012

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.trainer = AsyncGrpo()
        self.at = 1

    def later(self) -> None:
        self.trainer._sync_weight_merged = None  # type: ignore[assignment, method-assign]

    def wrapped(self) -> Any:
        return self.trainer

    def begin(self) -> None:
        from logprobe.collectors.integrations import trl

        self.recorder = trl.watch(self.trainer, correction=self.correction)

    def step(self, renamed: str | None = None) -> None:
        self.trainer._sync_weight_merged(0.0)
        for completion in ([1, 2, 3], [4], [5, 1]):
            self.trainer.sample(completion, version=1, handed_over=time.time())
        self.trainer.step([2, 1] if renamed is None else [3], renamed)  # two ranks: one has two samples

    def trained(self) -> Rows:
        import os

        rows = {}
        for number, tokens in enumerate(([1, 2, 3], [4], [5, 1])):
            t = torch.tensor([-token / 10 for token in tokens])
            rows[f"trl-{os.getpid()}-{number}"] = {
                "step": 1,
                "weight_version": "0",
                "group_id": "5",
                "token_ids": tokens,
                "trainer_logprobs": t.tolist(),
                "rollout_logprobs": [float(np.float32(-token / 10 - 0.01)) for token in tokens],
                "reward": len(tokens) / 10,
            }
        return rows


# --- ms-swift ---


class MsSwiftGrpo:
    """What `ms_swift.watch` reads of a GRPOTrainer: four sequences of three tokens, in two micro-batches."""

    FIELDS = ("completion_mask", "old_per_token_logps", "rollout_per_token_logps", "ref_per_token_logps", "advantages")

    def __init__(self) -> None:
        self.template = SimpleNamespace(padding_free=False, sequence_parallel_size=1)
        self.args = SimpleNamespace(
            output_dir="/runs/stand-in", use_vllm=True, loss_type="grpo", gradient_accumulation_steps=2, temperature=0.7
        )
        self.accelerator = accelerator()
        self.state = SimpleNamespace(global_step=6, is_world_process_zero=True)
        self.model = SimpleNamespace(training=True, dtype=torch.float32)
        self.reward_weights = torch.tensor([1.0, 2.0])
        self._rewards_per_func = torch.tensor([[0.5, 0.0], [0.0, float("nan")], [1.0, 1.0], [0.25, 0.0]])
        self.forward = -torch.arange(1.0, 13.0).reshape(4, 3) / 4
        self.tokens = torch.arange(20).reshape(4, 5)
        self.mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
        self.renamed: str | None = None
        self.weights: list[Any] = []

    def is_world_process_zero(self) -> bool:
        return True

    def _move_full_model_to_vllm(self) -> None: ...

    def _move_model_to_vllm(self) -> None: ...

    def columns(self) -> dict[str, Any]:
        old = self.forward - 0.125
        values = (self.mask, old, old - 0.25, old + 0.5, torch.tensor([1.0, -1.0, 0.5, -0.5]))
        return dict(zip(self.FIELDS, values, strict=True))

    def _prepare_batch_inputs(self, samples: Any) -> list[dict[str, Any]]:
        parts = []
        for part in (slice(0, 2), slice(2, 4)):
            fields = rename({name: value[part] for name, value in self.columns().items()}, self.renamed)
            parts.append(
                {
                    "grpo_batch": SimpleNamespace(**fields),
                    "model_inputs": {"input_ids": self.tokens[part]},
                }
            )
        return parts

    def _score_completions(self, samples: Any) -> None: ...

    def _get_per_token_logps_and_entropies(self, model: Any, model_inputs: Any, grpo_batch: Any) -> Any:
        part = self.forward[model_inputs["input_ids"][:, 0] // 5]
        return part, torch.full_like(part, 2.0)

    def _apply_rollout_importance_sampling(self, log_ratio: Any, mask: Any) -> Any:
        return "own"

    def _compute_loss_and_metrics(self, model: Any, model_inputs: Any, grpo_batch: Any) -> float:
        self._get_per_token_logps_and_entropies(model, model_inputs, grpo_batch)
        mask = getattr(grpo_batch, "completion_mask", None)
        self.weights.append(self._apply_rollout_importance_sampling(None, mask))
        return 0.25

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs["loss"] = 0.5

    def step(self) -> None:
        self.weights = []
        self._move_model_to_vllm()
        for batch in self._prepare_batch_inputs([SimpleNamespace(prompt_id="p")] * 4):
            assert self._compute_loss_and_metrics(self.model, batch["model_inputs"], batch["grpo_batch"]) == 0.25
        self.state.global_step += 1
        self.log({})


class MsSwift(Host):
    framework, said, count = "ms-swift", "ms_swift", 4
    needed = ("completion_mask", "old_per_token_logps")
    spared = ("advantages", "rollout_per_token_logps", "ref_per_token_logps")
    lacks = "_compute_loss_and_metrics has no parameter model_inputs"
    repeats = corrects = True
    marks, logged = ("6",), {7: {"loss": 0.5}}
    configured = {"compute_dtype": "float32", "loss_type": "grpo", "temperature": 0.7}  # noqa: RUF012

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.trainer = MsSwiftGrpo()
        self.at = 7  # ms-swift logs after the update

    def later(self) -> None:
        self.trainer._compute_loss_and_metrics = lambda model, inputs: 0.25  # type: ignore[method-assign, assignment]

    def wrapped(self) -> Any:
        return self.trainer

    def begin(self) -> None:
        from logprobe.collectors.integrations import ms_swift

        if self.correction:
            self.patch.setenv("LOGPROBE_CORRECTION", "1")
        self.recorder = ms_swift.watch(self.trainer)

    def step(self, renamed: str | None = None) -> None:
        self.trainer.renamed = renamed
        self.trainer.step()
        if self.trainer.weights and not isinstance(self.trainer.weights[0], str):
            self.applied = torch.cat(self.trainer.weights)

    def sides(self) -> tuple[Any, Any, Any]:
        columns = self.trainer.columns()
        return columns["rollout_per_token_logps"], columns["old_per_token_logps"], columns["completion_mask"]

    def trained(self) -> Rows:
        import os

        columns, rows = self.trainer.columns(), {}
        for place, reward in enumerate((0.5, 0.0, 3.0, 0.25)):
            valid = self.trainer.mask[place].bool()
            rows[f"ms-swift-{os.getpid()}-1-0-{place}"] = {
                "step": 7,
                "weight_version": "6",
                "group_id": "6-1-p",
                "token_ids": self.trainer.tokens[place, 2:][valid].tolist(),
                "trainer_logprobs": columns["old_per_token_logps"][place][valid].tolist(),
                "rollout_logprobs": columns["rollout_per_token_logps"][place][valid].tolist(),
                "reference_logprobs": columns["ref_per_token_logps"][place][valid].tolist(),
                "current_logprobs": self.trainer.forward[place][valid].tolist(),
                "entropy": [2.0] * int(valid.sum()),
                "advantages": [float(columns["advantages"][place])] * int(valid.sum()),
                "reward": reward,
            }
        return rows

    def sampled(self) -> Rows:
        return {
            name: {"token_ids": row["token_ids"], "logprobs": row["rollout_logprobs"], "group_id": row["group_id"]}
            for name, row in self.trained().items()
        }
