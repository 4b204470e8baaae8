"""TRL as it is, trained for a few steps with a real engine, watched by two lines: `make campaign NAME=frameworks`.

Every number that TRL logs and logprobe computes must agree; training must not notice; faults must be found through the adapter alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from correction_cases import CASES, factors, reduced
from training import Agreement, Trained, agree, check_checkpoints, start
from training import train as train_with

from logprobe.app.cli import main

PROGRAM = Path(__file__).with_name("trl_program.py")
# TRL's name → ours, where both average over the same tokens.
SAME = {
    "sampling/sampling_logp_difference/mean": "backend.logprob_abs_diff_mean",
    "sampling/sampling_logp_difference/max": "backend.logprob_abs_diff_max",
    "entropy": "entropy",
    "reward": "reward",
}
RATIOS = {
    "sampling/importance_sampling_ratio/min": "backend.ratio_min",
    "sampling/importance_sampling_ratio/mean": "backend.ratio_mean",
    "sampling/importance_sampling_ratio/max": "backend.ratio_max",
}
CLIPPED = {"clip_ratio/region_mean": "update.pg_clip_fraction"}


@pytest.fixture(scope="module")
def agreement(request: pytest.FixtureRequest) -> Iterator[Agreement]:
    """All that is compared; `LOGPROBE_WRITE_TABLES=1` writes it into tests/RESULTS.md where all tests are run."""
    found = Agreement()
    yield found
    if os.environ.get("LOGPROBE_WRITE_TABLES") and not request.config.option.keyword:
        found.write(Path(__file__).parents[1] / "RESULTS.md")


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Any:
    """Trains; `watch` is told the home, also where the plugin is not."""

    def run(name: str, **options: Any) -> Trained:
        watching = {"home": str(tmp_path / "home"), **options.pop("watching", {})}
        return train_with(PROGRAM, tmp_path, model, name, watching=watching, **options)

    return run


def test_two_iterations_on_each_batch(train: Any, capsys: Any, agreement: Agreement) -> None:
    settings = {"num_iterations": 2, "vllm_importance_sampling_mode": "token_truncate"}
    bare = train("bare", watch=False, plugin=False, config=settings)
    seen = train("seen", config=settings)
    losses = [[step.get("loss") for step in result["history"]] for result in (bare, seen)]
    assert losses[0] == losses[1]
    assert (bare["weights"], bare["random_state"]) == (seen["weights"], seen["random_state"])
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3, 4]
    assert agreement.check("num_iterations=2", ours, seen["history"], SAME | RATIOS | CLIPPED) >= 20
    for values in ours.values():
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0
        assert values["unknown_version_frac"] == 0
        assert values["backend.k3_kl"] < 1e-9
    assert ours[1]["update.k3_kl"] == 0
    assert ours[2]["update.k3_kl"] > 0
    assert seen.diagnosed(capsys)["layer"] == "none"


def test_a_bf16_engine_without_the_plugin(train: Any, capsys: Any, agreement: Agreement) -> None:
    """The adapter alone: the engine's side is what TRL received."""
    settings = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1e9}
    seen = train("bf16", plugin=False, engine="bfloat16", config=settings)
    ours = seen.steps(capsys)
    assert agreement.check("bfloat16 engine", ours, seen["history"], SAME | RATIOS) >= 20
    for values in ours.values():
        assert values["backend.k3_kl"] > 1e-7
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0


def test_without_an_engine(train: Any, capsys: Any, agreement: Agreement) -> None:
    """Transformers generates: there are no log-probs of an engine, and nothing is made up."""
    seen = train("transformers", engine="", config={"num_iterations": 2})
    ours = seen.steps(capsys)
    names = {"entropy": "entropy", "reward": "reward"} | CLIPPED
    assert agreement.check("no engine", ours, seen["history"], names) >= 10
    assert all(values["backend.k3_kl"] is None for values in ours.values())


