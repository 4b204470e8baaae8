"""SkyRL on batches that its own functions built and padded (0.3.0, `skyrl_program.py`); PipelineRL, OpenRLHF, ROLL, AReaL and
rllm by modules with the names, signatures and layouts of 58d39345, 0.11.2, 8eb27cc2, 1.0.4 and 9beb6e0f, and nothing else of them.
"""

from __future__ import annotations

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from conformance.host import Host, Rows, arrays, rename

# --- SkyRL ---


class Batch(dict[str, Any]):
    """SkyRL's is a dictionary with metadata, too."""

    metadata = {"policy_prompt_boundaries": [(0, 2), (2, 4)], "pad_size": 2}  # noqa: RUF012


def skyrl_trainer(name: str = "RayPPOTrainer") -> Any:
    sampling = SimpleNamespace(temperature=0.7)
    settings = SimpleNamespace(run_name="tiny", bf16=True, algorithm=SimpleNamespace(temperature=0.7))
    config = SimpleNamespace(trainer=settings, generator=SimpleNamespace(sampling_params=sampling))
    return type(name, (), {"cfg": config})()


def skyrl_event(step: int, **fields: Any) -> Any:
    return SimpleNamespace(**{"global_step": step, "batch": None, "logs": None} | fields)


class SkyRl(Host):
    framework, said, count = "SkyRL", "skyrl", 6
    needed = ("sequences", "loss_mask", "rollout_logprobs", "action_log_probs", "advantages")
    repeats = True
    logged = {1: {"policy/loss": 0.5}}  # noqa: RUF012
    configured = {"temperature": 0.7, "compute_dtype": "bfloat16"}  # noqa: RUF012

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.trainer, self.at = skyrl_trainer(), 1
        self.callbacks: list[Any] = []

    def begin(self) -> None:
        self.module("skyrl.train.utils.callbacks", TrainingCallback=object)
        self.callbacks.append(self.fresh("skyrl").callback())

    def batch(self) -> Batch:
        return Batch(arrays("skyrl_0_3_0.npz", f"{self.at}."))

    def step(self, renamed: str | None = None) -> None:
        batch = self.batch()
        rename(batch, renamed)
        logs = {"policy/loss": np.float32(0.5), "eval/all/x": 1.0, "text": "x"}
        for each in self.callbacks:
            each.on_step_end(self.trainer, skyrl_event(self.at, batch=batch), None)
            each.on_log(self.trainer, skyrl_event(self.at, logs=logs), None)
        for each in self.callbacks:
            each.on_train_end(self.trainer, skyrl_event(self.at), None)

    def trained(self) -> Rows:
        batch, rows = self.batch(), {}
        for place in range(4):
            mask = batch["loss_mask"][place] > 0
            first = int(mask.nonzero()[0])
            rows[f"skyrl-{self.at}-{place}"] = {
                "step": self.at,
                "weight_version": str(self.at - 1),
                "group_id": f"{self.at}-{place // 2}",
                "token_ids": batch["sequences"][place, -mask.shape[0] :][first:].tolist(),
                "trainer_logprobs": batch["action_log_probs"][place][first:].tolist(),
                "rollout_logprobs": batch["rollout_logprobs"][place][first:].tolist(),
                "rollout_versions": [str(self.at - 1)],
            }
        return rows


# --- PipelineRL ---

TEMPERATURE = 0.5
PACKED = [[3, 4, 5, 6], [3, 7, 8]]  # two sequences, a prompt of one and of two tokens
LABELS = [[-100, 4, 5, 6], [-100, -100, 8]]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, input_ids: Any) -> Any:
        return SimpleNamespace(logits=self.table[input_ids])


class Config(SimpleNamespace):
    def model_dump(self) -> dict[str, Any]:
        return vars(self)


def rl_step(
    model: Any, batch: Any, current_step: int, max_step: int, config: Any, seq_parallel_group: Any = None
) -> Any:
    """The trainer's log-probs as PipelineRL computes them."""
    logits = model(input_ids=batch.input_ids).logits[:, :-1] / config.temperature
    chosen = logits.gather(2, batch.input_ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)
    return chosen, {}


def micro_batch(tokens: list[list[int]], labels: list[list[int]], **more: Any) -> Any:
    ids = torch.tensor(tokens)
    like = torch.zeros(ids.shape)
    fields = {
        "input_ids": ids, "labels": torch.tensor(labels), "old_logprobs": like - 1.5, "ref_logprobs": like, "rewards": like + 0.25,
        "advantages": like + 2, "attention_mask": torch.ones_like(ids), "sentinel": False, "is_packed": False, "seq_boundaries": None, "model_version": 8,
    }  # fmt: skip
    return SimpleNamespace(**fields | more)


def packed(**more: Any) -> Any:
    tokens, labels = ([n for row in each for n in row] for each in (PACKED, LABELS))
    boundaries = torch.tensor([0, 4, 7], dtype=torch.int)
    return micro_batch([tokens], [labels], is_packed=True, seq_boundaries=boundaries, **more)


