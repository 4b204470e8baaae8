"""Common notation of quantities and times in all texts."""

from __future__ import annotations

from datetime import datetime

from logprobe.monitor.number_text import number

__all__ = ["counted", "data_size", "duration", "interval", "number", "quantity", "when"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def interval(bounds: tuple[float, float] | None) -> str | None:
    """Return both ends of a confidence interval, or None if it is unknown."""
    return None if bounds is None else f"{bounds[0]:.2g} … {bounds[1]:.2g}"


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit after a space. Fractions have no unit."""
    text = number(value)
    return text if unit in {"", "fraction", "1e-4"} or text == "–" else f"{text} {unit}"


def duration(seconds: float) -> str:
    """Return a duration in its largest sensible unit.

    >>> [duration(s) for s in (0.4, 59, 61, 7300, 200000)]
    ['0 s', '59 s', '1 min', '2 h', '2 d']
    """
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(0, int(seconds))} s"


def data_size(size: float) -> str:
    """Return a number of bytes in the units of limits.

    >>> [data_size(n) for n in (0, 999, 1_234_567, 50 << 30)]
    ['0 B', '999 B', '1.18 MiB', '50 GiB']
    """
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{number(size / (1 << power))} {name}"
    return f"{int(size)} B"


def counted(number_of: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"


def when(moment: datetime | str | None) -> str:
    """Return a time in UTC with seconds, or a dash if it is unknown."""
    if moment is None:
        return "–"
    time = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return time.strftime("%Y-%m-%d %H:%M:%S")
