"""What a correction is said to do to a token is what `correct` does to it, and the rule that is named is the one that did it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.correction.presets import PRESETS, preset
from logprobe.monitor.analysis.token_view import DROPPED, Rule, Side, Tokens, effect, stated

LENGTH = 40


def tokens_of(r: Any, t: Any, mask: Any = None, advantages: Any = None, c: Any = None) -> Tokens:
    """A sequence whose log-probs were all recorded."""

    def side(values: Any) -> Side:
        array = np.full(len(r), np.nan) if values is None else np.asarray(values, np.float64)
        return Side(array, np.full(len(r), values is not None))

    return Tokens(
        token_id_N=np.arange(len(r)),
        mask_N=np.ones(len(r), bool) if mask is None else np.asarray(mask, bool),
        sides={"rollout": side(r), "trainer": side(t), "current": side(c)},
        entropy_N=np.full(len(r), np.nan),
        advantage_N=np.full(len(r), np.nan) if advantages is None else np.asarray(advantages, np.float64),
        version_N=np.full(len(r), -1, np.int32),
        versions=(),
    )


def sequence(seed: int, *, broken: bool, gap: float) -> Tokens:
    rng = np.random.default_rng(seed)
    r = -rng.exponential(1.0, LENGTH) - 0.01
    t = np.minimum(r + gap * rng.standard_normal(LENGTH), -1e-3)
    if broken:
        t[7], r[9] = math.nan, -9999.0
    return tokens_of(r, t, rng.random(LENGTH) > 0.2, np.full(LENGTH, rng.choice([-1.0, 1.0])))


@pytest.mark.parametrize("name", PRESETS)
def test_a_sequence_alone_fares_as_it_does_in_its_batch(name: str) -> None:
    config, gaps = preset(name), (0.002, 0.8, 0.8)
    sequences = [sequence(seed, broken=seed == 1, gap=gap) for seed, gap in enumerate(gaps)]

    def stacked(side: str) -> Any:
        return np.stack([each.sides[side].values_N for each in sequences])

    mask = np.stack([each.mask_N for each in sequences])
    advantages = np.stack([each.advantage_N for each in sequences])
    whole = correct(config, stacked("rollout"), stacked("trainer"), mask, advantages=advantages)
    for row, each in enumerate(sequences):
        found = effect(config, each, whole.report["normalizer"])
        assert found is not None
        np.testing.assert_allclose(found.weight_N[each.mask_N], whole.weights[row][each.mask_N], rtol=1e-6, atol=1e-12)
        assert np.isnan(found.weight_N[~each.mask_N]).all()
        dropped = np.isin(found.rule_N, DROPPED)
        np.testing.assert_array_equal(dropped, each.mask_N & (whole.mask[row] == 0))


CASES: list[tuple[dict[str, Any], list[float], Rule]] = [
    ({"is_level": "token"}, [0.0, 1.0], Rule.LIMITED_ABOVE),
    ({"is_level": "token", "is_mode": "clip", "is_lower": 0.5}, [0.0, -1.0], Rule.LIMITED_BELOW),
    ({"is_level": "token", "is_mode": "mask", "is_lower": 0.5}, [0.0, -1.0], Rule.MASKED_BELOW),
    ({"is_level": "token", "is_mode": "mask", "is_lower": 0.5}, [0.0, 1.0], Rule.MASKED_ABOVE),
    ({"rs_level": "token", "rs_lower": 0.5}, [0.0, -1.0], Rule.REJECTED_BELOW),
    ({"rs_level": "sequence", "rs_upper": 2.0}, [0.5, 0.5], Rule.REJECTED_ABOVE),
    ({"is_level": "token", "veto": 1e-4}, [-10.0, 0.0], Rule.VETO),
    ({"is_level": "token"}, [0.0, math.nan], Rule.BROKEN),
    ({"is_level": "sequence"}, [math.nan, 0.0], Rule.BROKEN_SEQUENCE),
    ({"is_level": "token"}, [0.0, 0.0], Rule.KEPT),
]


@pytest.mark.parametrize(("fields", "d", "rule"), CASES)
def test_the_rule_that_decided_is_named(fields: dict[str, Any], d: list[float], rule: Rule) -> None:
    r = np.full(2, -11.0)
    found = effect(CorrectionConfig(**fields), tokens_of(r, r + np.array(d), advantages=[-1.0, -1.0]))
    assert found is not None
    assert Rule(found.rule_N[1]) is rule


def test_what_cannot_be_told_is_not_told() -> None:
    r = [-1.0, -1.0]
    assert effect(preset("mis"), tokens_of(r, None)) is None
    assert effect(preset("mis"), tokens_of([], [])) is None
    assert effect(preset("prime-rl/dppo"), tokens_of(r, r)) is None
    assert effect(preset("prime-rl/dppo"), tokens_of(r, r, advantages=[1.0, 1.0])) is not None


def test_tokens_without_a_log_prob_are_no_business_of_a_correction() -> None:
    tokens = tokens_of([-1.0, math.nan], [-1.0, -1.0])
    tokens.sides["rollout"].known_N[1] = False
    found = effect(preset("mis"), tokens)
    assert found is not None
    assert found.rule_N.tolist() == [Rule.KEPT, Rule.MASKED]
    assert np.isnan(found.weight_N[1])


def test_the_correction_of_a_step_is_the_one_that_all_its_records_state() -> None:
    def document(config: CorrectionConfig, normalizer: Any) -> str:
        return json.dumps({"config": config.to_dict(), "report": {"normalizer": normalizer}})

    mis, tis = preset("mis"), preset("tis")
    known = stated([document(mis, 1.5), document(mis, 1.5)])
    assert known is not None
    assert (known.config, known.normalizer) == (mis, 1.5)
    parts = stated([document(mis, 1.5), document(mis, 1.25)])  # each micro-batch divides by its own
    assert parts is not None
    assert parts.normalizer is None
    assert stated([]) is None
    assert stated([document(mis, 1.0), document(tis, 1.0)]) is None
    assert stated([document(mis, 1.0), "TIS"]) is None
    for odd in ("[]", '{"config": {"is_level": "never"}}', '{"config": 3}', "{}"):
        assert stated([odd]) is None
    assert stated([json.dumps({"config": {}, "report": {"normalizer": None}})]) is not None
