"""ms-swift as it is, trained for a few steps with a real engine, recorded by its external plugin: `make campaign NAME=frameworks`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from correction_cases import CASES, factors, reduced
from training import Trained, agree, check_checkpoints
from training import train as train_with

from logprobe.monitor.reader import open_reader

PROGRAM = Path(__file__).with_name("ms_swift_program.py")
SAME = {
    "entropy/mean": "entropy by completion",
    "reward": "reward",
    "clip_ratio/region_mean": "update.pg_clip_fraction",
    **{
        f"rollout_correction/{name}": f"backend.{name}"
        for name in (
            "kl",
            "k3_kl",
            "training_log_ppl",
            "rollout_log_ppl",
            "log_ppl_diff",
            "log_ppl_abs_diff",
            "log_ppl_diff_max",
            "log_ppl_diff_min",
            "ppl_ratio",
            "chi2_token",
            "chi2_seq",
        )
    },
}
PERPLEXITIES = {f"rollout_correction/{name}": f"backend.{name}" for name in ("training_ppl", "rollout_ppl")}


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Any:
    """Trains; a run that is healthy but for what `options` say."""

    def run(name: str, **options: Any) -> Trained:
        return train_with(PROGRAM, tmp_path, model, name, **options)

    return run


def test_every_number_that_ms_swift_logs(train: Any, capsys: Any) -> None:
    bf16 = {"engine": "bfloat16", "arguments": {"num_iterations": 2}, "steps": 4}
    bare = train("bare", plugin=False, watch=False, **bf16)
    seen = train("seen", **bf16)
    losses = [[step.get("loss") for step in result["history"]] for result in (bare, seen)]
    assert losses[0] == losses[1]
    assert bare["random_state"] == seen["random_state"]
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3, 4]
    for step, values in ours.items():
        values["entropy by completion"] = _by_completion(seen, step)
    assert agree(ours, seen["history"], SAME) >= 50
    assert agree(ours, seen["history"], PERPLEXITIES) >= 8
    for values in ours.values():
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0
        assert values["backend.k3_kl"] > 1e-7
    assert ours[2]["update.k3_kl"] > 0


def _by_completion(seen: Trained, step: int) -> float:
    """Mean over completions of the mean entropy of each, as ms-swift logs it; logprobe's `entropy` is the mean over tokens."""
    with open_reader(seen["home"]) as reader:
        sql = "SELECT avg(entropy_sum / entropy_n) AS mean FROM training_sequences WHERE step = $step"
        return float(reader.query(sql, {"step": step})["mean"][0].as_py())


def test_a_reference_model(train: Any, capsys: Any) -> None:
    """Transformers samples here: nothing of an engine is made up."""
    settings = {"beta": 0.05, "use_vllm": "false", "vllm_mode": None, "log_rollout_offpolicy_metrics": "false"}
    seen = train("reference", arguments=settings)
    ours = seen.steps(capsys)
    assert agree(ours, seen["history"], {"kl": "reference.k3_kl"}) == 3
    assert ours[3]["reference.k3_kl"] > 1e-6
    for values in ours.values():
        assert values["backend.k3_kl"] is None
        assert values["weight_lag_mean"] == 0


def test_the_last_good_checkpoint_of_a_real_training(train: Any, capsys: Any) -> None:
    """`save_total_limit` deletes the older ones: what an incident names is still there."""
    plain = {"use_vllm": "false", "vllm_mode": None, "log_rollout_offpolicy_metrics": "false"}
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    seen = train("saving", steps=8, arguments=plain | saving)
    check_checkpoints(seen, capsys, seen["home"].parent / "saving" / "run", [2, 4, 6, 8], [6, 8])