class PipelineRl(Host):
    framework, said, count = "PipelineRL", "pipelinerl", 2
    lacks = "rl_step has no parameter current_step"
    marks, logged = ("0",), {1: {"rl/loss": 0.5}}
    configured = {"temperature": TEMPERATURE}  # noqa: RUF012

    def __init__(self, patch: Any, **settings: Any) -> None:
        super().__init__(patch)

        class WeightUpdateManager:
            def send_weight_update(self, version: int) -> None: ...

        self.at, self.manager = 1, WeightUpdateManager
        self.loss, self.loop, self.logging = (ModuleType(name) for name in ("rl", "finetune_loop", "logging_"))
        vars(self.loss)["rl_step"] = rl_step
        vars(self.loop)["WeightUpdateManager"] = WeightUpdateManager
        vars(self.logging)["log_metrics"] = lambda logger, completed_steps, metrics: None
        self.model = Model()
        self.config = Config(**{"temperature": TEMPERATURE, "kl_coef": 0.0, "final_kl_coef": 0.0} | settings)

    def later(self) -> None:
        vars(self.loss)["rl_step"] = lambda model, batch: None

    def wrapped(self) -> Any:
        return self.loss

    def begin(self) -> None:
        self.adapter = self.fresh("pipelinerl")
        hooks = {"loss": self.loss, "weights": self.loop, "scalars": self.logging}
        for name, module in hooks.items():
            getattr(self.adapter, name)(module)

    def micro_batch(self, given: Any, completed: int, **named: Any) -> Any:
        return self.loss.rl_step(self.model, given, completed, 9, self.config, **named)[0].detach()

    def send(self, version: int) -> None:
        self.manager().send_weight_update(version)

    def step(self, renamed: str | None = None) -> None:
        self.send(0)
        self.chosen = self.micro_batch(packed(), 0, seq_parallel_group=None)[0].tolist()
        self.logging.log_metrics(None, 1, {"rl/loss": 0.5, "text": "x"})

    def trained(self) -> Rows:
        """The trainer's log-probs are exactly those that the loss was computed with."""
        rows = {}
        for number, (tokens, own) in enumerate((([4, 5, 6], self.chosen[:3]), ([8], self.chosen[5:]))):
            rows[f"pipelinerl-0-1-{number}"] = {
                "step": 1,
                "weight_version": "0",
                "token_ids": tokens,
                "trainer_logprobs": own,
                "rollout_logprobs": [-1.5] * len(tokens),
                "advantages": [2.0] * len(tokens),
                "reward": 0.25,
                "reference_logprobs": None,
            }
        return rows


# --- What `logprobe run` wraps ---

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 10, 11, 0]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]])
OWN = torch.tensor([[0.0, 0.0, -0.5, -0.25, -0.125], [0.0, 0.0, -1.0, -2.0, 0.0]])  # of each token


class Wrapped(Host):
    """Two sequences; the engine's log-probs are 0.5 below the trainer's."""

    count = 2
    names: tuple[str, str]
    version: str

    def begin(self) -> None:
        self.adapter = self.fresh("wrapped")
        for hook, contents in self.contents().items():
            module = ModuleType("framework")
            vars(module).update(contents)
            getattr(self.adapter, hook)(module)

    def contents(self) -> dict[str, dict[str, Any]]:
        """What our hooks get: hook → contents of the module."""
        raise NotImplementedError

    def trained(self) -> Rows:
        tokens, own = ([7, 8, 9], [10, 11]), ([-0.5, -0.25, -0.125], [-1.0, -2.0])
        return {
            name: {
                "step": self.at,
                "weight_version": self.version,
                "token_ids": ids,
                "trainer_logprobs": t,
                "rollout_logprobs": [value - 0.5 for value in t],
            }
            for name, ids, t in zip(self.names, tokens, own, strict=True)
        }


class OpenRlhf(Wrapped):
    framework, said = "OpenRLHF", "openrlhf"
    needed = ("action_mask", "sequences", "action_log_probs", "rollout_log_probs", "advantages")
    lacks = "BasePPOTrainer has no method broadcast_to_vllm"
    names, version = ("openrlhf-7-0", "openrlhf-7-1"), "6"
    marks = ("7",)

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.at = 7

        class RemoteExperienceMaker:
            def make_experience_batch(_, rollout_samples: Any) -> list[Any]:  # noqa: N805
                return [self.experience]

        class BasePPOTrainer:
            def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, float], int]:
                RemoteExperienceMaker().make_experience_batch(rollout_samples)
                self.broadcast_to_vllm()
                return {}, global_step + 1

            def broadcast_to_vllm(self) -> None: ...

        self.trainer, self.maker = BasePPOTrainer, RemoteExperienceMaker

    def later(self) -> None:
        del self.trainer.broadcast_to_vllm

    def wrapped(self) -> Any:
        return self.trainer

    def contents(self) -> dict[str, dict[str, Any]]:
        return {
            "openrlhf_trainer": {"BasePPOTrainer": self.trainer},
            "openrlhf": {"RemoteExperienceMaker": self.maker},
        }

    def step(self, renamed: str | None = None) -> None:
        self.experience = SimpleNamespace(
            sequences=TOKENS, action_mask=MASK[:, 1:], action_log_probs=OWN[:, 1:], rollout_log_probs=OWN[:, 1:] - 0.5,
            base_action_log_probs=None, advantages=torch.ones(2, 4), rewards=torch.tensor([1.0, 0.0]), info={"kl": 1},
        )  # fmt: skip
        rename(vars(self.experience), renamed)
        assert self.trainer().train_step([], global_step=6) == ({}, 7)


