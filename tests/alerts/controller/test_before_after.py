"""Changes when a correction began, with intervals that a healthy run does not leave."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from logprobe.alerts.controller.effect import QUANTITIES, Figure, compared

STEPS = np.arange(100)


def trend(**columns: np.ndarray) -> pa.Table:
    known = {name: columns.get(name, np.full(len(STEPS), np.nan)) for name, *_ in QUANTITIES}
    return pa.table({"step": STEPS, **known})


def sides(table: pa.Table, first: int) -> tuple[pa.Table, pa.Table]:
    return table.slice(0, first), table.slice(first)


def of(found: list[Figure], name: str) -> Figure:
    (figure,) = [each for each in found if each["name"] == name]
    return figure


def noise(seed: int, scale: float = 0.1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, scale, len(STEPS))


def test_a_change_is_told_with_its_interval() -> None:
    k3 = np.exp(math.log(0.001) + noise(1) + math.log(4) * (STEPS >= 50))
    reward = 0.5 + noise(2)
    found = compared(*sides(trend(k3=k3, reward=reward), 50))
    assert [figure["name"] for figure in found] == ["k3", "reward"]
    k3_figure = of(found, "k3")
    assert k3_figure["change"] is not None
    assert k3_figure["sure"]
    assert k3_figure["change"]["low"] < 4 < k3_figure["change"]["high"]
    assert k3_figure["before"] is not None
    assert k3_figure["before"]["low"] < 0.001 < k3_figure["before"]["high"]
    assert not of(found, "reward")["sure"]


def test_healthy_runs_are_rarely_called_changed() -> None:
    """At most one in ten of 200 seeded trends with memory, where 97 % intervals are meant to leave 3 %."""
    changed = 0
    for seed in range(200):
        steps = np.random.default_rng(seed).normal(0.0, 0.1, len(STEPS))
        walk = np.zeros(len(STEPS))
        for at in range(1, len(STEPS)):
            walk[at] = 0.5 * walk[at - 1] + steps[at]
        changed += of(compared(*sides(trend(reward=walk), 50)), "reward")["sure"]
    assert changed <= 20


@pytest.mark.parametrize("after", [0, 9])
def test_too_few_steps_are_unknown_and_not_zero(after: int) -> None:
    masked = np.where((STEPS >= 50) & (50 + after > STEPS), 0.02, np.nan)
    found = compared(*sides(trend(masked=masked, k3=np.full(100, 0.01)), 50))
    for figure in found:
        if figure["name"] == "masked":
            assert [figure[name] for name in ("before", "after", "change", "sure")] == [None, None, None, False]
    assert [figure["name"] for figure in found] == (["k3", "masked"] if after else ["k3"])


def test_what_is_zero_has_no_factor() -> None:
    figure = of(compared(*sides(trend(k3=np.where(STEPS < 50, 0.0, 0.01)), 50)), "k3")
    assert figure["before"] is None
    assert figure["change"] is None