def test_two_ranks_that_accumulate(train: Any, capsys: Any, agreement: Agreement) -> None:
    """TRL averages means of micro-batches and ranks, which is a token mean only where all sequences have one length."""
    seen = train(
        "ranks", ranks=2, config={"gradient_accumulation_steps": 2, "vllm_importance_sampling_mode": "token_truncate"}
    )
    ours = seen.steps(capsys)
    case, names = "2 ranks, 2 micro-batches", {name: mine for name, mine in SAME.items() if mine != "entropy"}
    assert agreement.check(case, ours, seen["history"], names) >= 12
    assert agreement.check(case, ours, seen["history"], {"entropy": "entropy"}, tolerance=0.01) >= 4
    assert {values["sequences"] for values in ours.values()} == {16}


def test_a_rank_that_is_killed(model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, which then ends the other one: which rank is missing, its last step, and what of it may be lost. No sequence is there twice."""
    home = tmp_path / "home"
    options = {"engine": "", "steps": 6, "dies": {"rank": 1, "step": 3}, "watching": {"home": str(home)}}
    done = start(PROGRAM, tmp_path, model, "killed", ranks=2, **options)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr
    for module in ("doctor", "view.records"):
        monkeypatch.setattr(f"logprobe.app.{module}.SILENT_SECONDS", 0.0)
    seen = Trained({"home": home, "run": "killed"})
    ours = seen.steps(capsys)
    main(["doctor", "--home", str(home)])
    doctor, status = capsys.readouterr().out, seen.logprobe(capsys, "show", "killed")
    words = r"trainer of rank 1 \(.*?\)\s+ended\s+without\s+closing(?:\s+after\s+step\s+(\d))?;\s+what\s+it\s+recorded\s+in\s+the\s+last\s+1\s+s\s+may\s+be\s+lost"
    named = [re.search(words, text) for text in (doctor, status)]
    assert all(named), doctor + status
    steps = {found[1] for found in named if found}  # None: it died before its first second's records were written
    assert steps in ({None}, {"1"}, {"2"}, {"3"})
    assert ours[1]["sequences"] == (4 if steps == {None} else 8)
    assert all(values["sequences"] <= 8 for values in ours.values())  # 4 of each rank, none twice


def test_the_last_good_checkpoint_of_a_real_training(train: Any, capsys: Any) -> None:
    """`save_total_limit` deletes the older ones: what an incident names is still there."""
    config = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    seen = train("saving", engine="", steps=8, config=config)
    check_checkpoints(seen, capsys, seen["home"].parent / "saving", [2, 4, 6, 8], [6, 8])


def test_a_resume_under_the_same_name(train: Any, capsys: Any) -> None:
    """Two ranks that accumulate go back two steps: the newest attempt counts, in TRL's numbers; the first one's last step stays."""
    options: dict[str, Any] = {"ranks": 2, "engine": "", "watching": {"run": "resumed"}}
    config = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 2}
    first = train("first", steps=5, config=config, **options)
    checkpoint = str(first["home"].parent / "first" / "checkpoint-2")
    second = train("second", steps=4, checkpoint=checkpoint, config=config | {"save_strategy": "no"}, **options)
    seen = Trained({**second, "run": "resumed"})
    ours = seen.steps(capsys)
    assert {step: values["sequences"] for step, values in ours.items()} == dict.fromkeys(range(1, 6), 16)
    again = [logged for logged in second["history"] if logged["step"] in {3, 4}]
    assert agree(ours, again, {"reward": "reward"}) == 2
    status = " ".join(seen.logprobe(capsys, "show", "resumed").split())
    assert "2 steps (3 to 4) were trained again, and the newest attempt counts; 32 sequences" in status


def test_rloo(train: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, agreement: Agreement) -> None:
    """RLOO asks the engine for no log-probs: the plugin computes them, and they are joined by the engine's own names."""
    monkeypatch.setenv("LOGPROBE_RECORD", "inject")
    seen = train("rloo", trainer="RLOOTrainer")
    ours = seen.steps(capsys)
    assert agreement.check("RLOO", ours, seen["history"], {"entropy": "entropy", "reward": "reward"}) >= 8
    for values in ours.values():
        assert values["backend.coverage"] == 1
        assert values["backend.k3_kl"] < 1e-9


@pytest.mark.parametrize(("trainer", "metric"), [("GRPOTrainer", "reference.k3_kl"), ("RLOOTrainer", "reference.kl")])
def test_a_reference_model(train: Any, capsys: Any, agreement: Agreement, trainer: str, metric: str) -> None:
    """`kl` as either logs it: GRPO's of the current log-probs, RLOO's of the old ones; one pass over each batch makes them the same."""
    seen = train(f"reference-{trainer}", trainer=trainer, engine="", config={"beta": 0.05})
    ours = seen.steps(capsys)
    case = "reference model" if trainer == "GRPOTrainer" else "RLOO, reference model"
    names = {"kl": metric, "entropy": "entropy", "reward": "reward"}
    assert agreement.check(case, ours, seen["history"], names) == 12
    assert ours[4]["reference.k3_kl"] > 1e-5
    assert {values["weight_lag_mean"] for values in ours.values()} == {0}


def test_averages_of_trl_are_those_of_its_view(train: Any, capsys: Any, agreement: Agreement) -> None:
    """What TRL averages in ways of its own: sequence weights, and the KL of a second pass, by `--as trl`."""
    seen = train("view", engine="bfloat16", config={"num_iterations": 2, "beta": 0.05})
    ours = seen.steps(capsys)
    view = seen.peer(capsys, "trl")
    names = {name: name for name in (*RATIOS, "kl", "sampling/sampling_logp_difference/mean")}
    assert agreement.check("`--as trl`", view, seen["history"], names) >= 12
    assert ours[2]["update.k3_kl"] > 0


def test_tokens_of_a_tool_count_nowhere(train: Any, capsys: Any, agreement: Agreement) -> None:
    """Two turns with a tool's answer between, in TRL's own `rollout_func`; the adapter alone, as the engine knows only turns."""
    seen = train("tools", tool=True, plugin=False, engine="bfloat16")
    ours = seen.steps(capsys)
    assert agreement.check("tool masks", ours, seen["history"], SAME) >= 12
    for values in ours.values():
        assert values["backend.coverage"] == 1
        assert values["tokens"] == 4 * seen["sampled"]


def test_server_mode(train: Any, capsys: Any, agreement: Agreement) -> None:
    """A `vllm serve` that logprobe's plugin does not reach: the engine's side is what TRL received."""
    seen = train("served", server=True, plugin=False, config={"vllm_importance_sampling_mode": "token_truncate"})
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3, 4]
    assert agreement.check("server mode", ours, seen["history"], SAME | RATIOS) >= 20
    for values in ours.values():
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0
        assert values["backend.k3_kl"] < 1e-9


