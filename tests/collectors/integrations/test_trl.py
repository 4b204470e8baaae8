"""TRL's adapter on one generation that TRL 1.16 itself produced (`trl_program.py`, option "store"); `make campaign NAME=frameworks` trains with TRL.

The trainer here is a stand-in: it has TRL's method names and hands out the stored tensors.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations import trl

STORED = Path(__file__).with_name("trl_1_16.npz")


def stored(prefix: str) -> dict[str, torch.Tensor]:
    with np.load(STORED) as arrays:
        return {
            name.removeprefix(f"{prefix}."): torch.from_numpy(arrays[name])
            for name in arrays.files
            if name.startswith(f"{prefix}.")
        }


class StandIn:
    """What `watch` reads of a GRPOTrainer."""

    def __init__(self) -> None:
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1, mixed_precision="no")
        self.state = SimpleNamespace(global_step=6, is_world_process_zero=True)
        self.args = SimpleNamespace(run_name=None, output_dir="/runs/stand-in", temperature=1.0, epsilon=0.2)
        self.model = SimpleNamespace(training=True, dtype=torch.float32)
        self.reward_weights = torch.ones(1)
        self.num_generations = 4
        self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        self.callbacks: list[Any] = []
        self.loads = True  # the engine, before each generation
        self.logged = {"loss": 0.5, "entropy": 3.0}

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def is_world_process_zero(self) -> bool:
        return True

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        return stored("_calculate_rewards")["rewards"]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any
    ) -> Any:
        forward = stored("_get_per_token_logps_and_entropies")
        return forward["logps"], forward["entropies"], None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if self.loads:
            self.vllm_generation.sync_weights()
        self._calculate_rewards(inputs, None, None, None)
        return dict(stored("_generate_and_score_completions"))

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> float:
        self.ratio = inputs["importance_sampling_ratio"]
        self._get_per_token_logps_and_entropies(model, inputs["completion_ids"], None, 1)
        return 0.25

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.logged)

    def step(self) -> dict[str, Any]:
        batch = self._generate_and_score_completions([{}])
        assert self._compute_loss(self.model, batch) == 0.25
        self.state.global_step += 1
        self.log({})
        return batch


def test_everything_that_trl_knows_is_recorded_under_the_step_it_logs(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer.step()
    trainer.callbacks[0].on_train_end(trainer.args, trainer.state)
    names = batch["logprobe_names"]
    trained = by_sample(home, "training")
    assert set(trained) == set(names) == set(by_sample(home, "rollout"))
    for place, name in enumerate(names):
        row = trained[name]
        valid = batch["completion_mask"][place].bool()
        assert row["step"] == 7
        assert row["weight_version"] == "6"
        assert row["token_ids"] == batch["completion_ids"][place][valid].tolist()
        assert row["trainer_logprobs"] == batch["old_per_token_logps"][place][valid].tolist()
        assert row["rollout_logprobs"] == batch["sampling_per_token_logps"][place][valid].tolist()
        assert row["current_logprobs"] == stored("_get_per_token_logps_and_entropies")["logps"][place][valid].tolist()
        assert row["reward"] == pytest.approx(float(stored("_calculate_rewards")["rewards"][place, 0]))
        assert set(row["advantages"]) == {float(batch["advantages"][place])}
    assert len({trained[name]["group_id"] for name in names}) == 1
    (step,) = rows(home, "step")
    assert (step["step"], dict(step["scalars"])) == (7, {"loss": 0.5, "entropy": 3.0})
    assert [row["version"] for row in rows(home, "weights")] == ["6"]
    recorder.close()


def test_an_engine_that_is_loaded_at_some_generations_lags(home: Path) -> None:
    """The old log-probs are of the step's own weights, whatever the engine has."""
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    first = trainer.step()
    trainer.loads = False
    second = trainer.step()
    trainer.callbacks[0].on_train_end(trainer.args, trainer.state)
    trained = by_sample(home, "training")
    for batch, version in ((first, "6"), (second, "7")):
        for name in batch["logprobe_names"]:
            assert trained[name]["weight_version"] == version
            assert [span["version"] for span in trained[name]["rollout_versions"]] == ["6"]
    recorder.close()


def test_tools_output_counts_nowhere(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}])
    tools = torch.ones_like(batch["completion_mask"])
    tools[:, 5:9] = 0
    trainer._compute_loss(trainer.model, {**batch, "tool_mask": tools})
    recorder.close()
    for row in by_sample(home, "training").values():
        assert not any(row["mask"][5:9])
        assert sum(row["mask"]) == len(row["mask"]) - 4


def test_the_reference_model_and_the_versions_that_sampled(home: Path) -> None:
    """A batch keeps the version that sampled it: evaluation between two passes over it loads newer weights into the engine."""
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}])
    batch["ref_per_token_logps"] = batch["old_per_token_logps"] - 0.25
    trainer.state.global_step, trainer.model.training = 7, False
    trainer._generate_and_score_completions([{}])
    trainer.model.training = True
    trainer._compute_loss(trainer.model, batch)
    recorder.close()
    trained = by_sample(home, "training")
    for place, name in enumerate(batch["logprobe_names"]):
        valid = batch["completion_mask"][place].bool()
        assert (trained[name]["step"], trained[name]["weight_version"]) == (8, "6")
        assert [span["version"] for span in trained[name]["rollout_versions"]] == ["6"]
        assert trained[name]["reference_logprobs"] == batch["ref_per_token_logps"][place][valid].tolist()


