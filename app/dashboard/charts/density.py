"""Data of the heatmap: how tokens spread over the log-ratio, step by step. Pure."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from logprobe.app.dashboard.charts.panels import PAIR_WORDS
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.log_ratio_density import Density

Floats = NDArray[np.float64]

SHADES: Final = 64
_KNEE: Final = 0.04045  # sRGB (IEC 61966-2-1) is linear below, in encoded and in linear light
_LINEAR_KNEE: Final = 0.0031308
_END_LIGHTNESS: Final = {"light": 0.22, "dark": 0.97}
_TO_LMS: Final = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_TO_LAB: Final = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip


def ramp(theme: Theme, role: str, shades: int = SHADES) -> list[str]:
    """`shades` colours as CSS hex strings: the page's, then evenly through the role's hue to its far end."""
    page, color = oklab(theme.page), oklab(theme.color(role))
    end = np.array([_END_LIGHTNESS[theme.mode], *(0.35 * color[1:])])
    lightness = np.linspace(page[0], end[0], shades)
    knots = np.array([page, color, end])
    order = np.argsort(knots[:, 0])
    hues = [np.interp(lightness, knots[order, 0], knots[order, axis]) for axis in (1, 2)]
    return [_hex(lab) for lab in np.stack([lightness, *hues], axis=1)]


def oklab(color: str) -> Floats:
    """Lightness (0 to 1), a and b of a CSS hex color."""
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= _KNEE, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab: Floats = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    return lab


def _hex(lab: Floats) -> str:
    linear = np.clip(np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_LAB, lab) ** 3), 0, 1)
    srgb = np.where(linear <= _LINEAR_KNEE, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in srgb)


QUANTILES: Final = (0.01, 0.5, 0.99)
_NAMES: Final = ("p1", "p50", "p99")
_DECADES_LABELLED: Final = 4  # at most, on either side
_ROOM: Final = 0.05  # of the height, between 0 and the next label
_PLAIN: Final = 3  # decades around 1 that are written out


def density_of(density: Density, pair: str, theme: Theme, why_absent: str) -> dict[str, object]:
    """What `charts/heat.py` draws. `why_absent`: what to record for the pair, where it has no log-probs at all; else
    ""."""
    columns = density.columns
    lines = density.quantiles(QUANTILES)
    return {
        "pair": pair,
        "axis": f"d = log π ({PAIR_WORDS[pair].partition(':')[0]})",
        "first": columns.first,
        "last": columns.last,
        "width": columns.width,
        "rows": density.tokens_CB.shape[1],
        "tokens": _packed(density.tokens_CB),
        "edges": density.edges().tolist(),
        "lines": [{"name": name, "at": _nullable(lines[:, at])} for at, name in enumerate(_NAMES)],
        "ticks": _ticks(density),
        "gaps": list(_gaps(density, why_absent)),
        "ramp": ramp(theme, pair),
        "note": _note(density),
        "alt": _alt(density, pair),
    }


def _packed(counts: npt.NDArray[np.int64]) -> dict[str, str]:
    """[C, B], columns one after another; a step has fewer than 2³¹ tokens in one
    bin."""
    data = np.minimum(counts, 2**31 - 1).astype("<i4").tobytes()
    return {"dtype": "i4", "bdata": b64encode(data).decode("ascii")}


def _nullable(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 2) for value in values.tolist()]


def _ticks(density: Density) -> list[dict[str, object]]:
    """0, and powers of ten on either side: as many as can be read, and none on top of the 0."""
    low, high = math.ceil(math.log10(density.floor) + 1e-9), math.floor(math.log10(density.ceiling))
    every = max(1, math.ceil((high - low + 1) / _DECADES_LABELLED))
    middle, room = density.place(0.0), _ROOM * density.tokens_CB.shape[1]
    powers = [power for power in range(high, low - 1, -every) if density.place(10.0**power) - middle >= room]
    sizes = [(10.0**power, _power_of_ten(power)) for power in powers]
    signed = [*((-size, f"−{text}") for size, text in sizes), (0.0, "0"), *reversed(sizes)]
    return [{"at": density.place(d), "text": text} for d, text in signed]


def _power_of_ten(power: int) -> str:
    return number(10.0**power) if -_PLAIN <= power <= _PLAIN else f"1e{power}"


def _gaps(density: Density, why_absent: str) -> Iterator[dict[str, object]]:
    """Runs of columns without a density, and why."""
    reasons = [_why(density, column, why_absent) for column in range(density.columns.size)]
    at = 0
    for reason, members in groupby(reasons):
        count = len(list(members))
        if reason:
            yield {"from": at, "to": at + count, "why": reason}
        at += count


def _why(density: Density, column: int, why_absent: str) -> str:
    if density.tokens_CB[column].any() or not density.steps_C[column]:
        return ""  # there, or there was no step to be seen
    if density.profiled_C[column] < density.steps_C[column]:
        return "not profiled yet: this follows within seconds"
    if not density.kept_C[column]:
        return "raw tokens were not kept: record them, or raise the retention budget"
    if density.broken_C[column]:
        return "every token with both log-probs is broken"
    return why_absent or "no token has both log-probs of this pair"


def _note(density: Density) -> str:
    """What is not in the picture."""
    expected, seen = int(density.expected_C.sum()), int(density.seen_C.sum())
    drawn, broken = int(density.tokens_CB.sum()), int(density.broken_C.sum())
    missing = expected - drawn - broken
    parts = [
        f"{broken:,} broken tokens left out" if broken else "",
        f"{missing:,} of {expected:,} tokens have no density" if missing > 0 and drawn else "",
        "raw tokens of some were removed or have not arrived yet" if drawn and seen < expected else "",
    ]
    return " · ".join(filter(None, parts))


def _alt(density: Density, pair: str) -> str:
    lines, edges = density.quantiles(QUANTILES), density.edges()
    measured = np.flatnonzero(np.isfinite(lines[:, 1]))
    head = f"Density of the log-ratio of the pair {pair}, steps {density.columns.first:,} to {density.columns.last:,}."
    if not len(measured):
        return f"{head} Nothing to draw."
    last = lines[measured[-1]]
    values = [number(float(edges[min(int(place), len(edges) - 1)])) for place in last]
    return (
        f"{head} In the newest column 98 % of the tokens lie between {values[0]} and {values[2]}, the median is near "
        f"{values[1]}."
    )
