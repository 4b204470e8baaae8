"""Which y axis a panel gets: linear or logarithmic, and from where to where when a few extreme points would flatten the
rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.data.series import Floats, RunSeries

_AUTO_POSITIVE: Final = 0.98  # share of values a logarithm must be able to show before it is chosen
_AUTO_DECADES: Final = 2.0  # and the span from which on a linear axis hides the beginning of growth
_LOW_QUANTILE: Final = 0.02  # share of the values that may lie below a logarithmic axis
_SMALL_DECADES: Final = 30.0  # largest by smallest value, from which on a small chart's axis is logarithmic
_FAR_DECADES: Final = 1.5  # below that quantile: such points are left below the axis
_ROOM_DECADES: Final = 0.75
_PADDING: Final = 0.05
_PLAIN_DECADES, _SHORT_DECADES, _LABELS = 0.35, 1.6, 4


@dataclass(frozen=True)
class Scale:
    """`range` (decades) is None where plotly may choose; `hidden` counts steps of the first line that cannot be
    seen."""

    log: bool
    range: tuple[float, float] | None = None
    decades: float = 0.0
    unplaced: int = 0  # 0 and below, for which a logarithmic axis has no place
    below: int = 0  # under the axis' lower end


def scale_of(runs: Sequence[RunSeries], panel: Panel) -> Scale:
    """The scale of a panel for what is known of the runs so far."""
    columns = [line.values(runs) for line in panel.lines]
    first = columns[0]
    unplaced = int(np.count_nonzero(first <= 0))
    if panel.scale == "linear":
        return Scale(log=False, unplaced=unplaced)
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    drawn = np.log10(values[values > 0])
    if not len(drawn):
        return Scale(log=panel.scale == "log", unplaced=unplaced)
    low, high = float(drawn.min()), float(drawn.max())
    usual_low = float(np.quantile(drawn, _LOW_QUANTILE))
    if panel.scale == "auto" and (len(drawn) < _AUTO_POSITIVE * len(values) or high - usual_low < _AUTO_DECADES):
        return Scale(log=False, unplaced=unplaced)
    if low >= usual_low - _FAR_DECADES:
        return Scale(log=True, decades=high - low, unplaced=unplaced)
    bottom = usual_low - _ROOM_DECADES
    below = int(np.count_nonzero((first > 0) & (first < 10**bottom)))
    top = high + _PADDING * (high - bottom)
    return Scale(log=True, range=(bottom, top), decades=top - bottom, unplaced=unplaced, below=below)


def log_ticks(decades: float) -> str | int | None:
    """Plotly's `dtick` of a logarithmic axis of so many decades: 1-2-5 on short ones, None leaves it to plotly."""
    if decades < _PLAIN_DECADES:
        return None
    return "D2" if decades < _SHORT_DECADES else math.ceil(decades / _LABELS)


def wants_log(values: Floats) -> bool:
    """Whether values span so many decades that a linear axis would hide the small ones."""
    return bool((values > 0).all() and np.log10(values.max() / values.min()) >= _AUTO_DECADES)


def floor_of(values: Sequence[float], limits: Sequence[float]) -> float:
    """Where a logarithmic axis begins: a few tiny values must not press all others against its upper end."""
    usual = float(np.quantile(values, _LOW_QUANTILE)) / _SMALL_DECADES if values else 0.0
    return min([max(min(values), usual), *limits]) if values else min(limits)
