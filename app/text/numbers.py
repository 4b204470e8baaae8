"""How numbers and times are written, everywhere people read them. `browser/format.js` follows the same rules."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

_MINUS: Final = "\u2212"
_DIGITS: Final = 3
_NEAR_ONE: Final = 0.01
_MOST_DIGITS: Final = 6
_THOUSAND: Final = 1000
_LARGE: Final = 100_000.0
_SMALL: Final = 1e-3
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: float | None) -> str:
    """Three significant digits, near 1 two of the distance from it; scientific below 1e-3 and from 1e5 on; a dash for what is unknown.

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


def _plain(size: float) -> str:
    if 0 < abs(1 - size) < _NEAR_ONE:  # what matters of an ESS, a coverage or a mean ratio is how far it is from 1
        digits = min(_MOST_DIGITS, math.ceil(-math.log10(abs(1 - size))) + 1)
        return f"{round(size, digits):.{_MOST_DIGITS + 1}g}"
    if size >= _THOUSAND:
        return f"{math.floor(size + 0.5):,}"
    return f"{float(f'{size:.{_DIGITS}g}'):g}"  # twice: 999.9 is 1000, not 1e+03


def interval(bounds: tuple[float, float] | None) -> str | None:
    """Both ends of a confidence interval; None: unknown."""
    return None if bounds is None else f"{bounds[0]:.2g} … {bounds[1]:.2g}"


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit: fractions as they are, other units behind a space."""
    text = number(value)
    return text if unit in {"", "fraction", "1e-4"} or text == "–" else f"{text} {unit}"


def duration(seconds: float) -> str:
    """A length of time in its largest sensible unit.

    >>> [duration(s) for s in (0.4, 59, 61, 7300, 200000)]
    ['0 s', '59 s', '1 min', '2 h', '2 d']
    """
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(0, int(seconds))} s"


def data_size(size: float) -> str:
    """So many bytes, in the units that limits are given in.

    >>> [data_size(n) for n in (0, 999, 1_234_567, 50 << 30)]
    ['0 B', '999 B', '1.18 MiB', '50 GiB']
    """
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{number(size / (1 << power))} {name}"
    return f"{int(size)} B"


def counted(number_of: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"


def when(moment: datetime | str | None) -> str:
    """A time in UTC, to the second; a dash for what is unknown."""
    if moment is None:
        return "–"
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return known.strftime("%Y-%m-%d %H:%M:%S")
