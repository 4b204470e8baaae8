"""Number formatting for pages, messages and commands."""

from __future__ import annotations

import math
from typing import Final

_MINUS: Final = "\u2212"
_DIGITS: Final = 3
_NEAR_ONE: Final = 0.01
_MOST_DIGITS: Final = 6
_THOUSAND: Final = 1000
_LARGE: Final = 100_000.0
_SMALL: Final = 1e-3


def number(value: float | None) -> str:
    """Return three significant digits, or near 1 two digits of the distance from 1.

    Numbers below 1e-3 and from 1e5 on use scientific notation. An unknown number is a dash.

    >>> [number(v) for v in (0.00012345, 0.99871, 1.000034, -12.34, 0.0, 123456.0, None)]
    ['1.23e-4', '0.9987', '1.000034', '−12.3', '0', '1.23e5', '–']
    """
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and not _SMALL <= size < _LARGE:
        mantissa, exponent = f"{size:.{_DIGITS - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        text = _plain(size)
    return (_MINUS if value < 0 else "") + text


def short(value: float) -> str:
    """Return a round number in its shortest form.

    >>> short(1e-05), short(0.25)
    ('1e-5', '0.25')
    """
    return f"{value:g}".replace("e-0", "e-")


def _plain(size: float) -> str:
    if 0 < abs(1 - size) < _NEAR_ONE:  # what matters of an ESS, a coverage or a mean ratio is how far it is from 1
        digits = min(_MOST_DIGITS, math.ceil(-math.log10(abs(1 - size))) + 1)
        return f"{round(size, digits):.{_MOST_DIGITS + 1}g}"
    if size >= _THOUSAND:
        return f"{math.floor(size + 0.5):,}"
    return f"{float(f'{size:.{_DIGITS}g}'):g}"  # twice: 999.9 is 1000, not 1e+03
