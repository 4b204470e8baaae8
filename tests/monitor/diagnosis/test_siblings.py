"""Tokens that share their context: what cancels between them, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_simulation import Simulation, log_softmax, rounded, tempered

from logprobe.monitor.judging.tokens import Tokens, on_grid, siblings_of


def tokens(**simulation: object) -> Tokens:
    found = Simulation(**simulation).frame().tokens
    assert found is not None
    return found


def test_parents_are_the_tokens_of_a_context_by_brute_force() -> None:
    sample = tokens(steps=3, length=6)
    keys: dict[tuple, list[int]] = {}
    for i in range(len(sample)):
        start = i - sample.place[i]
        key = (sample.step[i], sample.context[i], *sample.token_id[start:i].tolist())
        keys.setdefault(key, []).append(i)
    for members in keys.values():
        codes = set(sample.parent[members].tolist())
        assert len(codes) == 1
        assert (codes == {-1}) == (len(members) == 1)
    shared = [members for members in keys.values() if len(members) > 1]
    assert len({int(sample.parent[members[0]]) for members in shared}) == len(shared)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.4])
def test_the_slope_between_siblings_is_the_ratio_of_temperatures(temperature: float) -> None:
    found = siblings_of(tokens(sampled=tempered(temperature), reported=log_softmax, trained=tempered(temperature)))
    assert found is not None
    assert found.slope == pytest.approx(1 / temperature, rel=1e-5)
    assert found.misfit(found.slope) < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_grid_of_16_bit_logits_is_seen_through_temperature_and_normaliser(temperature: float) -> None:
    low = lambda z: log_softmax(rounded(z) / temperature)
    sample = tokens(sampled=low, trained=tempered(temperature))
    assert on_grid(sample, sample.r, [temperature]) > 0.98
    assert on_grid(sample, sample.t, [temperature]) < 0.1


def test_chance_puts_few_differences_on_the_grid() -> None:
    sample = tokens(steps=40)
    assert on_grid(sample, sample.r, [1.0]) < 0.03


def test_one_answer_to_a_prompt_has_no_siblings() -> None:
    sample = tokens(steps=2)
    alone = replace(sample, context=sample.sequence)
    assert siblings_of(alone) is None
    assert np.isnan(on_grid(alone, alone.r, [1.0]))
