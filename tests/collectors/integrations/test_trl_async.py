"""TRL's asynchronous GRPO on batches packed as TRL 1.16 packs them; `make campaign NAME=trl` trains with TRL's own trainer, worker and a real server.

The trainer here is a stand-in: it has TRL's method names, queue and collator, and nothing else of them.
"""

from __future__ import annotations

import queue
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations import trl
from logprobe.collectors.integrations.trl_async import AsyncWatch
from logprobe.collectors.recorder.recorder import Recorder


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


class StandIn:
    """What `watch` reads of an AsyncGRPOTrainer."""

    def __init__(self) -> None:
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1, mixed_precision="no", is_main_process=True)
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

    def step(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Trains on as many samples per rank; → what each rank's loss got."""
        loader, taken = self.get_train_dataloader(), []
        for size in sizes:
            found = [self.rollout_queue.get() for _ in range(size)]
            names = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id", "metrics")
            taken.append(SimpleNamespace(samples=[{name: getattr(each, name) for name in names} for each in found]))
        batch = loader.collate_fn.torch_call([taken])
        parts = [{name: value[rank : rank + 1] for name, value in batch.items()} for rank in range(len(sizes))]
        for part in parts:
            assert self.compute_loss(self.model, part) == 0.25
        self.state.global_step += 1
        self._sync_weight_merged(0.0)
        self.log({})
        return parts


def test_what_ranks_train_on_is_recorded_with_what_trl_drops_on_the_way(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run")
    trainer._sync_weight_merged(0.0)
    for completion in ([1, 2, 3], [4], [5, 1]):
        trainer.sample(completion, version=1, handed_over=time.time())
    trainer.step([2, 1])  # two ranks: one has two samples
    recorder.close()
    found = sorted(by_sample(home, "training").values(), key=lambda row: row["token_ids"])
    assert [list(row["token_ids"]) for row in found] == [[1, 2, 3], [4], [5, 1]]
    for row in found:
        tokens = np.array(row["token_ids"])
        assert row["trainer_logprobs"] == pytest.approx(-tokens / 10)
        assert row["rollout_logprobs"] == pytest.approx(-tokens / 10 - 0.01)
        assert row["reward"] == pytest.approx(len(tokens) / 10)
        assert (row["step"], row["weight_version"], row["group_id"]) == (1, "0", "5")
    assert rows(home, "step")[-1]["step"] == 1
    assert not health_events(home).get("missing_key")


@pytest.mark.parametrize(
    "laid_out", [np.array, torch.from_numpy, lambda values: values.tolist()], ids=["array", "tensor", "list"]
)
def test_a_version_is_stated_only_where_it_is_certain(home: Path, laid_out: Any) -> None:
    """A request in flight goes on under new weights, and TRL's sample says only which ones were live when its group began."""
    trainer = StandIn()
    trainer.laid_out = laid_out
    recorder = trl.watch(trainer, home=home, run="run")
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
    assert {token for token, versions in found.items() if versions is None} == {2, 3, 5}
    assert "0" in str(found[1])
    assert "3" in str(found[4])


def test_the_clock_of_a_worker_that_is_not_trl_s_own_is_not_believed(home: Path) -> None:
    trainer = StandIn()
    trainer.rollout_worker = object()
    recorder = trl.watch(trainer, home=home, run="run")
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
    trainer, recorder = StandIn(), Recorder(home=home, run="run")
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


def test_a_correction_is_refused_and_a_renamed_key_is_named(home: Path) -> None:
    trainer = StandIn()
    recorder = trl.watch(trainer, home=home, run="run", correction=True)
    trainer._sync_weight_merged(0.0)
    trainer.sample([1, 2], version=1, handed_over=time.time())
    (part,) = trainer.step([1])
    trainer.compute_loss(trainer.model, {name: value for name, value in part.items() if name != "advantages"})
    recorder.close()
    events = health_events(home)
    assert "no importance weights" in events["correction_impossible"][0]["message"]
    assert "advantages" in events["missing_key"][0]["message"]
    assert len(by_sample(home, "training")) == 1


def test_a_trainer_of_another_shape_is_left_alone(home: Path) -> None:
    class Later(StandIn):
        _sync_weight_merged = None  # type: ignore[assignment]

    trainer = Later()
    recorder = trl.watch(trainer, home=home, run="run")
    assert "compute_loss" not in vars(trainer)
    recorder.close()
    assert "has no method _sync_weight_merged" in health_events(home)["self_test"][0]["message"]
