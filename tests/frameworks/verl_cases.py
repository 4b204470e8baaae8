"""verl's own loops, v0 and v1, recorded through its entry point alone: `make campaign NAME=verl`.

Ray, the TransferQueue, data loading, advantages, losses and logging are verl's; its GPU workers are replaced (see `verl_program.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from correction_cases import CASES, factors
from training import Trained, agree, train

from logprobe.app.commands.run import environment

PROGRAM = Path(__file__).with_name("verl_program.py")
SAME = {
    "actor/entropy": "entropy",
    "critic/score/mean": "reward",
    "rollout_corr/chi2_seq": "backend.chi2_seq_product",
    **{
        f"rollout_corr/{name}": f"backend.{name}"
        for name in (
            "kl", "k3_kl", "training_log_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max",
            "log_ppl_diff_min", "ppl_ratio", "chi2_token",
        )
    },
}  # fmt: skip
TRAINERS = pytest.mark.parametrize("trainer", ["v0", "v1"])


def trained(folder: Path, model: Path, name: str, trainer: str, **options: Any) -> Trained:
    return train(PROGRAM, folder, model, name, trainer=trainer, **options)


@TRAINERS
def test_every_number_that_verl_logs(tmp_path: Path, model: Path, capsys: Any, trainer: str) -> None:
    bare = trained(tmp_path, model, "bare", trainer, plugin=False)
    seen = trained(tmp_path, model, "seen", trainer)
    timed = ("timing", "perf/")
    plain = [
        [{k: v for k, v in step.items() if not k.startswith(timed)} for step in result["history"]]
        for result in (bare, seen)
    ]
    assert plain[0] == plain[1]
    assert bare["weights"] == seen["weights"]
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3]
    assert agree(ours, seen["history"], SAME, 2e-6) >= 36
    for values in ours.values():
        assert values["sequences"] == 16
        assert values["backend.coverage"] == 1
        assert values["weight_lag_mean"] == 0
        assert values["backend.k3_kl"] > 1e-6
    assert "is recorded" in seen.logprobe(capsys, "doctor")


def test_logprobe_run_reaches_workers_of_ray(
    tmp_path: Path, model: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without verl's entry point: hooks come with the environment that `logprobe run` makes."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    for name, value in environment(os.environ, str(tmp_path / "home"), None).items():
        monkeypatch.setenv(name, value)
    seen = trained(tmp_path, model, "hooked", "v1", steps=2)
    assert sorted(seen.steps(capsys)) == [1, 2]


def test_an_engine_that_missed_updates_is_found(tmp_path: Path, model: Path, capsys: Any) -> None:
    healthy = trained(tmp_path, model, "healthy", "v1", engine="float32", steps=12)
    stale = trained(tmp_path, model, "stale", "v1", engine="float32", steps=12, syncs=1)
    assert max(values["backend.k3_kl"] for values in healthy.steps(capsys).values()) < 1e-9
    assert healthy.diagnosed(capsys)["layer"] == "none"
    ours = stale.steps(capsys)
    assert ours[1]["backend.k3_kl"] < 1e-9
    assert ours[12]["backend.k3_kl"] > 1e-4
    found = stale.diagnosed(capsys)
    assert found["layer"] != "none"
    assert found["correction"]["advice"] == "do_not_enable"


@TRAINERS
def test_tokens_that_verl_rejects_still_count(tmp_path: Path, model: Path, capsys: Any, trainer: str) -> None:
    """Rejection takes the worst tokens out of verl's mask; a gap measured on what is left would look healthier than it is."""
    rejection = {
        "algorithm.rollout_correction.rollout_rs": "token_k3",
        "algorithm.rollout_correction.rollout_rs_threshold": 1e-5,
    }
    seen = trained(tmp_path, model, "rejecting", trainer, config=rejection)
    assert agree(seen.steps(capsys), seen["history"], {"rollout_corr/k3_kl": "backend.k3_kl"}, 2e-6) == 3


