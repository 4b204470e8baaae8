"""verl's adapter on batches that verl 0.9.1's own loops produced (`verl_program.py`, option "store"); `make campaign NAME=verl` runs the loops.

The trainers here have verl's method names and hand out the stored tensors.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.integrations import verl

FOLDER = Path(__file__).parent


class Config(dict):
    """Answers as OmegaConf does."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


CONFIG = Config(
    actor_rollout_ref=Config(rollout=Config(temperature=1.0, top_p=0.9), actor=Config(clip_ratio=0.2)),
    algorithm=Config(adv_estimator="grpo", rollout_correction=Config(bypass_mode=False)),
    trainer=Config(experiment_name="from-verl", use_v1=True),
)


def stored(version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and the rest of a batch; nested tensors are nested again."""
    with np.load(FOLDER / f"verl_0_9_1_{version}.npz") as arrays:
        found = {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "labels"}
        labels = json.loads(str(arrays["labels"]))
    nested = [name.removesuffix(".values") for name in found if name.endswith(".values")]
    for name in nested:
        lengths = found.pop(f"{name}.lengths").tolist()
        found[name] = torch.nested.as_nested_tensor(
            list(found.pop(f"{name}.values").split(lengths)), layout=torch.jagged
        )
    return found, labels


class Checkpoints:
    def update_weights(self, global_steps: int) -> None: ...


class V0:
    """Method names of `RayPPOTrainer`."""

    def __init__(self, config: Any = CONFIG) -> None:
        self.config, self.global_steps, self.checkpoint_manager = config, 1, Checkpoints()
        tensors, labels = stored("v0")
        self.batch = SimpleNamespace(batch=tensors, non_tensor_batch={k: np.array(v) for k, v in labels.items()})

    def fit(self) -> None:
        self.checkpoint_manager.update_weights(0)
        self._compute_old_log_prob(self.batch)
        mask = self.batch.batch["response_mask"].clone()
        mask[:, 0] = 0  # rejection
        self.batch.batch["response_mask"] = mask
        self._update_actor(self.batch)

    def _compute_old_log_prob(self, batch: Any) -> Any:
        return SimpleNamespace(batch={"entropys": torch.full(batch.batch["responses"].shape, 2.0)}), 0.0

    def _update_actor(self, batch: Any) -> str:
        self.updated = dict(batch.batch)
        return "metrics"


class Tracking:
    def log(self, data: Any, step: int, backend: Any = None) -> None: ...


class Queue(ModuleType):
    """The TransferQueue as a dictionary."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__("transfer_queue")
        self.tensors = tensors

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {name: self.tensors[name] for name in select_fields if name in self.tensors}


class V1:
    """Method names of v1's `PPOTrainer`."""

    def __init__(self) -> None:
        self.config, self.global_steps = CONFIG, 1

    def _setup(self) -> None:
        self.checkpoint_manager = Checkpoints()

    def fit(self, agent_loop_manager: Any) -> None: ...

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch


@pytest.fixture
def watched(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """verl's modules, of that name, with the trainers above; the plugin is loaded as verl loads it."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    v0, v1, tracking = (type(c.__name__, (c,), dict(vars(c))) for c in (V0, V1, Tracking))
    queue = Queue(stored("v1")[0])
    modules = {
        verl.V0: {"RayPPOTrainer": v0},
        verl.V1: {"PPOTrainer": v1, "tq": queue},
        verl.TRACKING: {"Tracking": tracking},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    entry = tomllib.loads((FOLDER.parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    sys.modules.pop(entry["logprobe"], None)
    monkeypatch.setattr(verl, "_REGISTERED", [])
    importlib.import_module(entry["logprobe"])
    return SimpleNamespace(v0=v0, v1=v1, tracking=tracking, queue=queue)


def finish() -> None:
    """Everything recorded is on disk."""
    import gc

    for recorder in [found for found in gc.get_objects() if type(found).__name__ == "Recorder"]:
        recorder.close()


def test_v0_records_the_batch_as_it_was_before_rejection(home: Path, watched: Any) -> None:
    trainer = watched.v0()
    trainer.fit()
    watched.tracking().log({"actor/entropy": np.float32(0.5), "val-core/acc": 1.0, "name": "x"}, step=1)
    finish()
    tensors, labels = stored("v0")
    trained = by_sample(home, "training")
    assert len(trained) == 16
    assert not rows(home, "rollout")  # the engine's plugin has them, under its own names
    counts: dict[str, int] = {}
    for place, group in enumerate(labels["uid"]):
        name = f"verl-1-{group}-{counts.setdefault(group, 0)}"
        counts[group] += 1
        row, valid = trained[name], tensors["response_mask"][place].bool()
        assert row["step"] == 1
        assert row["weight_version"] == "0"
        assert row["group_id"] == group
        assert row["token_ids"] == tensors["responses"][place][valid].tolist()
        assert row["trainer_logprobs"] == tensors["old_log_probs"][place][valid].tolist()
        assert row["rollout_logprobs"] == tensors["rollout_log_probs"][place][valid].tolist()
        assert row["advantages"] == tensors["advantages"][place][valid].tolist()
        assert row["entropy"] == [2.0] * int(valid.sum())
        assert row["reward"] == pytest.approx(float(tensors["token_level_scores"][place].sum()))
    (step,) = rows(home, "step")
    assert dict(step["scalars"]) == {"actor/entropy": 0.5}
    assert [row["version"] for row in rows(home, "weights")] == ["0"]
    assert trainer.updated.keys() == tensors.keys()  # nothing was added to what verl updates with


def test_v1_records_rows_of_the_queue_without_padding(home: Path, watched: Any) -> None:
    tensors, labels = stored("v1")
    trainer = watched.v1()
    trainer._setup()
    tags = [{**tag, "is_padding": place == 15} for place, tag in enumerate(labels["tags"])]
    tags[0]["max_global_steps"] = 3  # the weights changed on the way: no version
    trainer._compute_advantage(SimpleNamespace(keys=labels["keys"], tags=tags, partition_id="train"), metrics={})
    finish()
    trained = by_sample(home, "training")
    assert set(trained) == set(labels["keys"][:15])
    for place, name in enumerate(labels["keys"][:15]):
        row = trained[name]
        assert row["token_ids"] == tensors["responses"][place].tolist()
        assert row["trainer_logprobs"] == tensors["old_log_probs"][place].tolist()
        assert row["rollout_logprobs"] == tensors["rollout_log_probs"][place].tolist()
        assert row["entropy"] == tensors["entropy"][place].tolist()
        assert row["advantages"] == tensors["advantages"][place].tolist()
        assert row["group_id"] == name.rsplit("_", 2)[0]
        assert [span["version"] for span in row["rollout_versions"] or []] == ([] if place == 0 else ["0"])


def test_bypass_mode_has_nothing_to_compare(home: Path, watched: Any) -> None:
    config = Config(CONFIG, algorithm=Config(rollout_correction=Config(bypass_mode=True)))
    watched.v0(config).fit()
    finish()
    assert len(rows(home, "rollout")) == 16
    assert not rows(home, "training")
    assert "no_logprobs" in health_events(home)


def test_the_engine_of_a_changed_verl_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    module = ModuleType(verl.V0)
    module.RayPPOTrainer = type("RayPPOTrainer", (), {"fit": lambda self: None})  # type: ignore[attr-defined]
    before = dict(vars(module.RayPPOTrainer))
    monkeypatch.setitem(sys.modules, verl.V0, module)
    monkeypatch.setattr(verl, "_REGISTERED", [])
    verl.register()
    finish()
    assert dict(vars(module.RayPPOTrainer)) == before
    (report,) = health_events(home)["self_test"]
    assert "RayPPOTrainer has no method _compute_old_log_prob" in report["message"]


def test_without_a_home_a_training_goes_on_and_one_warning_says_so(
    watched: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME")
    trainer = watched.v0()
    for step in (1, 2):
        trainer.global_steps = step
        trainer.fit()
        watched.tracking().log({"actor/entropy": 0.5}, step=step)
    assert trainer.updated.keys() == stored("v0")[0].keys()
    (warning,) = caplog.messages
    assert warning.startswith("logprobe: verl: nothing is recorded: no home")


@pytest.mark.parametrize("trainer", ["v0", "v1"])
@pytest.mark.parametrize("key", ["responses", "response_mask", "old_log_probs"])
def test_a_renamed_key_is_named_and_what_is_lost_is_counted(home: Path, watched: Any, trainer: str, key: str) -> None:
    """In a later verl, under which its own loop goes on."""
    if trainer == "v0":
        begun = watched.v0()
        begun.checkpoint_manager.update_weights(0)
        begun.batch.batch["new_name"] = begun.batch.batch.pop(key)
        assert begun._update_actor(begun.batch) == "metrics"
    else:
        watched.queue.tensors["new_name"] = watched.queue.tensors.pop(key)
        labels = stored("v1")[1]
        batch = SimpleNamespace(keys=labels["keys"], tags=labels["tags"], partition_id="train")
        begun = watched.v1()
        begun._setup()
        assert begun._compute_advantage(batch, {}) is batch
    finish()
    assert not rows(home, "training")
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
    assert (report["severity"], report["sequences"]) == ("warning", 16)


@pytest.mark.parametrize(
    ("trainer", "actor", "config", "words"),
    [
        ("v0", {}, preset("mis"), None),
        ("v0", {}, preset("prime-rl/dppo"), None),
        ("v0", {"loss_agg_mode": "seq-mean-token-sum"}, preset("mis"), "denominator=renormalize"),
        ("v0", {"policy_loss": Config(loss_mode="geo_mean")}, preset("tis"), "geo_mean"),
        (
            "v0",
            {"policy_loss": Config(loss_mode="gspo"), "loss_agg_mode": "seq-mean-token-sum"},
            preset("mis"),
            "denominator=renormalize",
        ),
        ("v0", {}, CorrectionConfig(sequence_mask_delta=0.1), "sequence_mask_delta"),
        ("v1", {}, preset("mis"), "denominator=renormalize"),
    ],
)
def test_a_correction_is_applied_as_stated_or_refused(
    home: Path, watched: Any, monkeypatch: pytest.MonkeyPatch, trainer: str, actor: Any, config: Any, words: str | None
) -> None:
    monkeypatch.setenv("LOGPROBE_CORRECTION", "1")
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)
    run = CONFIG["trainer"]["experiment_name"]
    DirectiveFile(home, run).write(Directives(run).issue(1, config, "a test"), None)
    rollout = Config(CONFIG["actor_rollout_ref"], actor=Config(actor))
    if trainer == "v0":
        begun = watched.v0(Config(CONFIG, actor_rollout_ref=rollout))
        begun.fit()
        assert ("rollout_is_weights" in begun.updated) == (words is None)
    else:
        labels = stored("v1")[1]
        batch = SimpleNamespace(keys=labels["keys"], tags=labels["tags"], partition_id="train")
        watched.queue.kv_batch_put = pytest.fail
        begun = watched.v1()
        begun._setup()
        begun._compute_advantage(batch, {})
    finish()
    acknowledged = [row for row in rows(home, "step") if row["correction"]]
    assert bool(acknowledged) == (words is None)
    if words is not None:
        assert words in health_events(home)["correction_impossible"][0]["message"]