def test_rloo_scores_the_policy_and_then_the_reference(home: Path) -> None:
    """It keeps only sums of either: what its forward passes returned is recorded."""
    trainer = StandIn()
    forward = stored("_get_per_token_logps_and_entropies")["logps"]
    passes = iter([forward, forward - 0.5, forward + 0.125])  # the policy, the reference, the policy in the loss
    trainer._get_per_token_logps_and_entropies = lambda model, input_ids, attention_mask, logits_to_keep: (
        next(passes),
        None,
        None,
    )

    def generate(inputs: Any) -> dict[str, Any]:
        batch = stored("_generate_and_score_completions")
        for _ in range(2):
            trainer._get_per_token_logps_and_entropies(trainer.model, None, None, 1)
        return {**{name: batch[name] for name in batch if "old" not in name}, "old_logps": forward.sum(1)}

    trainer._generate_and_score_completions = generate
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}])
    trainer._compute_loss(trainer.model, batch)
    recorder.close()
    trained = by_sample(home, "training")
    for place, name in enumerate(batch["logprobe_names"]):
        valid = batch["completion_mask"][place].bool()
        assert trained[name]["trainer_logprobs"] == forward[place][valid].tolist()
        assert trained[name]["reference_logprobs"] == (forward - 0.5)[place][valid].tolist()
        assert trained[name]["current_logprobs"] == (forward + 0.125)[place][valid].tolist()


def test_evaluation_is_not_recorded(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    trainer.model.training = False
    trainer.logged = {"eval_loss": 0.5}
    trainer.step()
    recorder.close()
    assert not rows(home, "training")
    assert not rows(home, "step")


def test_a_loss_that_keeps_no_logprobs_is_said(home: Path) -> None:
    """Unsloth's fused loss returns None for both."""
    trainer = StandIn()
    trainer._get_per_token_logps_and_entropies = lambda model, input_ids, attention_mask, logits_to_keep: (
        None,
        None,
        None,
    )
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}])
    trainer._compute_loss(trainer.model, batch)  # old log-probs are still there
    batch.pop("old_per_token_logps")
    trainer._compute_loss(trainer.model, batch)
    recorder.close()
    assert len(rows(home, "training")) == len(batch["logprobe_names"])
    assert all(row["current_logprobs"] is None and row["entropy"] is None for row in rows(home, "training"))
    assert "no_logprobs" in health_events(home)


def test_a_trainer_of_another_shape_is_left_alone(home: Path) -> None:
    trainer = StandIn()
    trainer._compute_loss = lambda inputs: 0.25
    recorder = trl.watch(trainer, home=home, run="run")
    assert trainer._compute_loss({}) == 0.25
    assert "log" not in vars(trainer)
    recorder.close()
    (report,) = health_events(home)["self_test"]
    assert report["severity"] == "warning"
    assert "_compute_loss has no parameter model" in report["message"]


def test_a_run_is_named_after_the_trainer_where_nobody_names_it(home: Path) -> None:
    with trl.watch(StandIn(), home=home) as recorder:
        assert recorder.run == "stand-in"


def test_without_a_home_training_goes_on_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME", raising=False)
    trainer = StandIn()
    recorder = trl.watch(trainer, correction=True)
    assert trl.watch(trainer) is recorder
    trainer.step()
    assert not recorder.step(1, loss=0.5)
    assert recorder.config({}) == ""
    assert recorder.flush()
    with recorder:
        assert recorder.health["problems"]
    (warning,) = caplog.messages
    assert warning.startswith("logprobe: trl.watch: nothing is recorded: no home")


def test_a_home_that_is_a_file_does_not_end_a_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    trl.watch(StandIn(), home=tmp_path / "file").training()
    assert "is a file" in caplog.text


def test_watching_twice_is_watching_once(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    assert trl.watch(trainer, home=home, run="run") is recorder
    batch = trainer.step()
    recorder.close()
    assert len(rows(home, "training")) == len(rows(home, "rollout")) == len(batch["logprobe_names"])
    assert len(rows(home, "step")) == 1


class Subclass(StandIn):
    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **kwargs)


def test_a_subclass_that_passes_on_whatever_comes_is_recorded(home: Path) -> None:
    trainer = Subclass()
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer.step()
    recorder.close()
    assert len(rows(home, "training")) == len(batch["logprobe_names"])
    assert dict(rows(home, "step")[0]["scalars"]) == {"loss": 0.5, "entropy": 3.0}


class Renamed(StandIn):
    """A later TRL, in which a key has another name."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.args.use_vllm = self.args.vllm_importance_sampling_correction = True

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        batch["new_name"] = batch.pop(self.key)
        return batch


@pytest.mark.parametrize("key", ["completion_mask", "completion_ids", "old_per_token_logps"])
def test_a_renamed_key_is_named_and_what_is_lost_is_counted(home: Path, key: str) -> None:
    """Current log-probs must not pass for old ones."""
    trainer = Renamed(key)
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}] * 4)
    trainer._compute_loss(trainer.model, {"completion_ids": None, **batch})
    recorder.close()
    assert not rows(home, "training")
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
    assert (report["severity"], report["sequences"]) == ("warning", 4)


@pytest.mark.parametrize("key", ["sampling_per_token_logps", "advantages"])
def test_a_renamed_key_that_is_not_needed_costs_itself_only(home: Path, key: str) -> None:
    trainer = Renamed(key)
    recorder = trl.watch(trainer, home=home, run="run")
    batch = trainer._generate_and_score_completions([{}] * 4)
    trainer._compute_loss(trainer.model, batch)
    recorder.close()
    assert len(rows(home, "training")) == 4
    assert all(row["trainer_logprobs"] for row in rows(home, "training"))
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