@TRAINERS
def test_the_switch_sets_the_weights_of_verl(
    tmp_path: Path, model: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    monkeypatch.setenv("LOGPROBE_CORRECTION", "1")
    seen = trained(tmp_path, model, "corrected", trainer, directive=2)
    ours = seen.steps(capsys)
    assert ours[1]["is_weight_mean"] is None
    assert ours[2]["is_weight_mean"] is not None
    monkeypatch.delenv("LOGPROBE_CORRECTION")
    plain = trained(tmp_path, model, "plain", trainer)
    assert plain["history"][0]["actor/pg_loss"] == seen["history"][0]["actor/pg_loss"]
    assert plain["history"][1]["actor/pg_loss"] != seen["history"][1]["actor/pg_loss"]


def _token_losses(loss: str, arrays: Mapping[str, Any], mask: Any) -> Any:
    """[batch, time], before weights; verl's formulas, in float64. `mask`: verl's own, which a rejection shortens."""
    advantages, ratio = arrays["advantages"], np.exp(arrays["current"] - arrays["old"])
    if loss == "gspo":
        means = ((arrays["current"] - arrays["old"]) * mask).sum(1, keepdims=True) / np.maximum(
            mask.sum(1, keepdims=True), 1
        )
        ratio = np.broadcast_to(np.exp(means), mask.shape)
        return np.maximum(-ratio * advantages, -np.clip(ratio, 0.8, 1.28) * advantages)
    if loss == "cispo":
        return -np.clip(ratio, 0.8, 1.28) * advantages * arrays["current"]
    if loss == "sapo":
        tau = np.where(advantages > 0, 1.0, 1.05)
        return -4 / (1 + np.exp(-tau * (ratio - 1))) / tau * advantages
    clipped = -np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.28) * advantages)
    return np.where(advantages < 0, np.minimum(clipped, -3 * advantages), clipped)


def _reduced(mode: str, terms: Any, kept: Any) -> float:
    """verl's ways to a mean, over the tokens that count; every sequence of the batch counts."""
    if mode == "token-mean":
        return float(terms.sum() / kept.sum())
    if mode == "seq-mean-token-mean":
        return float((terms.sum(1) / np.maximum(kept.sum(1), 1)).mean())
    return float(terms.sum(1).mean() / (terms.shape[1] if mode.endswith("norm") else 1))


def test_every_correction_gives_the_loss_of_a_hand_computation(model: Path, tmp_path: Path) -> None:
    """Or is refused, and then verl's loss is its own and nothing is acknowledged."""
    result = train(PROGRAM.with_name("verl_losses.py"), tmp_path, model, "losses")
    with np.load(tmp_path / "losses" / "arrays.npz") as stored:
        arrays = {name: stored[name].astype(float) for name in stored.files}
    mask = arrays["mask"].astype(bool)
    applied, dropped = 0, set()
    for key, name in product(result["losses"], CASES):
        loss, stated = key.split()
        mode = "seq-mean-token-mean" if loss == "sapo" else stated  # whatever is stated
        config, found, plain = CASES[name], result["losses"][key][name], result["losses"][key]["none"]
        assert plain == pytest.approx(
            _reduced(mode, mask * _token_losses(loss, arrays, mask), mask), rel=1e-6, abs=1e-6
        ), key
        if name == "off-policy sequences" or (config.denominator == "renormalize" and "token-sum" in stated):
            assert (found, result["events"][key][name]) == (plain, ["correction_impossible"]), (key, name)
            continue
        assert result["events"][key][name] == ["acknowledged"], (key, name)
        weights, keep = factors(config, arrays["rollout"], arrays["old"], mask, arrays["advantages"][:, 0])
        kept = keep if config.denominator == "renormalize" else mask
        expected = _reduced(mode, weights * _token_losses(loss, arrays, kept), kept)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), (key, name)
        applied += 1
        dropped |= {name} if 0 < keep.sum() < mask.sum() else set()
    assert applied > 250
    assert len(dropped) > 20  # of these, some tokens are left and some are not
