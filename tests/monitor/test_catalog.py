"""The catalog is complete, consistent, and the only place where a metric is declared."""

from __future__ import annotations

import re

import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.monitor import metrics
from logprobe.monitor.metrics.definition import PairMetric

# The catalog of the documentation's metric definitions that needs no more than one step's records.
DEFINED = (
    "kl",
    "k2_kl",
    "k3_kl",
    "reverse_kl",
    "logprob_abs_diff_mean",
    "logprob_abs_diff_max",
    "prob_abs_diff_mean",
    "mult_prob_error",
    "prob_pearson",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "ratio_std",
    "ratio_deviation_1e4",
    "calibration_z",
    "chi2_token",
    "chi2_seq",
    "chi2_seq_product",
    "chi2_centered",
    "ess",
    "ess_seq",
    "training_ppl",
    "training_log_ppl",
    "rollout_ppl",
    "rollout_log_ppl",
    "log_ppl_diff",
    "log_ppl_abs_diff",
    "log_ppl_diff_max",
    "log_ppl_diff_min",
    "ppl_ratio",
    "clip_fraction_high",
    "clip_fraction_low",
    "kl_entropy_ratio",
    "coverage",
    "nonfinite_tokens",
    "impossible_tokens",
    "clamped_tokens",
)
OF_ONE_PAIR = {"total.clamp_log_ratio_new_old_indicator", "total.kl_new_old", "update.pg_clip_fraction"}
OF_THE_STEP = (
    "entropy",
    "entropy_sampled",
    "reward",
    "advantage_abs_mean",
    "response_length",
    "weight_lag_mean",
    "weight_lag_max",
    "weight_lag_min",
    "weight_lag_newest",
    "weight_lag_steps_mean",
    "weight_lag_seconds_mean",
    "mixed_version_frac",
    "unknown_version_frac",
    "token_mismatch_frac",
    "length_mismatch_frac",
)


def test_every_metric_that_is_defined_is_there() -> None:
    expected = {f"backend.{key}" for key in DEFINED} | OF_ONE_PAIR | set(OF_THE_STEP)
    assert expected <= set(metrics.KEYS)


def test_keys_are_unique_and_well_formed() -> None:
    assert len(set(metrics.KEYS)) == len(metrics.KEYS) == sum(len(m.keys()) for m in metrics.CATALOG)
    for key in metrics.KEYS:
        assert re.fullmatch(rf"(?:(?:{'|'.join(PAIRS)})\.)?[a-z0-9_]+", key), key


@pytest.mark.parametrize("metric", metrics.CATALOG, ids=lambda metric: metric.key)
def test_every_declaration_can_be_shown_to_people(metric: metrics.Metric) -> None:
    assert metric.label
    assert metric.label[0] == metric.label[0].upper() or metric.label[0] in "ρχ"
    assert len(metric.label) <= 50
    assert metric.words.endswith(".")
    assert metric.formula
    assert isinstance(metric, PairMetric) == (metric.keys()[0] != metric.key)


@pytest.mark.parametrize("grain", ["_seq_mean", "_tokens", "_frac"])
def test_suffixes_mean_what_they_say(grain: str) -> None:
    kinds = {"_seq_mean": ("grain", "sequence"), "_tokens": ("unit", "tokens"), "_frac": ("unit", "fraction")}
    attribute, value = kinds[grain]
    found = [metric for metric in metrics.CATALOG if metric.key.endswith(grain)]
    assert found
    assert {getattr(metric, attribute) for metric in found} == {value}


def test_a_key_leads_to_its_declaration() -> None:
    assert metrics.metric("backend.k3_kl").key == "k3_kl"
    assert metrics.metric("weight_lag_mean").unit == "versions"


@pytest.mark.parametrize("key", ["k3_kl", "backend.k3", "nonsense", ""])
def test_an_unknown_key_is_refused_with_a_hint(key: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(key))):
        metrics.metric(key)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"backend\.k3_kl"):
        metrics.metric("backend.k3_lk")


def test_compute_answers_every_key_and_no_other() -> None:
    assert tuple(metrics.compute([[-1.0]], [[-1.0]])) == metrics.KEYS
