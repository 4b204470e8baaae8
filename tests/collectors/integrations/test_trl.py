"""What TRL alone has: engines that are loaded at some generations, tools, evaluation, RLOO, asynchronous samples. The rest
is in `tests/conformance`; `make campaign NAME=trl` trains with TRL's own trainers, worker and a real server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.hf_hosts import GENERATION, AsyncGrpo, Grpo
from conformance.host import arrays
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations import trl
from logprobe.collectors.integrations.trl_async import AsyncWatch
from logprobe.collectors.recorder.recorder import Recorder


def watched(home: Path, trainer: Any, **options: Any) -> tuple[Any, Recorder]:
    return trainer, trl.watch(trainer, home=home, run="run", **options)


def versions(row: dict[str, Any]) -> list[str]:
    return [span["version"] for span in row["rollout_versions"]]


def test_an_engine_that_is_loaded_at_some_generations_lags(home: Path) -> None:
    """The old log-probs are of the step's own weights, whatever the engine has."""
    trainer, recorder = watched(home, Grpo())
    first = trainer.step()
    trainer.loads = False
    second = trainer.step()
    trainer.callbacks[0].on_train_end(trainer.args, trainer.state)
    trained = by_sample(home, "training")
    for batch, version in ((first, "6"), (second, "7")):
        for name in batch["logprobe_names"]:
            assert (trained[name]["weight_version"], versions(trained[name])) == (version, ["6"])
    recorder.close()


def test_tools_output_counts_nowhere(home: Path) -> None:
    trainer, recorder = watched(home, Grpo())
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
    trainer, recorder = watched(home, Grpo())
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
        assert (trained[name]["step"], trained[name]["weight_version"], versions(trained[name])) == (8, "6", ["6"])
        assert trained[name]["reference_logprobs"] == batch["ref_per_token_logps"][place][valid].tolist()


def test_rloo_scores_the_policy_and_then_the_reference(home: Path) -> None:
    """It keeps only sums of either: what its forward passes returned is recorded."""

    class RLOOTrainer(Grpo):
        forward = arrays(GENERATION, "_get_per_token_logps_and_entropies.")["logps"]
        passes = iter([forward, forward - 0.5, forward + 0.125])  # the policy, the reference, the policy in the loss

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any
        ) -> Any:
            return next(self.passes), None, None

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            for _ in range(2):
                self._get_per_token_logps_and_entropies(self.model, None, None, 1)
            return {**{name: batch[name] for name in batch if "old" not in name}, "old_logps": self.forward.sum(1)}

    trainer, recorder = watched(home, RLOOTrainer())
    batch = trainer.step()
    recorder.close()
    trained = by_sample(home, "training")
    for place, name in enumerate(batch["logprobe_names"]):
        valid = batch["completion_mask"][place].bool()
        for side, shift in (("trainer", 0.0), ("reference", -0.5), ("current", 0.125)):
            assert trained[name][f"{side}_logprobs"] == (trainer.forward + shift)[place][valid].tolist()
    assert "missing_key" not in health_events(home)


def test_evaluation_is_not_recorded(home: Path) -> None:
    trainer, recorder = watched(home, Grpo())
    trainer.model.training = False
    trainer.logged = {"eval_loss": 0.5}
    trainer.step()
    recorder.close()
    assert not rows(home, "training")
    assert not rows(home, "step")


def test_a_loss_that_keeps_no_logprobs_is_said(home: Path) -> None:
    """Unsloth's fused loss returns None for both."""
    trainer = Grpo()
    trainer._get_per_token_logps_and_entropies = lambda model, input_ids, attention_mask, logits_to_keep: (None,) * 3
    trainer.args.use_vllm = False  # else it computes old log-probs
    trainer, recorder = watched(home, trainer)
    batch = trainer._generate_and_score_completions([{}])
    trainer._compute_loss(trainer.model, batch)  # old log-probs are still there
    batch.pop("old_per_token_logps")
    trainer._compute_loss(trainer.model, batch)
    recorder.close()
    assert len(rows(home, "training")) == len(batch["logprobe_names"])
    assert all(row["current_logprobs"] is None and row["entropy"] is None for row in rows(home, "training"))
    assert "no_logprobs" in health_events(home)


def test_a_run_is_named_after_the_trainer_where_nobody_names_it(home: Path) -> None:
    with trl.watch(Grpo(), home=home) as recorder:
        assert recorder.run == "stand-in"


def test_a_home_that_is_a_file_does_not_end_a_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    recorder = trl.watch(Grpo(), home=tmp_path / "file")
    assert "is a file" in caplog.text
    assert not recorder.training()
    assert not recorder.step(1, loss=0.5)
    assert recorder.config({}) == ""
    assert recorder.flush()
    with recorder:
        assert recorder.health["problems"]


# --- Asynchronous GRPO ---


@pytest.mark.parametrize(
    "laid_out", [np.array, torch.from_numpy, lambda values: values.tolist()], ids=["array", "tensor", "list"]
)
def test_a_version_is_stated_only_where_it_is_certain(home: Path, laid_out: Any) -> None:
    """A request in flight goes on under new weights, and TRL's sample says only which ones were live when its group began."""
    trainer, recorder = watched(home, AsyncGrpo())
    trainer.laid_out = laid_out
    before = time.time() - 60
    trainer._sync_weight_merged(0.0)  # version 1: the weights of step 0
    trainer.state.global_step = 3
    trainer._sync_weight_merged(0.0)  # version 2: those of step 3
    after = time.time() + 60
    trainer.sample([1], version=1, handed_over=before)  # before the next update began
    trainer.sample([2], version=1, handed_over=after)  # perhaps under both
    trainer.sample([3], version=1, handed_over=None)  # a worker of one's own that does not say
    trainer.sample([4], version=2, handed_over=after)
    trainer.sample([5], version=9, handed_over=before)  # of an update that nobody has seen
    trainer.step([5])
    recorder.close()
    found = {row["token_ids"][0]: row["rollout_versions"] for row in by_sample(home, "training").values()}
    assert {token for token, spans in found.items() if spans is None} == {2, 3, 5}
    assert [found[token][0]["version"] for token in (1, 4)] == ["0", "3"]


def test_the_clock_of_a_worker_that_is_not_trl_s_own_is_not_believed(home: Path) -> None:
    trainer = AsyncGrpo()
    trainer.rollout_worker = object()
    trainer, recorder = watched(home, trainer)
    trainer._sync_weight_merged(0.0)
    trainer._sync_weight_merged(0.0)
    trainer.sample([1], version=1, handed_over=time.time() - 60)  # by a clock that may be behind
    trainer.sample([2], version=2, handed_over=time.time() - 60)
    trainer.step([2])
    recorder.close()
    found = {row["token_ids"][0]: row["rollout_versions"] for row in by_sample(home, "training").values()}
    assert found[1] is None
    assert found[2] is not None


def test_samples_that_are_gone_and_old_updates_take_no_memory(home: Path) -> None:
    trainer, recorder = AsyncGrpo(), Recorder(home=home, run="run")
    watch = AsyncWatch(trainer, recorder)
    watch.attach(correction=False)
    trainer._sync_weight_merged(0.0)
    for _ in range(2):
        trainer.sample([1], version=1, handed_over=0.0)
    trainer.rollout_queue.get()  # dropped as too old: no batch will have it
    assert len(watch._sampled) == 1
    trainer.step([1])
    assert len(watch._sampled) == 1
    for _ in range(20):
        trainer._sync_weight_merged(0.0)
    assert watch._sampled == {}
    assert len(watch._updates) <= trainer.args.max_staleness + 2
    recorder.close()
