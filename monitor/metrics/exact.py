"""Sums that are rounded once: the same, in every bit, in whatever order and parts the values came.

A sum per group of float64 values is the exact sum, rounded to nearest: 0 for an empty group, NaN with a NaN or with
infinities of both signs. What rounding left can be asked for, so that a sum that was stored continues as if it had
never been rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FEW: Final = 256  # values below which lists are faster than arrays
_HUGE: Final = 2.0**900  # values from which on an intermediate sum may overflow
_PARTS: Final = 64  # that what rounding left can have at most: doubles span 2,098 bits
Floats = NDArray[np.float64]


def parts(index: NDArray[np.intp], values: Floats, size: int, before: Sequence[Floats]) -> list[list[float]]:
    """Numbers of each group [G] whose exact sum is that of its values and of every `before` [G]; few where there are
    many values.

    `index`: the group of each value [S], in [0, `size`).
    """
    if len(values) > _FEW and (largest := float(np.abs(values).max())) < _HUGE:
        columns = [*_levels(index, values, size, largest), *before]
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    of_group: list[list[float]] = [values.tolist()] if size == 1 else [[] for _ in range(size)]
    for group, value in zip(index.tolist(), values.tolist(), strict=True) if size > 1 else ():
        of_group[group].append(value)
    for column in before:
        for numbers, value in zip(of_group, column.tolist(), strict=True):
            numbers.append(value)
    return of_group


def _levels(index: NDArray[np.intp], values: Floats, size: int, largest: float) -> Iterator[Floats]:
    """Sums per group of the leading bits of all values, then of the next, until none are left: no sum needs rounding.

    Leading bits are what is left of a value after adding a power of two so large that sums of so many are below it
    (Rump, Ogita and Oishi 2008, Accurate floating-point summation, algorithm ExtractVector).
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
    """The exact sum, rounded to nearest.

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


def left(numbers: list[float], total: float) -> list[float]:
    """Return the rest of the exact sum beyond `total` as descending numbers: few, as each has the leading bits of the
    rest.

    >>> left([1e16, 1.0], rounded([1e16, 1.0]))
    [1.0]
    """
    rests: list[float] = []
    while math.isfinite(total) and len(rests) < _PARTS:
        rest = rounded([*numbers, -total, *(-part for part in rests)])
        if rest == 0:
            break
        rests.append(rest)
    return rests
