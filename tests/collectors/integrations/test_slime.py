"""slime's, miles's and vime's functions on samples that slime's own code (commit 624b824a8) built, appended to and converted for training.

slime itself needs Megatron, SGLang and GPUs, and is not on PyPI. Log-probs of the trainer are made up here, and so are the modules `megatron.core.mpu`
and `miles.backends`: they have the names and signatures of the real ones, and nothing else of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.integrations import miles, slime, vime

STORED = json.loads(Path(__file__).with_name("slime_624b824a8.json").read_text())
ARGS = SimpleNamespace(**STORED["args"])


def samples() -> list[Any]:
    made = [SimpleNamespace(**sample) for sample in STORED["samples"]]
    for sample in made:
        sample.prefix_cache_info = SimpleNamespace(**sample.prefix_cache_info)
    return made


def train_data() -> dict[str, Any]:
    """As a data-parallel rank has it at the hook: lists of tensors, with the trainer's log-probs and advantages."""
    data = dict(STORED["train_data"])
    data["tokens"] = [torch.tensor(row) for row in data["tokens"]]
    data["loss_masks"] = [torch.tensor(row) for row in data["loss_masks"]]
    data["rollout_log_probs"] = [torch.tensor(row) for row in data["rollout_log_probs"]]
    data["log_probs"] = [row - 0.01 for row in data["rollout_log_probs"]]
    data["ref_log_probs"] = [row - 0.02 for row in data["rollout_log_probs"]]
    data["advantages"] = [torch.full_like(row, 0.5) for row in data["log_probs"]]
    data["local_raw_reward"] = data["raw_reward"]
    return data


@pytest.fixture
def adapter(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """slime's hooks of a new process."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "run")
    made = slime.Adapter("slime")
    monkeypatch.setattr(slime, "_ADAPTER", made)
    return made


def megatron(monkeypatch: pytest.MonkeyPatch, *, tp: int = 0, cp: int = 0, last: bool = True, pieces: int = 1) -> None:
    mpu = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: tp,
        get_context_parallel_rank=lambda: cp,
        is_pipeline_last_stage=lambda: last,
        get_context_parallel_world_size=lambda: pieces,
    )
    for name in ("megatron", "megatron.core"):
        module = ModuleType(name)
        module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
        module.mpu = mpu  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)


def test_both_sides_meet_under_one_name(home: Path, adapter: Any) -> None:
    assert not adapter.rollout(3, ARGS, samples(), {}, 1.0)  # slime logs what it logs
    slime.train(ARGS, 3, train_data())
    adapter._process.recorder.close()
    sampled, trained = by_sample(home, "rollout"), by_sample(home, "training")
    assert set(sampled) == set(trained) == {f"3/{index}" for index in (100, 101, 102, 103)}
    data = train_data()
    for place, sample in enumerate(STORED["samples"]):
        length, name = sample["response_length"], f"3/{sample['index']}"
        assert trained[name]["step"] == 3
        assert trained[name]["token_ids"] == sample["tokens"][-length:]
        assert trained[name]["mask"] in (sample["loss_mask"], [bool(m) for m in sample["loss_mask"]], None)
        assert trained[name]["trainer_logprobs"] == data["log_probs"][place].tolist()
        assert trained[name]["reference_logprobs"] == data["ref_log_probs"][place].tolist()
        assert trained[name]["reward"] == sample["reward"]
        assert trained[name]["weight_version"] == "1"  # the first rollout after a start at 3
        assert len(sampled[name]["logprobs"]) == sum(sample["loss_mask"])  # a tool's answer was not sampled
        assert sampled[name]["finish_reason"] == sample["status"]
        assert sampled[name]["prompt_length"] == 5
    versions = {name: [span["version"] for span in row["spans"] or []] for name, row in sampled.items()}
    assert versions == {"3/100": ["5"], "3/101": [], "3/102": ["5"], "3/103": ["5"]}
    assert [sampled[f"3/{index}"]["cached_prefix_tokens"] for index in (100, 101)] == [3, None]


@pytest.mark.parametrize("place", [{"tp": 1}, {"last": False}, {"cp": 1, "pieces": 2}])
def test_other_ranks_of_one_data_parallel_group_record_nothing(
    home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch, place: dict[str, Any]
) -> None:
    megatron(monkeypatch, **place)
    slime.train(ARGS, 3, train_data())
    assert adapter._process.recorder is None
    assert not home.exists()


def test_sequences_in_pieces_are_said_not_recorded(home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch, pieces=2)
    slime.train(ARGS, 3, train_data())
    adapter._process.recorder.close()
    assert not rows(home, "training")
    assert "context parallelism" in health_events(home)["no_logprobs"][0]["message"]


def test_a_step_without_logprobs_says_which_option_is_missing(home: Path, adapter: Any) -> None:
    data = train_data()
    del data["log_probs"]
    slime.train(ARGS, 3, data)
    adapter._process.recorder.close()
    assert not rows(home, "training")
    assert "--get-mismatch-metrics" in health_events(home)["no_logprobs"][0]["message"]


@pytest.mark.parametrize("key", ["tokens", "response_lengths", "loss_masks", "sample_indices"])
def test_a_renamed_key_is_named_and_what_is_lost_is_counted(home: Path, adapter: Any, key: str) -> None:
    data = train_data()
    data["new_name"] = data.pop(key)
    slime.train(ARGS, 3, data)
    adapter._process.recorder.close()
    assert not rows(home, "training")
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
    assert (report["severity"], report["sequences"]) == ("warning", 4)


@pytest.mark.parametrize("framework", ["slime", "miles", "vime"])
def test_without_a_home_a_training_goes_on_and_one_warning_says_so(
    framework: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME", raising=False)
    made = slime.Adapter(framework)
    for step in (3, 4):
        assert not made.rollout(step, ARGS, samples())
        made.train(ARGS, step, train_data(), slime.Place(records=True, pieces=1))
    (warning,) = caplog.messages
    assert warning.startswith(f"logprobe: {framework}: nothing is recorded: no home")


def test_broken_data_never_reach_slime(home: Path, adapter: Any) -> None:
    slime.train(ARGS, 3, {**train_data(), "response_lengths": None})
    adapter.rollout(3, ARGS, [SimpleNamespace()])
    adapter._process.recorder.close()
    assert not rows(home, "training")
    assert {"bad_input", "internal_error"} & set(health_events(home))


def test_tis_passes_the_loss_through_until_the_controller_switches(
    home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)  # for the first look, on a busy machine
    slime.train(ARGS, 3, train_data())
    data = train_data()
    data["rollout_log_probs"][0] = data["rollout_log_probs"][0] - 5.0  # a ratio that a mask rejects
    count = sum(len(row) for row in data["log_probs"])
    named = {
        "pg_loss": torch.ones(count),
        "train_log_probs": data["log_probs"],
        "rollout_log_probs": data["rollout_log_probs"],
        "loss_masks": data["loss_masks"],
        "total_lengths": [],
        "response_lengths": data["response_lengths"],
    }
    assert slime.tis(ARGS, **named) == (named["pg_loss"], named["loss_masks"], {})
    config = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0)
    DirectiveFile(home, "run").write(Directives("run").issue(4, config, "a test"), None)
    adapter._corrector = None
    slime.train(ARGS, 4, train_data())
    loss, masks, _ = slime.tis(ARGS, **named)
    adapter._process.recorder.close()
    first = len(data["log_probs"][0])
    assert loss[:first].tolist() == [0.0] * first
    assert loss[first:][torch.cat(data["loss_masks"][1:]).bool()].tolist() == pytest.approx([0.99005] * 20, abs=1e-4)
    assert masks is named["loss_masks"]
    (row,) = [row for row in rows(home, "step") if row["correction"]]
    assert row["step"] == 4


def test_a_correction_that_slimes_divisor_does_not_allow_is_refused(
    home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slime divides by tokens that it has counted before over all micro-batches: the loss would be that of `keep`."""
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)
    DirectiveFile(home, "run").write(Directives("run").issue(3, preset("mis"), "a test"), None)
    data = train_data()
    slime.train(ARGS, 3, data)
    named = {
        "pg_loss": torch.ones(sum(len(row) for row in data["log_probs"])),
        "train_log_probs": data["log_probs"],
        "rollout_log_probs": data["rollout_log_probs"],
        "loss_masks": data["loss_masks"],
    }
    assert slime.tis(ARGS, **named) == (named["pg_loss"], named["loss_masks"], {})
    adapter._process.recorder.close()
    assert "denominator=renormalize" in health_events(home)["correction_impossible"][0]["message"]
    assert not [row for row in rows(home, "step") if row["correction"]]


