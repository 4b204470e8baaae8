"""slime, miles and vime on samples that slime's own code (commit 624b824a8) built, appended to and converted for training.

slime itself needs Megatron, SGLang and GPUs, and is not on PyPI. Log-probs of the trainer are made up here, and so are
the modules `megatron.core.mpu` and `miles.backends`: they have the names and signatures of the real ones.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from conformance.host import STORED, Host, Rows, rename

KEPT = json.loads((STORED / "slime_624b824a8.json").read_text())
ARGS = SimpleNamespace(**KEPT["args"])


def samples() -> list[Any]:
    made = [SimpleNamespace(**sample) for sample in KEPT["samples"]]
    for sample in made:
        sample.prefix_cache_info = SimpleNamespace(**sample.prefix_cache_info)
    return made


def train_data() -> dict[str, Any]:
    """As a data-parallel rank has it at the hook: lists of tensors, with the trainer's log-probs and advantages."""
    data = dict(KEPT["train_data"])
    for name in ("tokens", "loss_masks", "rollout_log_probs"):
        data[name] = [torch.tensor(row) for row in data[name]]
    data["log_probs"] = [row - 0.01 for row in data["rollout_log_probs"]]
    data["ref_log_probs"] = [row - 0.02 for row in data["rollout_log_probs"]]
    data["teacher_log_probs"] = [row + 0.03 for row in data["rollout_log_probs"]]
    data["advantages"] = [torch.full_like(row, 0.5) for row in data["log_probs"]]
    data["local_raw_reward"] = data["raw_reward"]
    return data


def megatron(host: Host, *, tp: int = 0, cp: int = 0, last: bool = True, pieces: int = 1) -> None:
    mpu = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: tp,
        get_context_parallel_rank=lambda: cp,
        is_pipeline_last_stage=lambda: last,
        get_context_parallel_world_size=lambda: pieces,
    )
    for name in ("megatron", "megatron.core"):
        host.module(name, mpu=mpu, __spec__=SimpleNamespace(name=name))


class Slime(Host):
    framework, said, count = "slime", "slime", 4
    needed = ("tokens", "response_lengths", "loss_masks", "sample_indices")
    corrects = True
    version: str | None = "1"  # the first rollout after a start at 3
    vanilla = "slime.backends.megatron_utils.loss"
    args = ARGS
    configured = {"temperature": 0.7, "advantage_estimator": "grpo"}  # noqa: RUF012

    def begin(self) -> None:
        megatron(self)
        self.adapter = self.fresh(self.said)

    def step(self, renamed: str | None = None) -> None:
        assert not self.adapter.rollout(self.at, self.args, samples(), {}, 1.0)  # the framework logs what it logs
        data = rename(train_data(), renamed)
        self.train(data)
        if renamed is None:
            loss = torch.ones(sum(map(len, data["log_probs"])))
            names = {
                "train_log_probs": "log_probs",
                "rollout_log_probs": "rollout_log_probs",
                "loss_masks": "loss_masks",
            }
            named = {ours: data[theirs] for ours, theirs in names.items()}
            result, masks, _ = self.adapter.tis(self.args, pg_loss=loss, **named)
            assert masks is named["loss_masks"]
            self.applied = None if result is loss else result

    def train(self, data: dict[str, Any]) -> None:
        self.adapter.train(self.args, self.at, data)

    def sides(self) -> tuple[Any, Any, Any]:
        data = train_data()
        return data["rollout_log_probs"], data["log_probs"], data["loss_masks"]

    def trained(self) -> Rows:
        data, rows = train_data(), {}
        for place, sample in enumerate(KEPT["samples"]):
            rows[f"{self.at}/{sample['index']}"] = {
                "step": self.at,
                "weight_version": self.version,
                "token_ids": sample["tokens"][-sample["response_length"] :],
                "trainer_logprobs": data["log_probs"][place].tolist(),
                "rollout_logprobs": data["rollout_log_probs"][place].tolist(),
                "reference_logprobs": data["ref_log_probs"][place].tolist(),
                "teacher_logprobs": data["teacher_log_probs"][place].tolist(),
                "advantages": data["advantages"][place].tolist(),
                "reward": sample["reward"],
            }
        return rows

    def sampled(self) -> Rows:
        versions, cached, rows = {101: []}, {101: None}, {}  # its weights changed, and it is of several turns
        for sample in KEPT["samples"]:
            index, length, mask = sample["index"], sample["response_length"], sample["loss_mask"]
            under = [place for place, flag in enumerate(mask) if flag]  # a tool's answer was not sampled
            rows[f"{self.at}/{index}"] = {
                "token_ids": [sample["tokens"][-length:][place] for place in under],
                "logprobs": torch.tensor(sample["rollout_log_probs"])[under].tolist(),
                "spans": versions.get(index, ["5"]),
                "cached_prefix_tokens": cached.get(index, 3),
                "finish_reason": sample["status"],
                "prompt_length": 5,
                "group_id": f"{self.at}/{sample['group_index']}",
            }
        return rows


class Vime(Slime):
    """slime's training with vLLM's engines: which weights trained is unknown there."""

    framework = said = "vime"
    version = None
    vanilla = "vime.backends.megatron_utils.loss"


class Miles(Slime):
    """It hands no data to its hook: the function that logs them next is wrapped, once."""

    framework = said = "miles"
    version = None
    vanilla = "miles.backends.training_utils.loss_hub.corrections"
    lacks = "log_rollout_data has no parameter"

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.seen: list[int] = []
        self.parallel = SimpleNamespace(
            tp=SimpleNamespace(rank=0), cp=SimpleNamespace(rank=0, size=1), is_pp_last_stage=True
        )
        self.actor = ModuleType("miles.backends.megatron_utils.actor")
        self.actor.log_rollout_data = lambda rollout_id, args, rollout_data: self.seen.append(rollout_id)  # type: ignore[attr-defined]

    def later(self) -> None:
        self.actor.log_rollout_data = lambda *, everything: None  # type: ignore[attr-defined]

    def wrapped(self) -> Any:
        return self.actor

    def begin(self) -> None:
        super().begin()
        self.patch.setitem(sys.modules, self.actor.__name__, self.actor)
        self.module("miles.backends.training_utils.parallel", get_parallel_state=lambda: self.parallel)
        self.adapter.train(self.args)

    def train(self, data: dict[str, Any]) -> None:
        self.adapter.train(self.args)
        self.actor.log_rollout_data(self.at, self.args, data)
        assert self.seen[-1] == self.at
