"""Sums that do not depend on the order of what is added, in any bit."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from logprobe.monitor.metrics import exact


@pytest.mark.parametrize("size", [3, 200, 257, 5_000])
def test_sums_are_exact_in_any_order(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.normal(size=size) * 10.0 ** rng.integers(-300, 300, size)
    values[::3] = rng.integers(-9, 9, len(values[::3]))
    index = rng.integers(0, 3, size)
    exactly = [sum(map(Fraction, values[index == group].tolist()), Fraction(0)) for group in range(4)]
    for order in (np.arange(size), rng.permutation(size)):
        assert exact.sums(index[order], values[order], 4).tolist() == list(map(float, exactly))


@pytest.mark.parametrize("copies", [1, 200])
def test_sums_of_what_is_no_number_or_too_large(copies: int) -> None:
    def total(*values: float) -> float:
        given = np.array(values * copies)
        return float(exact.sums(np.zeros(len(given), np.intp), given, 1)[0])

    assert math.isnan(total(1.0, math.nan))
    assert math.isnan(total(math.inf, -math.inf))
    assert total(1.0, -math.inf) == -math.inf
    assert total(1e308, 1e308, -1e308, -1e308, 1.0) == copies
    assert total(1e308, 1e308) == math.inf
    assert total(5e-324, -0.0) == copies * 5e-324
    assert str(total(-0.0)) == "0.0"


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([1e308, 1e308, math.inf], math.inf),
        ([1e308, 1e308, -math.inf], -math.inf),
        ([1e308, 1e308, math.nan], math.nan),
    ],
)
def test_what_is_endless_wins_over_sums_that_overflow(numbers: list[float], total: float) -> None:
    for order in itertools.permutations(numbers):
        assert exact.rounded(list(order)) == pytest.approx(total, nan_ok=True)
