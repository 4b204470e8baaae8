"""Did a correction help? One word, from what it should change; K3 is told apart, because a correction does not lower it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from logprobe.alerts.controller import effect
from logprobe.alerts.controller.effect import QUANTITIES

STEPS = np.arange(100, 200)
SINCE = 150
LATE = STEPS - SINCE


def trend(*, seed: int = 0, steps: np.ndarray = STEPS, masked_from: int = SINCE, **columns: np.ndarray) -> pa.Table:
    """Rows of `controller_trend`: what is not given was not measured; the trainer masks 3.1 % from `masked_from` on."""
    rng = np.random.default_rng(seed)
    given = {
        "k3": 1e-3 * np.exp(rng.normal(0, 0.1, steps.size)),
        "masked": np.where(steps < masked_from, np.nan, 0.031),
        **columns,
    }
    return pa.table({"step": steps, **{name: given.get(name, np.full(steps.size, np.nan)) for name, *_ in QUANTITIES}})


def judge(table: pa.Table, masked_from: int = SINCE, applied_from: int = SINCE, **more: object) -> dict:
    return effect.judge(table, masked_from, applied_from, **more)


def noisy(values: np.ndarray, scale: float, seed: int = 1) -> np.ndarray:
    return values + np.random.default_rng(seed).normal(0, scale, values.size)


FALL, RISE = -0.004, 0.004
BEFORE, AFTER = LATE < 0, LATE >= 0
REWARDS: dict[str, tuple[np.ndarray, str]] = {
    "level": (0 * LATE, "no_effect_shown"),
    "falls, then recovers": (FALL * LATE * BEFORE + RISE * LATE * AFTER, "helped"),
    "level, then rises": (RISE * LATE * AFTER, "helped"),
    "rises all along": (RISE * LATE, "no_effect_shown"),
    "rises, then is saturated": (RISE * LATE * BEFORE, "no_effect_shown"),
    "falls to its floor, and stays there": (FALL * LATE * BEFORE, "no_effect_shown"),
    "falls all along": (FALL * LATE, "no_effect_shown"),
    "falls, then faster": (FALL * LATE * BEFORE + 3 * FALL * LATE * AFTER, "harmed"),
    "level, then falls": (FALL * LATE * AFTER, "harmed"),
    "rises, then falls": (RISE * LATE * BEFORE + FALL * LATE * AFTER, "harmed"),
}


@pytest.mark.parametrize("case", REWARDS)
def test_the_reward_decides(case: str) -> None:
    shape, word = REWARDS[case]
    found = judge(trend(reward=noisy(0.5 + shape, 0.03)))
    assert found["judgement"] == word
    assert found["words"].startswith(f"{effect.WORDS[word]}: ")


NORMS: dict[str, tuple[np.ndarray, str]] = {
    "level": (0 * LATE, "no_effect_shown"),
    "masks make it smaller": (np.log(0.5) * AFTER, "no_effect_shown"),
    "rises, then is small": (0.05 * LATE * BEFORE - 1.0 * AFTER, "helped"),
    "less than doubles": (np.log(1.5) * AFTER, "no_effect_shown"),
    "triples": (np.log(3.0) * AFTER, "harmed"),
    "rises all along": (0.05 * LATE, "no_effect_shown"),
}


@pytest.mark.parametrize("case", NORMS)
def test_the_gradient_norm_decides_where_the_reward_says_nothing(case: str) -> None:
    shape, word = NORMS[case]
    norms = np.exp(noisy(shape, 0.1))
    assert judge(trend(grad_norm=norms, reward=noisy(0.5 + 0 * LATE, 0.03, seed=2)))["judgement"] == word
    assert judge(trend(grad_norm=norms, reward=noisy(0.5 + RISE * LATE * AFTER, 0.03)))["judgement"] == "helped"


@pytest.mark.parametrize("reached", [0, 9, 10, 49])
def test_it_is_too_early_until_all_steps_are_there(reached: int) -> None:
    found = judge(trend(reward=0.5 + RISE * LATE * AFTER).filter(pa.array(SINCE + reached > STEPS)))
    assert found["judgement"] == "too_early"
    assert f"{reached} of 50 steps" in found["words"]


def test_the_figures_compare_with_the_steps_before_the_growth_and_the_word_with_those_before_the_switch() -> None:
    """K3 doubles every ten steps from 100 on, and the reward falls with it; the correction begins at 160."""
    steps = np.arange(20, 260)
    rise = np.clip(steps - 100, 0, 60)
    k3 = 1e-3 * np.exp2(rise / 10) * np.exp(noisy(0 * rise, 0.1))
    reward = noisy(0.8 - 0.004 * rise + 0.004 * np.clip(steps - 160, 0, 30), 0.01, seed=2)
    table = trend(steps=steps, masked_from=160, k3=k3, reward=reward)
    found = judge(table, 160, 160, grown_since=100)
    (gap,) = [figure for figure in found["figures"] if figure["name"] == "k3"]
    assert gap["sure"]
    assert gap["change"]["low"] < 64 < gap["change"]["high"]
    assert found["judgement"] == "helped"
    assert "from before the growth to now: reward 0.8" in found["words"]
    assert not next(f for f in judge(table, 160, 160)["figures"] if f["name"] == "k3")["change"]["low"] > 40
    late = judge(table, 160, 160, grown_since=25)  # too few steps before it to compare with
    assert "from before the correction to now" in late["words"]


@pytest.mark.parametrize(
    ("lost", "noise", "grown", "word"),
    [
        (0.0, 0.03, 120, "reward kept"),
        (0.03, 0.001, 120, "reward kept"),
        (0.06, 0.001, 120, "no effect shown"),  # more than a tenth of 0.5
        (0.0, 0.5, 120, "no effect shown"),  # too noisy to exclude such a loss
        (0.0, 0.03, None, "no effect shown"),  # nothing says where the growth began
    ],
)
def test_a_reward_that_is_what_it_was_before_the_growth_is_kept(
    lost: float, noise: float, grown: int | None, word: str
) -> None:
    reward = noisy(0.5 - lost * (STEPS >= 120), noise)
    found = judge(trend(reward=reward), grown_since=grown)
    assert found["judgement"] == "no_effect_shown"
    assert found["words"].startswith(f"{word}: reward changed no more than it varies")


def test_the_windows_are_equal_and_the_one_before_holds_no_masking() -> None:
    """The first correction was outgrown; the second took over at 170. Before, an earlier one was on from 80 to 99."""
    steps = np.arange(40, 220)
    masked = np.where((steps >= 150) | ((steps >= 80) & (steps < 100)), 0.2, np.nan)
    reward = np.where(np.isnan(masked), 0.5, 0.9)
    found = judge(trend(steps=steps, masked=masked, reward=reward), masked_from=150, applied_from=170)
    figures = {each["name"]: each for each in found["figures"]}
    assert figures["reward"]["before"]["steps"] == figures["reward"]["after"]["steps"] == 50
    assert figures["reward"]["before"]["value"] == 0.5
    assert figures["masked"]["before"] is None
    assert figures["masked"]["after"]["value"] == pytest.approx(0.2)


def test_without_values_to_compare_nothing_is_claimed() -> None:
    early = trend(reward=0.5 + RISE * LATE * AFTER).filter(pa.array(STEPS >= SINCE - 9))
    found = judge(early)
    assert found["judgement"] == "no_effect_shown"
    assert "only 9 uncorrected steps" in found["words"]
    assert judge(trend())["words"].startswith("no effect shown: neither reward nor gradient norm is recorded")
    assert judge(trend(k3=np.zeros(100), reward=np.full(100, 0.5)))["judgement"] == "no_effect_shown"


def test_runs_without_an_effect_are_rarely_said_to_have_one() -> None:
    """Rewards with memory and a trend of any slope: at most 5 of 200 get a word that claims something."""
    claimed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        noise = np.zeros(STEPS.size)
        for at in range(1, STEPS.size):
            noise[at] = 0.3 * noise[at - 1] + rng.normal(0, 0.03)
        norms = np.exp(rng.normal(0, 0.3, STEPS.size))
        found = judge(trend(seed=seed, reward=0.5 + rng.normal(0, 0.002) * LATE + noise, grad_norm=norms))
        claimed += found["judgement"] != "no_effect_shown"
    assert claimed <= 5


@pytest.mark.parametrize("after", [0, 9])
def test_too_few_steps_and_what_is_zero_are_unknown(after: int) -> None:
    masked = np.where(AFTER & (SINCE + after > STEPS), 0.02, np.nan)
    found = {each["name"]: each for each in judge(trend(masked=masked, k3=np.where(BEFORE, 0.0, 0.01)))["figures"]}
    unknown = {name: found[name] for name in ("masked",) if after}
    assert all(each[side] is None for each in unknown.values() for side in ("before", "after", "change"))
    assert ("masked" in found, found["k3"]["before"], found["k3"]["change"]) == (bool(after), None, None)
