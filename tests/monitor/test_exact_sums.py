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
    for numbers, total in (
        ([1.0, math.nan], "nan"),
        ([math.inf, -math.inf], "nan"),
        ([1.0, -math.inf], "-inf"),
        ([1e308, 1e308, -1e308, -1e308, 1.0], str(float(copies))),
        ([1e308, 1e308], "inf"),
        ([5e-324, -0.0], str(copies * 5e-324)),
        ([-0.0], "0.0"),
    ):
        given = np.array(numbers * copies)
        assert str(float(exact.sums(np.zeros(len(given), np.intp), given, 1)[0])) == total, numbers
    for endless in (math.inf, -math.inf, math.nan):  # wins over sums that overflow
        for order in itertools.permutations([1e308, 1e308, endless]):
            assert exact.rounded(list(order)) == pytest.approx(endless, nan_ok=True)
