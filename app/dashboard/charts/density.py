"""Data of the heatmap: how tokens spread over the log-ratio, step by step. Pure."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logprobe.app.dashboard.charts.panels import PAIR_WORDS
from logprobe.app.dashboard.charts.ramp import ramp
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.log_ratio_density import Density

QUANTILES: Final = (0.01, 0.5, 0.99)
_NAMES: Final = ("p1", "p50", "p99")
_DECADES_LABELLED: Final = 4  # at most, on either side
_ROOM: Final = 0.05  # of the height, between 0 and the next label
_PLAIN: Final = 3  # decades around 1 that are written out


def density_of(density: Density, pair: str, theme: Theme, why_absent: str) -> dict[str, Any]:
    """Data of `browser/heatmap.js`. `why_absent`: what to record for the pair, where it has no log-probs at all; else ""."""
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
    """[C, B], columns one after another, as `browser/traces.js` unpacks them; a step has fewer than 2³¹ tokens in one bin."""
    data = np.minimum(counts, 2**31 - 1).astype("<i4").tobytes()
    return {"dtype": "i4", "bdata": b64encode(data).decode("ascii")}


def _nullable(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 2) for value in values.tolist()]


def _ticks(density: Density) -> list[dict[str, Any]]:
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


def _gaps(density: Density, why_absent: str) -> Iterator[dict[str, Any]]:
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
    known = np.flatnonzero(np.isfinite(lines[:, 1]))
    head = f"Density of the log-ratio of the pair {pair}, steps {density.columns.first:,} to {density.columns.last:,}."
    if not len(known):
        return f"{head} Nothing to draw."
    last = lines[known[-1]]
    values = [number(float(edges[min(int(place), len(edges) - 1)])) for place in last]
    return f"{head} In the newest column 98 % of the tokens lie between {values[0]} and {values[2]}, the median is near {values[1]}."
