"""Sums that are rounded once, bit-identical for any order and partition of the values.

The sum of a group of float64 values is the exact sum, rounded to nearest. It is 0 for an empty group, and NaN with a
NaN or with infinities of both signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FEW: Final = 256  # values below which lists are faster than arrays
_HUGE: Final = 2.0**900  # values from which on an intermediate sum may overflow
Floats = NDArray[np.float64]


def sums(index: NDArray[np.intp], values: Floats, size: int) -> Floats:
    """Return the sum per group [G]. `index`: group of each value [S], in [0, `size`)."""
    return np.array([rounded(numbers) for numbers in _parts(index, values, size)])


def _parts(index: NDArray[np.intp], values: Floats, size: int) -> list[list[float]]:
    """Return few numbers per group with the same exact sum as its values."""
    if len(values) > _FEW and (largest := float(np.abs(values).max())) < _HUGE:
        columns = _levels(index, values, size, largest)
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    if size == 1:
        return [values.tolist()]
    of_group: list[list[float]] = [[] for _ in range(size)]
    for group, value in zip(index.tolist(), values.tolist(), strict=True):
        of_group[group].append(value)
    return of_group


def _levels(index: NDArray[np.intp], values: Floats, size: int, largest: float) -> Iterator[Floats]:
    """Yield unrounded sums per group of the leading bits of all values, then of the next bits, until none remain.

    Leading bits are the remainder after adding and subtracting a sufficiently large power of two (Rump, Ogita and Oishi
    2008, Accurate floating-point summation, algorithm ExtractVector).
    """
    room = math.ceil(math.log2(len(values) + 2))
    yield np.zeros(size)
    while largest > 0:
        bound = math.ldexp(1.0, math.frexp(largest)[1] + room)
        leading = (values + bound) - bound
        yield np.bincount(index, leading, minlength=size).astype(np.float64)
        values = values - leading
        largest = float(np.abs(values).max())


def rounded(numbers: list[float]) -> float:
    """Return the exact sum, rounded to nearest.

    >>> rounded([1e16, 1.0, -1e16])
    1.0
    """
    try:
        return math.fsum(numbers) + 0.0  # not −0
    except ValueError:  # infinities of both signs
        return math.nan
    except OverflowError:  # of an intermediate sum, or of the sum
        if endless := [number for number in numbers if not math.isfinite(number)]:
            return sum(endless)
        total = sum(map(Fraction, numbers))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf
