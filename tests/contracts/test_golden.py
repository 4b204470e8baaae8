"""Where a framework defines a number as we do, we report the same number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from logprobe.monitor import metrics
from logprobe.monitor.metrics import Bounds

DATA = Path(__file__).parent.parent / "data"
GOLDEN = json.loads(gzip.decompress((DATA / "peer_views.json.gz").read_bytes()))
CASES = GOLDEN["cases"]
SMALL = GOLDEN["modes"]  # of fifteen frameworks, six decimals

# framework's report → its key → ours
_OFF_POLICY = (
    "training_ppl", "training_log_ppl", "kl", "k3_kl", "rollout_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max",
    "log_ppl_diff_min", "ppl_ratio",
)  # fmt: skip
COINCIDENT = {
    "swift/offpolicy": {name: f"backend.{name}" for name in (*_OFF_POLICY, "chi2_token", "chi2_seq")},
    "verl/offpolicy": {name: f"backend.{name}" for name in _OFF_POLICY} | {"chi2_seq": "backend.chi2_seq_product"},
    "verl/is/token/2.0/bn=False": {
        "rollout_is_mean": "backend.ratio_mean",
        "rollout_is_max": "backend.ratio_max",
        "rollout_is_min": "backend.ratio_min",
        "rollout_is_seq_mean": "backend.ratio_seq_mean",
        "rollout_is_ratio_fraction_high": "backend.clip_fraction_high",
        "rollout_is_ratio_fraction_low": "backend.clip_fraction_low",
    },
    "verl/rs/token_k1/0.5_2.0": {
        "rollout_rs_token_k1_mean": "backend.kl",
        "rollout_rs_token_k1_seq_mean": "backend.kl_seq_mean",
    },
    "verl/rs/token_k3/0.1": {
        "rollout_rs_token_k3_mean": "backend.k3_kl",
        "rollout_rs_token_k3_seq_mean": "backend.k3_kl_seq_mean",
    },
    "trl/sampling_logp_difference": {
        "mean": "backend.logprob_abs_diff_mean",
        "max": "backend.logprob_abs_diff_max",
    },
    "pipelinerl/ppo_eps0.2": {
        "kl_new_old": "total.kl_new_old",
        "mean_abs_log_ratio_new_old": "total.logprob_abs_diff_seq_mean",
        "ratio_new_old": "total.ratio_seq_mean",
        "clamp_log_ratio_new_old_indicator/ppo": "total.clamp_log_ratio_new_old_indicator",
        "ess_from_sums": "total.ess",
    },
    "pipelinerl/gspo_eps3e-4_4e-4": {
        "clamp_log_ratio_new_old_indicator/gspo": "total.clamp_log_ratio_new_old_indicator_gspo",
    },
}

RLLM = {
    "logprob_abs_diff/mean": "logprob_abs_diff_mean",
    "logprob_abs_diff/max": "logprob_abs_diff_max",
    "prob_abs_diff/mean": "prob_abs_diff_mean",
    "prob_pearson_corr": "prob_pearson",
    "chi2_seq": "chi2_seq_product",
    **{f"ratio/{of}": f"ratio_{of}" for of in ("mean", "min", "max")},
    **{key: key for key in ("kl", "k3_kl", "ppl_ratio", "chi2_token", "log_ppl_diff", "log_ppl_abs_diff")},
    **{key: key for key in ("training_ppl", "training_log_ppl", "rollout_ppl", "rollout_log_ppl")},
    **{key: key for key in ("log_ppl_diff_min", "log_ppl_diff_max")},
}

# framework → its key → ours, of the pair `backend`
COINCIDENT_ON_THE_SMALL_BATCH = {
    "rllm": {f"offpolicy/{theirs}": ours for theirs, ours in RLLM.items()},
    "orlhf": {"vllm_kl": "kl"},
    "verl": {"IStoken:rollout_corr/rollout_is_mean": "ratio_mean", "chi2_token": "chi2_token"},
    "swift": {"kl": "kl", "k3_kl": "k3_kl", "IS:is_weight_mean": "ratio_mean"},
    "nemo": {"mult_prob_error": "mult_prob_error", "gen_kl_error": "k3_kl"},
    "nemo_k1": {"gen_kl_error": "kl"},
    "nemo_k2": {"gen_kl_error": "k2_kl"},
    "prime": {"mismatch_kl/mean": "k3_kl"},
    "pipe": {"ess": "ess"},
    "sky": {"is_ratio_mean": "ratio_mean", "is_ratio_max": "ratio_max"},
    "areal": {"behave_imp_weight": "ratio_mean"},
    "oi": {
        "debug/vllm_vs_local_logprob_diff_mean": "logprob_abs_diff_mean",
        "debug/vllm_vs_local_logprob_diff_max": "logprob_abs_diff_max",
        "val/rho_weight": "ratio_mean",
    },
    "trl": {"sampling/sampling_logp_difference/mean": "logprob_abs_diff_mean"},
    "tinker": {"kl_sample_train_v1": "kl", "kl_sample_train_v2": "k2_kl"},
}

# Same definition but for a limit that this framework sets and we do not, reached only by the case "extreme-14".
LIMITED = {
    ("extreme-14", "swift/offpolicy"): {"k3_kl": "clamped at 10"},
    ("extreme-14", "verl/rs/token_k1/0.5_2.0"): dict.fromkeys(
        COINCIDENT["verl/rs/token_k1/0.5_2.0"], "d clamped at ±20"
    ),
    ("extreme-14", "verl/rs/token_k3/0.1"): dict.fromkeys(COINCIDENT["verl/rs/token_k3/0.1"], "d clamped at ±20"),
}


def computed(case: dict[str, Any]) -> dict[str, float | None]:
    inputs = case["inputs"]
    return metrics.compute(
        inputs["rollout_logprobs"],
        inputs["trainer_logprobs"],
        inputs["mask"],
        current_logprobs=inputs["current_logprobs"],
        advantages=inputs["advantages"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_same_definition_gives_the_same_number(case: dict[str, Any]) -> None:
    values = computed(case)
    for report, names in COINCIDENT.items():
        limited = LIMITED.get((case["name"], report), {})
        reference = case["reference"][report]
        reference = reference.get("metrics", reference)
        for theirs, ours in names.items():
            expected = pytest.approx(reference[theirs], rel=1e-6, abs=1e-12)
            if theirs in limited:
                assert values[ours] != expected, f"{report}: {theirs} is {limited[theirs]}: it no longer shows"
            else:
                assert values[ours] == expected, (report, theirs)


@pytest.mark.parametrize("framework", COINCIDENT_ON_THE_SMALL_BATCH)
def test_the_same_definition_gives_the_same_number_on_the_small_batch(framework: str) -> None:
    inputs, reference = SMALL["input"], SMALL["metrics"][framework]
    values = metrics.compute(inputs["rollout_logprobs"], inputs["train_logprobs"], inputs["mask"])
    for theirs, ours in COINCIDENT_ON_THE_SMALL_BATCH[framework].items():
        assert values[f"backend.{ours}"] == pytest.approx(reference[theirs], rel=1e-6, abs=6e-7), theirs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_bounds_are_those_that_are_asked_for(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    bounds = {"backend": Bounds(0.5, 2.0), "update": Bounds(0.8, 1.2), "total": Bounds(1 - 3e-4, 1 + 4e-4)}
    values = metrics.compute(
        inputs["rollout_logprobs"],
        inputs["trainer_logprobs"],
        inputs["mask"],
        current_logprobs=inputs["current_logprobs"],
        bounds=bounds,
    )
    expected = case["reference"]["pipelinerl/gspo_eps3e-4_4e-4"]["clamp_log_ratio_new_old_indicator/ppo"]
    assert values["total.clamp_log_ratio_new_old_indicator"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
