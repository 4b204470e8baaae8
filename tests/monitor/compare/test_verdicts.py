"""Which direction is bad, what a departure says, and what is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from logprobe.monitor.compare.comparison import METRICS, judge_metric
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.metrics.catalog import KEYS

RECIPE = parity_recipe.shipped()


def trend(level: float, *, seed: int = 0, steps: int = 200, spread: float = 0.01) -> dict[int, float]:
    return dict(enumerate(level + spread * np.random.default_rng(seed).standard_normal(steps)))


@pytest.mark.parametrize(
    ("metric", "run", "reference", "verdict"),
    [
        ("reward", 0.8, 0.5, "better"),
        ("reward", 0.3, 0.5, "worse"),
        ("backend.ess", 0.5, 0.8, "worse"),
        ("backend.ess", 0.8, 0.5, "better"),
        ("backend.ratio_mean", 0.6, 0.9, "worse"),
        ("backend.ratio_mean", 1.4, 1.1, "worse"),
        ("backend.ratio_mean", 0.9, 1.4, "better"),
        ("backend.kl", -0.3, 0.1, "worse"),
        ("weight_lag_mean", 3.0, 1.0, "worse"),
        ("response_length", 90.0, 40.0, "differs"),
        ("entropy", 0.5, 0.5, "same"),
        ("entropy", 0.5, 0.9, "worse"),
        ("entropy", 0.9, 0.5, "differs"),  # not good by itself
    ],
)
def test_the_catalog_says_which_direction_is_bad(metric: str, run: float, reference: float, verdict: str) -> None:
    found = judge_metric(metric, trend(run), trend(reference, seed=1), recipe=RECIPE)
    assert found.verdict == verdict
    assert found.final == pytest.approx(run, abs=0.02)
    assert found.reference_final == pytest.approx(reference, abs=0.02)
    assert found.area == pytest.approx(200 * (run - reference), abs=1)


def test_a_departure_late_in_the_run_counts_and_is_dated() -> None:
    ours = trend(1e-3, spread=1e-5) | dict.fromkeys(range(170, 200), 0.01)
    found = judge_metric("backend.k3_kl", ours, trend(1e-3, seed=1, spread=1e-5), recipe=RECIPE)
    assert found.level is not None
    assert found.level.side == 0
    assert found.verdict == "worse"
    assert 160 <= found.trajectory.leaves_step <= 170
    words = f"leaves the baseline's band at step {found.trajectory.leaves_step} for good, 0.01 against"
    assert found.reason.startswith(words)  # what decided comes first; the interval of all steps holds 1
    assert found.level.low < 0 < found.level.high
    assert "; over all steps " in found.reason


def test_what_was_not_measured_is_unknown_and_not_the_same() -> None:
    found = judge_metric("entropy", {}, trend(1.0), recipe=RECIPE)
    assert (found.verdict, found.level, found.ratio, found.area, found.final) == ("unknown", None, None, None, None)
    assert "0 common steps" in found.reason


def test_a_ratio_to_nothing_is_unknown() -> None:
    found = judge_metric("token_mismatch_frac", trend(0.1), dict.fromkeys(range(200), 0.0), recipe=RECIPE)
    assert (found.verdict, found.ratio) == ("worse", None)


def test_differences_of_rounding_are_none() -> None:
    found = judge_metric(
        "backend.logprob_abs_diff_mean", dict.fromkeys(range(99), 3e-7), dict.fromkeys(range(99), 1e-7), recipe=RECIPE
    )
    assert found.verdict == "same"
    assert "(values below 0.001 count as 0.001)" in found.reason


def test_what_is_compared_stands_in_the_catalog() -> None:
    assert set(METRICS) <= set(KEYS)