def test_miles_logs_what_is_recorded(home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """miles hands no data to its hook: the function that logs them next is wrapped, once."""
    logged: list[int] = []
    actor = ModuleType(miles.ACTORS[0])
    actor.log_rollout_data = lambda rollout_id, args, rollout_data: logged.append(rollout_id)  # type: ignore[attr-defined]
    state = SimpleNamespace(tp=SimpleNamespace(rank=0), cp=SimpleNamespace(rank=0, size=1), is_pp_last_stage=True)
    parallel = ModuleType("miles.backends.training_utils.parallel")
    parallel.get_parallel_state = lambda: state  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, actor.__name__, actor)
    monkeypatch.setitem(sys.modules, parallel.__name__, parallel)
    made = slime.Adapter("miles")
    monkeypatch.setattr(miles, "_ADAPTER", made)
    monkeypatch.setattr(miles, "_WRAPPED", set())
    for step in (0, 1):
        miles.train(ARGS)
        actor.log_rollout_data(step, ARGS, train_data())
    state.tp.rank = 1
    actor.log_rollout_data(2, ARGS, train_data())
    made._process.recorder.close()
    assert logged == [0, 1, 2]
    trained = by_sample(home, "training")
    assert {row["step"] for row in trained.values()} == {0, 1}
    assert all(row["weight_version"] is None for row in trained.values())


def test_vime_has_the_data_of_slime(home: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which weights trained is unknown there; its own correction is called under its own name."""
    made = slime.Adapter("vime")
    monkeypatch.setattr(vime, "_ADAPTER", made)
    megatron(monkeypatch)
    assert not made.rollout(3, ARGS, samples(), {}, 1.0)
    vime.train(ARGS, 3, train_data())
    loss = ModuleType("vime.backends.megatron_utils.loss")
    loss.vanilla_tis_function = lambda args, **named: ("own", named["loss_masks"], {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, loss.__name__, loss)
    named = {"pg_loss": torch.ones(3), "loss_masks": [torch.ones(3)]}
    assert vime.tis(SimpleNamespace(use_tis=True), **named)[0] == "own"
    assert vime.tis(SimpleNamespace(use_tis=False), **named)[0] is named["pg_loss"]
    made._process.recorder.close()
    sampled, trained = by_sample(home, "rollout"), by_sample(home, "training")
    assert set(sampled) == set(trained) == {f"3/{index}" for index in (100, 101, 102, 103)}
    assert all(row["weight_version"] is None for row in trained.values())
    assert "vime is recorded" in health_events(home)["self_test"][0]["message"]
