"""PipelineRL's hooks on modules with its names, signatures and layouts (58d39345), and nothing else of it; its own code runs in `make campaign NAME=pipelinerl`."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations import pipelinerl, wrapped

TEMPERATURE = 0.5
PACKED = [[3, 4, 5, 6], [3, 7, 8]]  # two sequences, a prompt of one and of two tokens
LABELS = [[-100, 4, 5, 6], [-100, -100, 8]]


@pytest.fixture(autouse=True)
def _fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "run")
    monkeypatch.setattr(pipelinerl, "_WATCH", wrapped.Watch("pipelinerl"))
    monkeypatch.setattr(pipelinerl, "_NOW", pipelinerl._Progress())


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


def batch(tokens: list[list[int]], labels: list[list[int]], **more: Any) -> Any:
    ids = torch.tensor(tokens)
    like = torch.zeros(ids.shape)
    fields = {
        "input_ids": ids, "labels": torch.tensor(labels), "old_logprobs": like - 1.5, "ref_logprobs": like, "rewards": like + 0.25,
        "advantages": like + 2, "attention_mask": torch.ones_like(ids), "sentinel": False, "is_packed": False, "seq_boundaries": None, "model_version": 8,
    }  # fmt: skip
    return SimpleNamespace(**fields | more)


def packed(**more: Any) -> Any:
    tokens, labels = ([n for row in each for n in row] for each in (PACKED, LABELS))
    return batch([tokens], [labels], is_packed=True, seq_boundaries=torch.tensor([0, 4, 7], dtype=torch.int), **more)


class Trainer:
    """What PipelineRL's loop calls, with our hooks."""

    def __init__(self, **settings: Any) -> None:
        class WeightUpdateManager:
            def send_weight_update(self, version: int) -> None: ...

        self.modules = ModuleType("rl"), ModuleType("finetune_loop"), ModuleType("logging_")
        self.modules[0].rl_step = rl_step
        self.modules[1].WeightUpdateManager = WeightUpdateManager
        self.modules[2].log_metrics = lambda logger, completed_steps, metrics: None
        hooks = pipelinerl.loss, pipelinerl.weights, pipelinerl.scalars
        for hook, module in zip(hooks, self.modules, strict=True):
            hook(module)
        self.model, self.config = (
            Model(),
            Config(**{"temperature": TEMPERATURE, "kl_coef": 0.0, "final_kl_coef": 0.0} | settings),
        )

    def micro_batch(self, given: Any, completed: int, **named: Any) -> Any:
        return self.modules[0].rl_step(self.model, given, completed, 9, self.config, **named)[0].detach()

    def send(self, version: int) -> None:
        self.modules[1].WeightUpdateManager().send_weight_update(version)

    def log(self, step: int, **metrics: Any) -> None:
        self.modules[2].log_metrics(None, step, metrics)


def closed() -> None:
    pipelinerl._WATCH.process.recorder.close()


def test_packed_micro_batches(home: Path) -> None:
    trainer = Trainer()
    trainer.send(0)
    chosen = trainer.micro_batch(packed(), 0, seq_parallel_group=None)[0].tolist()
    trainer.micro_batch(packed(), 0)
    trainer.log(1, **{"rl/loss": 0.5, "text": "x"})
    closed()
    trained = by_sample(home, "training")
    assert set(trained) == {f"pipelinerl-0-1-{n}" for n in range(4)}
    first, second = trained["pipelinerl-0-1-0"], trained["pipelinerl-0-1-1"]
    assert (first["token_ids"], second["token_ids"]) == ([4, 5, 6], [8])
    assert first["trainer_logprobs"] == chosen[:3]  # exactly what the loss was computed with
    assert second["trainer_logprobs"] == chosen[5:]
    assert (first["rollout_logprobs"], first["reward"], first["advantages"]) == ([-1.5] * 3, 0.25, [2.0] * 3)
    assert (first["step"], first["weight_version"], first["reference_logprobs"]) == (1, "0", None)
    assert [row["version"] for row in rows(home, "weights")] == ["0"]
    assert [dict(row["scalars"]) for row in rows(home, "step")] == [{"rl/loss": 0.5}]