def test_a_resume_of_two_ranks_under_the_same_name(train: Any, capsys: Any) -> None:
    """They go back a step: the newest attempt counts, in ms-swift's numbers."""
    plain = {"use_vllm": "false", "vllm_mode": None, "log_rollout_offpolicy_metrics": "false"}
    common = {"ranks": 2, "run": "resumed"}
    first = train("first", arguments=plain | {"save_strategy": "steps", "save_steps": 2}, **common)
    checkpoint = str(first["home"].parent / "first" / "run" / "checkpoint-2")
    second = train("second", steps=4, arguments=plain | {"resume_from_checkpoint": checkpoint}, **common)
    seen = Trained({**second, "run": "resumed"})
    ours = seen.steps(capsys)
    assert {step: values["sequences"] for step, values in ours.items()} == dict.fromkeys(range(1, 5), 8)
    again = [logged for logged in second["history"] if logged.get("step") in {3, 4}]
    assert agree(ours, again, {"reward": "reward"}) == 2
    status = " ".join(seen.logprobe(capsys, "show", "resumed").split())
    assert "trained again, and the newest attempt counts; 8 sequences" in status


def test_a_sync_that_never_arrives(train: Any, capsys: Any) -> None:
    """The engine keeps its first weights: what the adapter records is enough to see it."""
    seen = train("unsynced", steps=12, syncs=1)
    ours = seen.steps(capsys)
    assert ours[12]["backend.k3_kl"] > 100 * ours[1]["backend.k3_kl"]
    found = seen.diagnosed(capsys)
    assert found["layer"] != "none"
    assert found["correction"]["advice"] == "do_not_enable"


def _token_losses(loss: str, part: dict[str, Any], result: dict[str, Any]) -> Any:
    """Of one micro-batch [batch, time], before weights; ms-swift's formulas, in float64."""
    advantages, ratio = part["advantages"], np.exp(part["current"] - part["old"])
    if loss == "cispo":
        return -np.minimum(ratio, result["epsilon_high"]) * advantages * part["current"]
    if loss == "sapo":
        tau = np.where(advantages > 0, *result["tau"])
        return -4 / (1 + np.exp(-tau * (ratio - 1))) / tau * advantages
    return -np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1 + result["epsilon_high"]) * advantages)


@pytest.mark.parametrize(("accumulation", "iterations"), [(1, 1), (2, 2), (2, 1)])
def test_every_correction_gives_the_loss_of_a_hand_computation(
    model: Path, tmp_path: Path, accumulation: int, iterations: int
) -> None:
    """Or is refused, and then ms-swift's loss is its own and nothing is acknowledged."""
    arguments = {
        "gradient_accumulation_steps": accumulation,
        "num_iterations": iterations,
        "rollout_importance_sampling_mode": "token_truncate",
    }
    result = train_with(PROGRAM.with_name("ms_swift_losses.py"), tmp_path, model, "losses", arguments=arguments)
    names = ("current", "old", "rollout", "mask", "advantages")
    with np.load(tmp_path / "losses" / "arrays.npz") as stored:
        parts = [{name: stored[f"{name}{place}"].astype(float) for name in names} for place in range(accumulation)]
    masks = [part["mask"] for part in parts]
    applied, dropped = 0, set()
    for loss, name in product(result["losses"], CASES):
        config, found = CASES[name], result["losses"][loss][name]
        unable = name == "off-policy sequences" or (config.normalize and accumulation > 1)
        if unable or (config.denominator == "renormalize" and loss == "dr_grpo"):
            plain = result["losses"][loss]["none"]
            assert (found, result["events"][loss][name]) == (plain, ["correction_impossible"]), (loss, name)
            continue
        assert result["events"][loss][name] == ["acknowledged"], (loss, name)
        weighted, kept = [], []
        for part, mask in zip(parts, masks, strict=True):
            weights, keep = factors(config, part["rollout"], part["old"], mask, part["advantages"][:, 0])
            weighted.append(weights * _token_losses(loss, part, result))
            dropped |= {name} if 0 < keep.sum() < mask.sum() else set()
            kept.append(keep if config.denominator == "renormalize" else mask)
        expected = [
            accumulation * value for value in reduced(loss, weighted, masks, kept, 24)
        ]  # the trainer divides later
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), (loss, name)
        applied += 1
    assert applied > 200
    assert len(dropped) > 20  # of these, some tokens are left and some are not