def test_asynchronous_grpo(model: Path, tmp_path: Path, capsys: Any, agreement: Agreement) -> None:
    """TRL's own worker, a real server. A version is stated only where no update began before the sample was handed over."""
    home = tmp_path / "home"
    program = PROGRAM.with_name("trl_async_program.py")
    seen = train_with(program, tmp_path, model, "async", plugin=False, watching={"home": str(home)})
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3, 4, 5, 6]
    names = {
        "kl": "backend.k3_kl",
        "ratio": "backend.ratio_mean",
        "entropy": "entropy",
    }
    assert agreement.check("async GRPO", ours, seen["history"], names) == 18
    history = {logged["step"]: logged for logged in seen["history"] if "ratio" in logged}
    for step, values in ours.items():
        assert values["backend.coverage"] == 1
        assert values["sequences"] == 8
        if 1 < step < 6:  # TRL logs the rewards of the batch that it has fetched ahead
            assert ours[step + 1]["reward"] == pytest.approx(history[step]["reward"], abs=1e-6)
        if values["unknown_version_frac"] == 0:
            assert values["weight_lag_mean"] <= history[step]["sample/staleness_max"] + 1
    assert ours[1]["backend.k3_kl"] < 1e-9 < ours[4]["backend.k3_kl"]
    assert (ours[1]["weight_lag_mean"], ours[1]["unknown_version_frac"]) == (0, 0)


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
"""


def test_accelerate_launch(train: Any, tmp_path: Path, capsys: Any, agreement: Agreement) -> None:
    """Two CPU ranks by TRL's usual launcher. accelerate shards nothing on a CPU, whatever its configuration says of FSDP."""
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    launcher = ["-m", "accelerate.commands.launch", f"--config_file={tmp_path / 'accelerate.yaml'}"]
    seen = train("launched", engine="", launcher=launcher, config={"num_iterations": 2})
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3, 4]
    assert {values["sequences"] for values in ours.values()} == {8}
    case, sampled = "accelerate, 2 ranks", [logged for logged in seen["history"] if "reward" in logged]
    assert agreement.check(case, ours, sampled, {"reward": "reward"}) == 2
    assert agreement.check(case, ours, sampled, {"entropy": "entropy"}, tolerance=0.01) == 2
    assert ours[2]["update.k3_kl"] > 0
    assert {values["weight_lag_mean"] for values in ours.values()} == {0}


