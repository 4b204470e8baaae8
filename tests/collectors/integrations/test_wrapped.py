"""OpenRLHF, ROLL, AReaL and rllm: none of them trains on a CPU. The modules here have the names, signatures and layouts of OpenRLHF 0.11.2, AReaL 1.0.4,
ROLL 8eb27cc2 and rllm 9beb6e0f, and nothing else of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations import wrapped


@pytest.fixture(autouse=True)
def _fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "run")
    for name in ("openrlhf", "roll", "areal", "rllm"):
        monkeypatch.setattr(wrapped, f"_{name.upper()}", wrapped.Watch(name))


def module(**contents: Any) -> ModuleType:
    made = ModuleType("framework")
    vars(made).update(contents)
    return made


def rename(columns: dict[str, Any], key: str | None) -> None:
    """As a later version of the framework might."""
    if key is not None:
        columns["new_name"] = columns.pop(key)


TOKENS = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 10, 11, 0]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]])
OWN = torch.tensor([[0.0, 0.0, -0.5, -0.25, -0.125], [0.0, 0.0, -1.0, -2.0, 0.0]])  # of each token


def check(home: Path, names: list[str], step: int, version: str, *, gap: float = 0.5) -> dict[str, Any]:
    trained = by_sample(home, "training")
    assert set(trained) == set(names)
    assert not rows(home, "rollout")  # the engine's plugin has them, under its own names
    for row, tokens, own in zip(
        (trained[n] for n in names), ([7, 8, 9], [10, 11]), ([-0.5, -0.25, -0.125], [-1.0, -2.0]), strict=True
    ):
        assert (row["step"], row["weight_version"], row["token_ids"]) == (step, version, tokens)
        assert row["trainer_logprobs"] == own
        assert row["rollout_logprobs"] == [value - gap for value in own]
    return trained


def openrlhf_step(renamed: str | None = None) -> None:
    """A step of OpenRLHF under our hooks; in a later version that calls an attribute of its batches otherwise."""
    one = SimpleNamespace(
        sequences=TOKENS, action_mask=MASK[:, 1:], action_log_probs=OWN[:, 1:], rollout_log_probs=OWN[:, 1:] - 0.5,
        base_action_log_probs=None, advantages=torch.ones(2, 4), rewards=torch.tensor([1.0, 0.0]), info={"kl": 1},
    )  # fmt: skip
    rename(vars(one), renamed)

    class RemoteExperienceMaker:
        def make_experience_batch(self, rollout_samples: Any) -> list[Any]:
            return [one]

    class BasePPOTrainer:
        def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, float], int]:
            RemoteExperienceMaker().make_experience_batch(rollout_samples)
            self.broadcast_to_vllm()
            return {}, global_step + 1

        def broadcast_to_vllm(self) -> None: ...

    wrapped.openrlhf_trainer(module(BasePPOTrainer=BasePPOTrainer))
    wrapped.openrlhf(module(RemoteExperienceMaker=RemoteExperienceMaker))
    assert BasePPOTrainer().train_step([], global_step=6) == ({}, 7)


def test_openrlhf(home: Path) -> None:
    openrlhf_step()
    wrapped._OPENRLHF.process.recorder.close()
    check(home, ["openrlhf-7-0", "openrlhf-7-1"], 7, "6")
    assert [row["version"] for row in rows(home, "weights")] == ["7"]


def roll_step(renamed: str | None = None) -> None:
    def apply_train_infer_correction_to_batch(
        pipeline_config: Any, batch: Any, stat_mask_key: str = "response_mask", update_mask_keys: Any = None
    ) -> Any:
        batch.batch[stat_mask_key] = torch.zeros_like(MASK)  # everything rejected
        return batch, {}

    made = module(apply_train_infer_correction_to_batch=apply_train_infer_correction_to_batch)
    wrapped.roll(made)
    columns = {
        "input_ids": TOKENS,
        "response_mask": MASK,
        "old_log_probs": OWN[:, 1:],
        "infer_logprobs": OWN[:, 1:] - 0.5,
    }
    rename(columns, renamed)
    batch = SimpleNamespace(batch=columns, meta_info={"global_step": 3})
    assert made.apply_train_infer_correction_to_batch(None, batch, update_mask_keys=["x"])[1] == {}


def test_roll(home: Path) -> None:
    roll_step()
    wrapped._ROLL.process.recorder.close()
    check(home, ["roll-3-0", "roll-3-1"], 3, "3")


def areal_step(renamed: str | None = None) -> None:
    class PPOActor:
        def __init__(self, *, head: bool) -> None:
            self.engine = SimpleNamespace(
                is_data_parallel_head=lambda: head, get_version=lambda: 4, data_parallel_rank=1
            )

        def compute_advantages(self, data: Any) -> Any:
            return data

    wrapped.areal(module(PPOActor=PPOActor))
    data = {
        "input_ids": TOKENS, "loss_mask": MASK, "logprobs": OWN - 0.5, "prox_logp": OWN.roll(-1, -1),
        "versions": torch.tensor([[-1, -1, 3, 3, 4], [-1, -1, 4, 4, -1]]), "rewards": torch.tensor([1.0, 0.0]),
    }  # fmt: skip
    rename(data, renamed)
    for head in (False, True):
        assert PPOActor(head=head).compute_advantages([data]) == [data]


def test_areal_knows_the_version_of_every_token(home: Path) -> None:
    areal_step()
    wrapped._AREAL.process.recorder.close()
    trained = check(home, ["areal-1-4-0", "areal-1-4-1"], 4, "4")
    assert [span["version"] for span in trained["areal-1-4-0"]["rollout_versions"]] == ["3", "4"]


def rllm_step(renamed: str | None = None, rollout: Any = OWN - 0.5, old: Any = OWN) -> None:
    class VerlBackend:
        async def compute_advantages(self, trainer_state: Any, algorithm_config: Any) -> None:
            await asyncio.sleep(0)

    wrapped.rllm(module(VerlBackend=VerlBackend))
    columns = {
        "responses": TOKENS, "response_mask": MASK, "old_log_probs": old, "rollout_log_probs": rollout,
    }  # fmt: skip
    padded = {name: torch.cat([column, column[:1]]) for name, column in columns.items()}
    rename(padded, renamed)
    batch = SimpleNamespace(batch=padded, non_tensor_batch={"is_pad_step": [False, False, True]})
    asyncio.run(VerlBackend().compute_advantages(SimpleNamespace(backend_batch=batch, global_step=2), None))


@pytest.mark.parametrize(("bypass", "broken"), [(False, False), (True, False), (True, True)])
def test_rllm(home: Path, bypass: bool, broken: bool) -> None:
    rollout = OWN.clone() if bypass else OWN - 0.5
    old = OWN.clone()
    if broken:  # a copy with NaN, and with other padding, is a copy
        old[0, -1] = rollout[0, -1] = float("nan")
        rollout[MASK == 0] = -7.0
    rllm_step(rollout=rollout, old=old)
    wrapped._RLLM.process.recorder.close()
    if bypass:
        assert not rows(home, "training")
        assert "no_logprobs" in health_events(home)
    else:
        check(home, ["rllm-2-0", "rllm-2-1"], 2, "1")


STEPS = {"openrlhf": openrlhf_step, "roll": roll_step, "areal": areal_step, "rllm": rllm_step}


@pytest.mark.parametrize("framework", STEPS)
def test_without_a_home_a_training_goes_on_and_one_warning_says_so(
    framework: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME")
    for _ in range(2):
        STEPS[framework]()
    (warning,) = caplog.messages
    assert warning.startswith(f"logprobe: {framework}: nothing is recorded: no home")


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("openrlhf", "action_mask"), ("openrlhf", "sequences"), ("openrlhf", "action_log_probs"),
        ("roll", "response_mask"), ("roll", "old_log_probs"), ("areal", "loss_mask"), ("areal", "logprobs"),
        ("rllm", "responses"), ("rllm", "response_mask"), ("rllm", "old_log_probs"),
    ],
)  # fmt: skip
def test_a_renamed_key_is_named_and_what_is_lost_is_counted(home: Path, framework: str, key: str) -> None:
    STEPS[framework](renamed=key)
    getattr(wrapped, f"_{framework.upper()}").process.recorder.close()
    assert not rows(home, "training")
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
    assert (report["severity"], report["sequences"]) == ("warning", 2)


def test_what_is_not_known_is_left_alone_and_said(home: Path) -> None:
    class PPOActor:
        def advantages(self, data: Any) -> None: ...

    before = dict(vars(PPOActor))
    wrapped.areal(module(PPOActor=PPOActor))
    assert dict(vars(PPOActor)) == before
    wrapped._AREAL.process.recorder.close()
    (report,) = health_events(home)["self_test"]
    assert "PPOActor has no method compute_advantages" in report["message"]
