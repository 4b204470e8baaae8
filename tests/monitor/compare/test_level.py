"""Share of pairs of one process that are told apart, and runs that differ, which are."""

from __future__ import annotations

import numpy as np
import pytest
from growth_runs import Trend, series
from scipy.stats import binom, t

from logprobe.monitor.compare import level as level_module
from logprobe.monitor.compare.comparison import judge_metric
from logprobe.monitor.compare.level import interval, level
from logprobe.monitor.judging.parity.recipe import Band, Recipe

PAIRS = 120
NOTHING_IS_TOO_SMALL = Recipe(trajectories=(Band(metric="backend.k3_kl", label="K3", factor=1 + 1e-9),))


def k3(trend: Trend, seed: int, steps: int) -> dict[int, float]:
    return dict(enumerate(series(trend, seed, steps)))


@pytest.mark.parametrize(("memory", "steps"), [(0.0, 300), (0.9, 300), (0.5, 1000), (0.95, 1000)])
def test_two_runs_of_one_autocorrelated_process_are_the_same(memory: float, steps: int) -> None:
    """The rate of false alarms of the whole verdict is 5 % or less; no margin helps, so this is the test alone."""
    process = Trend(memory=memory, spread=0.3)
    pairs = [(k3(process, 2 * seed, steps), k3(process, 2 * seed + 1, steps)) for seed in range(PAIRS)]
    verdicts = [judge_metric("backend.k3_kl", *pair, recipe=NOTHING_IS_TOO_SMALL).verdict for pair in pairs]
    assert "unknown" not in verdicts
    assert PAIRS - verdicts.count("same") <= binom.ppf(0.99, PAIRS, 0.05)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, "worse"), (1 / 1.5, "better")])
def test_a_level_half_as_high_again_shows_in_spite_of_memory(ratio: float, verdict: str) -> None:
    pairs = [
        (k3(Trend(level=1e-3 * ratio, memory=0.5), 2 * seed, 300), k3(Trend(memory=0.5), 2 * seed + 1, 300))
        for seed in range(20)
    ]
    found = [judge_metric("backend.k3_kl", *pair, recipe=NOTHING_IS_TOO_SMALL) for pair in pairs]
    assert [item.verdict for item in found] == [verdict] * 20
    assert float(np.median([item.level.difference + 1 for item in found])) == pytest.approx(ratio, rel=0.05)


def test_a_difference_below_the_margin_does_not_matter() -> None:
    ours, theirs = k3(Trend(level=1.1e-3, spread=0.05), 0, 300), k3(Trend(spread=0.05), 1, 300)
    wide = Band(metric="backend.k3_kl", label="K3", factor=2)
    found = level(wide, ours, theirs)
    assert found is not None
    assert found.side == 0
    assert found.low > 0  # it shows all the same
    assert level(wide.model_copy(update={"factor": 1.01}), ours, theirs).side == 1


def test_blocks_that_resemble_their_neighbours_count_as_fewer() -> None:
    rng = np.random.default_rng(3)
    white = rng.standard_normal(15)
    wandering = np.cumsum(white)
    wandering *= white.std() / wandering.std()
    assert interval(wandering)[1] > 1.5 * interval(white)[1]


def test_the_quantiles_are_students() -> None:
    expected = t.ppf(0.985, np.arange(1, len(level_module._STUDENT) + 1))
    assert pytest.approx(expected, abs=6e-4) == level_module._STUDENT


def test_too_few_steps_have_no_level() -> None:
    assert level(Band(metric="entropy", label="entropy", fraction=0.1), {0: 1.0}, {0: 1.0}) is None