def test_a_sync_that_never_arrives(train: Any, capsys: Any) -> None:
    """The engine keeps its first weights: what the adapter records is enough to see it."""
    seen = train("unsynced", steps=12, syncs=1)
    ours = seen.steps(capsys)
    assert ours[12]["backend.k3_kl"] > 100 * ours[1]["backend.k3_kl"]
    found = seen.diagnosed(capsys)
    assert found["layer"] != "none"
    assert found["correction"]["advice"] == "do_not_enable"


def _token_losses(loss: str, arrays: Mapping[str, Any], place: int, epsilon_high: float) -> Any:
    """Of one micro-batch [batch, time], before weights; TRL's formulas, in float64."""
    current, old = (arrays[name][place].astype(float) for name in ("current", "old_per_token_logps"))
    advantages, ratio = arrays["advantages"][place].astype(float)[:, None], np.exp(current - old)
    if loss == "cispo":
        return -np.minimum(ratio, epsilon_high) * advantages * current
    if loss == "sapo":
        temperature = np.where(advantages > 0, 1.0, 1.05)
        return -4 / (1 + np.exp(-temperature * (ratio - 1))) / temperature * advantages
    return -np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1 + epsilon_high) * advantages)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_correction_gives_the_loss_of_a_hand_computation(model: Path, tmp_path: Path, accumulation: int) -> None:
    """Or is refused, and then TRL's loss is its own and nothing is acknowledged."""
    config = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 4 * 2 // accumulation}
    document = {"config": config | {"vllm_importance_sampling_mode": "token_truncate"}}
    result = train_with(PROGRAM.with_name("trl_losses.py"), tmp_path, model, "losses", **document)
    with np.load(tmp_path / "losses" / "arrays.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    masks = list(arrays["completion_mask"])
    applied, dropped = 0, set()
    for loss, name in product(result["losses"], CASES):
        found, plain = result["losses"][loss][name], result["losses"][loss]["none"]
        unable = loss == "vespo" or name == "off-policy sequences"
        unable |= CASES[name].denominator == "renormalize" and loss in {"dr_grpo", "luspo"}
        unable |= CASES[name].normalize and accumulation > 1
        if unable:
            assert (found, result["events"][loss][name]) == (plain, ["correction_impossible"]), (loss, name)
            continue
        assert result["events"][loss][name] == ["acknowledged"], (loss, name)
        weighted, kept = [], []
        for place, mask in enumerate(masks):
            sides = (arrays[side][place] for side in ("sampling_per_token_logps", "old_per_token_logps"))
            weights, keep = factors(CASES[name], *sides, mask, arrays["advantages"][place])
            weighted.append(weights * _token_losses(loss, arrays, place, result["epsilon_high"]))
            dropped |= {name} if 0 < keep.sum() < mask.sum() else set()
            kept.append(keep if CASES[name].denominator == "renormalize" else mask)
        expected = reduced(loss, weighted, masks, kept, 24)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), (loss, name)
        applied += 1
    assert applied > 250
    assert len(dropped) > 30  # of these, some tokens are left and some are not
