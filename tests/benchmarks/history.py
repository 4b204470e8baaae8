"""Ratios of earlier runs of `make bench` on the same machine, and which of today's are worse than they usually are there.

One line of JSON per run: ``{"at", "machine", "ratios": {figure: ratio}}``. Only ratios are kept: what was measured beside something else in
the same run. A figure is worse when its ratio is off its median, in the bad direction, by more than a sixth and more than its usual spread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from figure import Figure

FEWEST: Final = 5  # earlier runs, below which nothing is judged
LATEST: Final = 20  # that are looked at
_SLACK: Final = math.log(7 / 6)
_SPREADS: Final = 4.0  # median absolute deviations


def ratios(figures: Sequence[Figure]) -> dict[str, float]:
    """Of the figures that have one: against their baseline, or as what they are."""
    found = {figure.name: figure.value if figure.unit == "×" else figure.ratio for figure in figures}
    return {name: ratio for name, ratio in found.items() if ratio is not None and 0 < ratio < math.inf}


def worse(figures: Sequence[Figure], earlier: Sequence[Mapping[str, float]]) -> list[str]:
    """A sentence per figure that is worse than in `earlier` runs, which are in their order. Without a direction, any change is worse."""
    now, signs = ratios(figures), {figure.name: _bad_sign(figure) for figure in figures}
    found = []
    for name, ratio in now.items():
        usual = [math.log(each[name]) for each in earlier if name in each][-LATEST:]
        if len(usual) < FEWEST:
            continue
        level = median(usual)
        change, spread = math.log(ratio) - level, median(abs(each - level) for each in usual)
        size = change * signs[name] if signs[name] else abs(change)
        if size > max(_SLACK, _SPREADS * spread):
            found.append(f"{name}: ratio {ratio:.3g}, usually {math.exp(level):.3g} (median of {len(usual)} runs)")
    return found


def _bad_sign(figure: Figure) -> int:
    """1: more is worse, −1: less is; 0: it has no direction."""
    if figure.target:
        return 1 if figure.target[0] in "≤<" else -1
    if figure.unit == "×":
        return 0
    return -1 if figure.unit.endswith("/s") else 1


def read(file: Path, machine: Mapping[str, Any]) -> list[dict[str, float]]:
    """Ratios of the runs on such a machine; none without a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [run["ratios"] for run in map(json.loads, lines) if run["machine"] == machine]


def append(file: Path, at: str, machine: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Adds a run."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"at": at, "machine": machine, "ratios": ratios(figures)}) + "\n")
