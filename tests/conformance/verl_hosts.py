"""verl's two trainers on batches that verl 0.9.1's own loops produced (`verl_program.py`, option "store")."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from conformance.host import Host, Rows, arrays, labels, rename

V0_BATCH, V1_BATCH = "verl_0_9_1_v0.npz", "verl_0_9_1_v1.npz"


class Config(dict[str, Any]):
    """Answers as OmegaConf does."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


CONFIG = Config(
    actor_rollout_ref=Config(rollout=Config(temperature=1.0, top_p=0.9), actor=Config(clip_ratio=0.2)),
    algorithm=Config(adv_estimator="grpo", rollout_correction=Config(bypass_mode=False)),
    trainer=Config(experiment_name="from-verl", use_v1=True),
)


class Checkpoints:
    def update_weights(self, global_steps: int) -> None: ...


class RayPPOTrainer:
    """v0."""

    def __init__(self, config: Any = CONFIG) -> None:
        self.config, self.global_steps, self.checkpoint_manager = config, 1, Checkpoints()
        uids = {name: np.array(values) for name, values in labels(V0_BATCH).items()}
        self.batch = SimpleNamespace(batch=arrays(V0_BATCH), non_tensor_batch=uids)
        self.updated: dict[str, Any] = {}

    def fit(self) -> None:
        self.checkpoint_manager.update_weights(0)
        self._compute_old_log_prob(self.batch)
        if "response_mask" in self.batch.batch:
            mask = self.batch.batch["response_mask"].clone()
            mask[:, 0] = 0  # rejection
            self.batch.batch["response_mask"] = mask
        assert self._update_actor(self.batch) == "metrics"

    def _compute_old_log_prob(self, batch: Any) -> Any:
        shape = batch.batch["rollout_log_probs"].shape
        return SimpleNamespace(batch={"entropys": torch.full(shape, 2.0)}), 0.0

    def _update_actor(self, batch: Any) -> str:
        self.updated = dict(batch.batch)
        return "metrics"


class Tracking:
    def log(self, data: Any, step: int, backend: Any = None) -> None: ...


class TransferQueue:
    """As a dictionary."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = arrays(V1_BATCH)
        self.put: dict[str, Any] = {}

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {name: self.tensors[name] for name in select_fields if name in self.tensors}

    def kv_batch_put(self, keys: Any, partition_id: str, fields: Any) -> None:
        self.put = dict(fields.items())


class PPOTrainer:
    """v1."""

    def __init__(self, config: Any = CONFIG) -> None:
        self.config, self.global_steps = config, 1

    def _setup(self) -> None:
        self.checkpoint_manager = Checkpoints()

    def fit(self, agent_loop_manager: Any) -> None: ...

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch


class Verl(Host):
    """The plugin is loaded as verl loads it: by its entry point, after its modules."""

    framework, said, count = "verl", "verl", 16
    needed = ("responses", "response_mask", "old_log_probs")
    corrects = True
    config = CONFIG
    logged = {1: {"actor/entropy": 0.5}}  # noqa: RUF012
    configured = {"temperature": 1.0, "actor_rollout_ref.rollout.top_p": 0.9}  # noqa: RUF012

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.at = 1
        self.queue = TransferQueue()
        made = (type(each.__name__, (each,), dict(vars(each))) for each in (RayPPOTrainer, PPOTrainer, Tracking))
        self.v0, self.v1, self.tracking = made  # classes of a new process

    def begin(self) -> None:
        if self.correction:
            self.patch.setenv("LOGPROBE_CORRECTION", "1")
        verl = self.fresh("verl")
        self.module(verl.V0, RayPPOTrainer=self.v0)
        self.module(verl.V1, PPOTrainer=self.v1, tq=self.queue)
        self.module(verl.TRACKING, Tracking=self.tracking)
        self.fresh("verl_plugin")

    def log(self) -> None:
        self.tracking().log({"actor/entropy": np.float32(0.5), "val-core/acc": 1.0, "name": "x"}, step=1)


class VerlV0(Verl):
    lacks = "RayPPOTrainer has no method _compute_old_log_prob"
    marks = ("0",)

    def later(self) -> None:
        self.v0 = type("RayPPOTrainer", (), {"fit": lambda self: None})

    def wrapped(self) -> Any:
        return self.v0

    def step(self, renamed: str | None = None) -> None:
        self.trainer = self.v0(self.config)
        rename(self.trainer.batch.batch, renamed)
        self.trainer.fit()
        self.log()
        self.applied = self.trainer.updated.get("rollout_is_weights")
        if self.applied is None and renamed is None:  # nothing was added to what verl updates with
            assert self.trainer.updated.keys() == arrays(V0_BATCH).keys()

    def sides(self) -> tuple[Any, Any, Any]:
        tensors = arrays(V0_BATCH)
        return tensors["rollout_log_probs"], tensors["old_log_probs"], tensors["response_mask"]

    def trained(self) -> Rows:
        """As it was before rejection."""
        tensors, rows, seen = arrays(V0_BATCH), {}, dict[str, int]()
        for place, group in enumerate(labels(V0_BATCH)["uid"]):
            number = seen[group] = seen.get(group, -1) + 1
            valid = tensors["response_mask"][place].bool()
            rows[f"verl-1-{group}-{number}"] = {
                "step": 1,
                "weight_version": "0",
                "group_id": group,
                "token_ids": tensors["responses"][place][valid].tolist(),
                "trainer_logprobs": tensors["old_log_probs"][place][valid].tolist(),
                "rollout_logprobs": tensors["rollout_log_probs"][place][valid].tolist(),
                "advantages": tensors["advantages"][place][valid].tolist(),
                "entropy": [2.0] * int(valid.sum()),
                "reward": float(tensors["token_level_scores"][place].sum()),
            }
        return rows


class VerlV1(Verl):
    lacks = "PPOTrainer has no method _compute_advantage"
    corrects = False  # its workers count tokens in a mask of their own; `test_refusals.py` has what it can do

    def later(self) -> None:
        self.v1 = type("PPOTrainer", (), {"_setup": lambda self: None, "fit": lambda self: None})

    def wrapped(self) -> Any:
        return self.v1

    def tags(self) -> list[dict[str, Any]]:
        """The last row is padding; the weights of the first changed on the way, so it has no version."""
        tags = [{**tag, "is_padding": place == 15} for place, tag in enumerate(labels(V1_BATCH)["tags"])]
        tags[0]["max_global_steps"] = 3
        return tags

    count = 15

    def step(self, renamed: str | None = None) -> None:
        rename(self.queue.tensors, renamed)
        trainer = self.v1(self.config)
        trainer._setup()
        batch = SimpleNamespace(keys=labels(V1_BATCH)["keys"], tags=self.tags(), partition_id="train")
        assert trainer._compute_advantage(batch, {}) is batch
        self.log()

    def trained(self) -> Rows:
        tensors, rows = arrays(V1_BATCH), {}
        for place, name in enumerate(labels(V1_BATCH)["keys"][:15]):
            columns = {
                "token_ids": "responses", "trainer_logprobs": "old_log_probs", "rollout_logprobs": "rollout_log_probs",
                "entropy": "entropy", "advantages": "advantages",
            }  # fmt: skip
            rows[name] = {ours: tensors[theirs][place].tolist() for ours, theirs in columns.items()} | {
                "step": 1,
                "group_id": name.rsplit("_", 2)[0],
                "rollout_versions": ["0"] if place else [],
            }
        return rows
