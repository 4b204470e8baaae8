"""Traces of a linked figure: each line, thinned, before its envelope. Pure.

A line's `meta` says what it is: `row` (its axis), `line` (place in its panel), `run`, `role`, and `smooth` where the
values were smoothed over so many steps. `browser/chart.js` reads the values under the pointer by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.axes import Axis
from logprobe.app.dashboard.charts.downsample import MAX_POINTS, Envelope, Indices, envelope, thin
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.packing import packed_places, transparent
from logprobe.app.dashboard.charts.rows import Row
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.theme import Theme


def centred_median(y: Floats, steps: int) -> Floats:
    """The median of the `steps` values around each one; shape [n] as `y`.

    Windows are odd (one is added to an even `steps`), end where a gap (NaN) begins, and are shorter at the ends. A gap
    stays a gap.

    >>> centred_median(np.array([1.0, 9.0, 2.0, np.nan, 7.0]), 3).tolist()
    [5.0, 2.0, 5.5, nan, 7.0]
    """
    import polars as pl  # noqa: PLC0415 - takes longer to load than all else that a first chart needs

    finite = np.isfinite(y)
    frame = pl.DataFrame({"y": y, "stretch": np.cumsum(~finite)}).filter(finite)
    smoothed = pl.col("y").rolling_median(steps | 1, min_samples=1, center=True).over("stretch")
    result = np.full(len(y), np.nan)
    result[finite] = frame.select(smoothed)["y"].to_numpy()
    return result


Trace = dict[str, Any]
Pack = Callable[[Floats], dict[str, str]]

_ACROSS: Final = 1000  # points of a line over the whole of a long run: what a screen shows, before a band of all values
_FAINT: Final = 0.28  # opacity of values behind their smoothed line
_DOT: Final = 4  # size of a point between two gaps, which no line shows


def too_long(run: RunSeries) -> bool:
    """Whether a trace cannot have a point for each of its steps."""
    return len(run.steps) > MAX_POINTS


@dataclass(frozen=True)
class Drawing:
    """What all rows of a chart are drawn by; `pack`: how values travel."""

    runs: Sequence[RunSeries]
    theme: Theme
    axis: Axis
    look: Look
    pack: Pack


def row_traces(drawing: Drawing, row: Row, *, log: bool) -> Iterator[Trace]:
    """All lines of a row that have any value and are not hidden. `log`: its axis has no place for 0 and below."""
    runs, theme, axis, look, pack = drawing.runs, drawing.theme, drawing.axis, drawing.look, drawing.pack
    for number, line in enumerate(row.panel.lines):
        if line.role in look.hide or not line.measured(runs):
            continue
        run = runs[line.run]
        x, y = run.steps.astype(np.float64), line.values(runs)
        meta = {"row": row.axis, "run": line.run, "role": line.role}
        base: Trace = {"type": "scatter", "yaxis": row.axis, "hoverinfo": "skip", "connectgaps": False}
        most = _ACROSS if look.window is None and too_long(run) else MAX_POINTS
        band = envelope(x, y, look.window, max_points=most)
        if band is not None:
            placed = Envelope(
                axis.place(band.x, line.run), *(_drawable(edge, log=log, lift=True) for edge in (band.low, band.high))
            )
            yield from _band(placed, base | {"meta": meta | {"of": number}}, theme.color(line.role), pack)
        pen = {"color": theme.color(line.role), "width": 1.5 if number == 0 else 1.1, "dash": line.dash}
        drawn = base | {"name": f"{row.panel.title}, {line.name}", "line": pen, "meta": meta | {"line": number}}
        values, smoothed = [(y, drawn)], look.smooth
        if smoothed:
            values = [
                (y, drawn | {"opacity": _FAINT}),
                (centred_median(y, smoothed), drawn | {"meta": meta | {"line": number, "smooth": smoothed}}),
            ]
        for column, trace in values:
            steps, shown = thin(x, column, look.window, max_points=most)
            yield trace | _line(axis.places[line.run][np.searchsorted(x, steps)], _drawable(shown, log=log), pack)


def _line(x: Floats, y: Floats, pack: Pack) -> Trace:
    finite = np.isfinite(y)
    alone = finite & ~np.append(False, finite[:-1]) & ~np.append(finite[1:], False)
    points: Trace = {"x": packed_places(x), "y": pack(y), "mode": "lines"}
    if not alone.any():
        return points
    return points | {"mode": "lines+markers", "marker": {"size": (alone * _DOT).tolist(), "line": {"width": 0}}}


def _drawable(y: Floats, *, log: bool, lift: bool = False) -> Floats:
    """Values that the axis has a place for; the others are gaps, or at the smallest one (`lift`: of a band)."""
    if not log:
        return y
    above = y[y > 0]
    least = float(above.min()) if lift and len(above) else np.nan
    return np.where(y > 0, y, np.where(np.isfinite(y), least, np.nan))


def _band(band: Envelope, base: Trace, color: str, pack: Pack) -> Iterator[Trace]:
    """The envelope as one trace, a polygon for each stretch of it without a gap: a fill between two lines would span
    the gaps."""
    parts = [part for part in _stretches(band.low) if len(part)]
    # There along one edge and back along the other; −1: the break between two polygons.
    around = [np.append(np.concatenate([part, part[::-1]]), -1) for part in parts]
    at = np.concatenate([*around, np.empty(0, dtype=np.int64)])
    there = np.concatenate([np.arange(len(turn)) < len(turn) // 2 for turn in around] or [np.empty(0, dtype=bool)])
    edge = np.where(at < 0, np.nan, np.where(there, band.low[at], band.high[at]))
    yield (
        base
        | {
            "x": packed_places(band.x[at]),
            "y": pack(edge),
            "mode": "lines",
            "line": {"width": 0, "color": color},
            "fill": "toself",
            "fillcolor": transparent(color, 0.18),
        }
    )


def _stretches(values: Floats) -> list[Indices]:
    """Positions of the values, split where there are none."""
    finite = np.flatnonzero(np.isfinite(values))
    return np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)
