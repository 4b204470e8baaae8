"""The catalog is consistent, and the only place where a metric is declared; what each is: `test_step_metrics.py`."""

from __future__ import annotations

import re

import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.monitor import metrics
from logprobe.monitor.metrics.definition import PairMetric

SUFFIXES = {"_seq_mean": ("grain", "sequence"), "_tokens": ("unit", "tokens"), "_frac": ("unit", "fraction")}


def test_keys_are_unique_and_well_formed_and_compute_answers_each() -> None:
    assert len(set(metrics.KEYS)) == len(metrics.KEYS) == sum(len(m.keys()) for m in metrics.CATALOG)
    for key in metrics.KEYS:
        assert re.fullmatch(rf"(?:(?:{'|'.join(PAIRS)})\.)?[a-z0-9_]+", key), key
    assert tuple(metrics.compute([[-1.0]], [[-1.0]])) == metrics.KEYS


def test_every_declaration_can_be_shown_to_people_and_its_suffix_means_what_it_says() -> None:
    for metric in metrics.CATALOG:
        assert metric.label[0] == metric.label[0].upper() or metric.label[0] in "ρχ", metric.key
        assert len(metric.label) <= 50, metric.key
        assert metric.words.endswith("."), metric.key
        assert metric.formula, metric.key
        assert isinstance(metric, PairMetric) == (metric.keys()[0] != metric.key), metric.key
        for suffix, (attribute, value) in SUFFIXES.items():
            assert not metric.key.endswith(suffix) or getattr(metric, attribute) == value, metric.key


def test_a_key_leads_to_its_declaration_and_an_unknown_one_to_a_hint() -> None:
    assert metrics.metric("backend.k3_kl").key == "k3_kl"
    assert metrics.metric("weight_lag_mean").unit == "versions"
    for key in ("k3_kl", "backend.k3", "nonsense", ""):
        with pytest.raises(ConfigurationError, match=re.escape(repr(key))):
            metrics.metric(key)
    with pytest.raises(ConfigurationError, match=r"backend\.k3_kl"):
        metrics.metric("backend.k3_lk")