class Roll(Wrapped):
    framework, said = "ROLL", "roll"
    needed = ("input_ids", "response_mask", "old_log_probs", "infer_logprobs")
    lacks = "has no parameter stat_mask_key"
    names, version = ("roll-3-0", "roll-3-1"), "3"

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)

        def correction(
            pipeline_config: Any, batch: Any, stat_mask_key: str = "response_mask", update_mask_keys: Any = None
        ) -> Any:
            batch.batch[stat_mask_key] = torch.zeros_like(MASK)  # everything rejected
            return batch, {}

        self.functions = ModuleType("train_infer_corrections")
        self.name = "apply_train_infer_correction_to_batch"
        setattr(self.functions, self.name, correction)

    def later(self) -> None:
        setattr(self.functions, self.name, lambda pipeline_config, batch: None)

    def wrapped(self) -> Any:
        return self.functions

    def begin(self) -> None:
        self.fresh("wrapped").roll(self.functions)

    def step(self, renamed: str | None = None) -> None:
        columns = {
            "input_ids": TOKENS,
            "response_mask": MASK,
            "old_log_probs": OWN[:, 1:],
            "infer_logprobs": OWN[:, 1:] - 0.5,
        }
        batch = SimpleNamespace(batch=rename(columns, renamed), meta_info={"global_step": 3})
        assert getattr(self.functions, self.name)(None, batch, update_mask_keys=["x"])[1] == {}


class Areal(Wrapped):
    """It knows the version of every token."""

    framework, said = "AReaL", "areal"
    needed = ("input_ids", "loss_mask", "logprobs")
    lacks = "PPOActor has no method compute_advantages"
    names, version = ("areal-1-4-0", "areal-1-4-1"), "4"

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.at = 4

        class PPOActor:
            def __init__(self, *, head: bool) -> None:
                self.engine = SimpleNamespace(
                    is_data_parallel_head=lambda: head, get_version=lambda: 4, data_parallel_rank=1
                )

            def compute_advantages(self, data: Any) -> Any:
                return data

        self.actor = PPOActor

    def later(self) -> None:
        del self.actor.compute_advantages

    def wrapped(self) -> Any:
        return self.actor

    def contents(self) -> dict[str, dict[str, Any]]:
        return {"areal": {"PPOActor": self.actor}}

    def step(self, renamed: str | None = None) -> None:
        data = {
            "input_ids": TOKENS, "loss_mask": MASK, "logprobs": OWN - 0.5, "prox_logp": OWN.roll(-1, -1),
            "versions": torch.tensor([[-1, -1, 3, 3, 4], [-1, -1, 4, 4, -1]]), "rewards": torch.tensor([1.0, 0.0]),
        }  # fmt: skip
        rename(data, renamed)
        for head in (False, True):
            assert self.actor(head=head).compute_advantages([data]) == [data]

    def trained(self) -> Rows:
        first, second = super().trained().items()
        return {first[0]: first[1] | {"rollout_versions": ["3", "4"]}, second[0]: second[1]}


class Rllm(Wrapped):
    framework, said = "rllm", "rllm"
    needed = ("responses", "response_mask", "old_log_probs")
    lacks = "VerlBackend has no method compute_advantages"
    names, version = ("rllm-2-0", "rllm-2-1"), "1"
    old, rollout = OWN, OWN - 0.5

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.at = 2

        class VerlBackend:
            async def compute_advantages(self, trainer_state: Any, algorithm_config: Any) -> str:
                await asyncio.sleep(0)
                return "own"

        self.backend = VerlBackend

    def later(self) -> None:
        del self.backend.compute_advantages

    def wrapped(self) -> Any:
        return self.backend

    def contents(self) -> dict[str, dict[str, Any]]:
        return {"rllm": {"VerlBackend": self.backend}}

    def step(self, renamed: str | None = None) -> None:
        columns = {
            "responses": TOKENS,
            "response_mask": MASK,
            "old_log_probs": self.old,
            "rollout_log_probs": self.rollout,
        }
        padded = {name: torch.cat([column, column[:1]]) for name, column in columns.items()}
        batch = SimpleNamespace(batch=rename(padded, renamed), non_tensor_batch={"is_pad_step": [False, False, True]})
        state = SimpleNamespace(backend_batch=batch, global_step=2)
        assert asyncio.run(self.backend().compute_advantages(state, None)) == "own"
