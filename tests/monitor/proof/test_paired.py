"""Gaps and shares: against plain formulas, and honest where nothing has an effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from logprobe.monitor.proof.paired import gap, removed, student, sums


def _sequences(rng, count, spread, tokens=30):
    return tuple(rng.standard_t(4, tokens) * spread for _ in range(count))


def test_a_gap_is_k3_over_all_tokens():
    rng = np.random.default_rng(1)
    a = tuple(-rng.random(n) for n in (3, 50, 7, 9))
    b = tuple(x + 0.1 * rng.standard_normal(len(x)) for x in a)
    d = np.concatenate(b) - np.concatenate(a)
    found = gap("r", a, "t", b)
    assert found.k3 == pytest.approx(np.mean(np.exp(d) - d - 1))
    assert found.abs_diff_mean == pytest.approx(np.mean(np.abs(d)))
    assert found.interval[0] < found.k3 < found.interval[1]
    assert (found.tokens, found.broken) == (69, 0.0)


def test_tokens_that_one_side_lacks_are_counted_and_left_out():
    found = gap("r", (np.array([-1.0, math.nan]), None), "t", (np.array([-1.0, -2.0]), np.array([-1.0])))
    assert (found.k3, found.tokens, found.broken, found.interval) == (0.0, 1, 0.5, None)
    assert gap("r", (None,), "t", (np.array([-1.0]),)) is None


@pytest.mark.parametrize("freedom", [4, 8, 23, 99])
def test_student_is_close_to_the_exact_quantile(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)


@pytest.mark.parametrize("sequences", [8, 24])
def test_arms_without_an_effect_are_seldom_called_a_contribution(sequences):
    """200 arms that differ from the baseline by noise alone, half as large as the gap itself."""
    rng = np.random.default_rng(7)
    called = 0
    for _ in range(200):
        zero = tuple(np.zeros(30) for _ in range(sequences))
        fixed = _sequences(rng, sequences, 0.05)
        base, arm = (
            tuple(d + n for d, n in zip(fixed, _sequences(rng, sequences, 0.025), strict=True)) for _ in range(2)
        )
        _, interval = removed(sums(zero, base), sums(zero, arm))
        called += interval[0] > 0
    assert called <= 10


def test_the_share_that_an_arm_removes():
    rng = np.random.default_rng(3)
    zero = tuple(np.zeros(30) for _ in range(24))
    base = _sequences(rng, 24, 0.05)
    share, (low, high) = removed(sums(zero, base), sums(zero, tuple(d / 2 for d in base)))
    assert share == pytest.approx(0.75, abs=0.02)  # K3 is close to d²/2
    assert low < share < high
    assert removed(sums(zero, zero), sums(zero, base)) == (0.0, None)


def test_a_gap_does_not_vanish_by_tokens_that_cannot_be_compared():
    zero = tuple(np.zeros(4) for _ in range(6))
    base = tuple(np.full(4, 0.2) for _ in range(6))
    nothing = tuple(np.array([0.0, math.nan, math.nan, math.nan]) for _ in range(6))
    share, _ = removed(sums(zero, base), sums(zero, nothing))
    assert share < 0


def test_an_arm_that_scored_fewer_sequences_removes_nothing_by_that():
    rng = np.random.default_rng(8)
    zero = tuple(np.zeros(30) for _ in range(24))
    base = _sequences(rng, 24, 0.05)
    fewer = (*base[:12], *([None] * 12))
    share, interval = removed(sums(zero, base), sums(zero, fewer))
    assert (share, interval) == (pytest.approx(0), pytest.approx((0, 0)))


def test_bits_are_compared_as_the_float32_that_they_were_and_the_first_that_differs_is_named():
    a = (np.array([-1.0, np.nan]), np.array([-0.1, -2.0, -3.0]), None)
    same = (np.array([-1.0, np.nan]), np.array([np.float32(-0.1), -2.0, -3.0], np.float64), np.array([-1.0]))
    assert (gap("r", a, "t", same).unequal, gap("r", a, "t", same).first_unequal) == (0, None)
    off = (same[0], np.array([-0.1, np.nextafter(np.float32(-2.0), np.float32(0)), np.nan]), None)
    found = gap("r", a, "t", off)
    assert (found.unequal, found.first_unequal) == (2, (1, 1))