def test_rows_that_are_padded(home: Path) -> None:
    labels = [[-100, 4, 5, 6], [-100, -100, -100, 8], [-100] * 4]  # of the last one nothing is trained on
    given = batch([[3, 4, 5, 6], [0, 3, 7, 8], [0, 0, 3, 9]], labels)
    given.attention_mask = (given.input_ids != 0).long()
    given.rewards *= given.attention_mask
    chosen = Trainer(kl_coef=0.1).micro_batch(given, 4)
    closed()
    trained = by_sample(home, "training")
    assert trained["pipelinerl-0-5-0"]["trainer_logprobs"] == chosen[0].tolist()
    assert trained["pipelinerl-0-5-1"]["trainer_logprobs"] == chosen[1, 2:].tolist()
    assert [row["reward"] for row in trained.values()] == [0.25] * 3
    assert trained["pipelinerl-0-5-0"]["reference_logprobs"] == [0.0] * 3


def test_weights_that_have_no_version_get_none(home: Path) -> None:
    """Weights are sent after some steps only; what is trained in between has no name."""
    trainer = Trainer()
    trainer.send(0)
    for completed, sent in enumerate([8, None, 24, None]):
        trainer.micro_batch(packed(sentinel=completed == 1), completed)  # a rank may have nothing but padding in a step
        if sent is not None:
            trainer.send(sent)
    closed()
    found = {row["step"]: row["weight_version"] for row in by_sample(home, "training").values()}
    assert found == {1: "0", 3: None, 4: "24"}
    assert [(row["version"], row["step"]) for row in rows(home, "weights")] == [("0", None), ("8", 1), ("24", 3)]


def test_pieces_of_sequences_are_not_recorded_and_that_is_said(home: Path) -> None:
    trainer = Trainer()
    trainer.micro_batch(packed(), 0, seq_parallel_group=object())
    closed()
    assert not rows(home, "training")
    (report,) = health_events(home)["no_logprobs"]
    assert "seq_parallel" in report["message"]


def test_a_loss_that_fails_leaves_nothing_behind(home: Path) -> None:
    trainer = Trainer()
    broken = packed()
    broken.input_ids = broken.input_ids.float()  # no indices
    with pytest.raises(IndexError):
        trainer.micro_batch(broken, 0)
    trainer.micro_batch(packed(), 0)
    closed()
    assert not trainer.model._forward_hooks
    assert len(by_sample(home, "training")) == 2


def test_the_processes_of_the_launcher_get_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """PipelineRL's launcher replaces `PYTHONPATH`."""

    class WorldMap:
        def __init__(self, cfg: Any, verbose: bool = False) -> None:
            self.path = os.environ["PYTHONPATH"]

    module = ModuleType("world")
    vars(module)["WorldMap"] = WorldMap
    pipelinerl.world(module)
    site = str(Path(pipelinerl.__file__).with_name("site"))
    for path in ("/somewhere", f"{site}{os.pathsep}/somewhere"):
        monkeypatch.setenv("PYTHONPATH", path)
        assert module.WorldMap({}, verbose=True).path == f"{site}{os.pathsep}/somewhere"


def test_another_signature_is_left_alone_and_said(home: Path) -> None:
    module = ModuleType("rl")
    vars(module)["rl_step"] = original = lambda model, batch: None
    pipelinerl.loss(module)
    assert module.rl_step is original
    closed()
    (report,) = health_events(home)["self_test"]
    assert "rl_step has no parameter current_step" in report["message"]


def test_without_a_home_a_training_goes_on_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME")
    trainer = Trainer()
    for step in (0, 1):
        trainer.micro_batch(packed(), step)
        trainer.send(step)
        trainer.log(step + 1, loss=0.5)
    (warning,) = caplog.messages
    assert warning.startswith("logprobe: pipelinerl: nothing is recorded: no home")
