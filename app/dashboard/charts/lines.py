"""Traces of a linked figure: each line, thinned, before its envelope. Pure.

A line's `meta` says what it is: `row` (its axis), `line` (place in its panel), `run`, `role`, and `smooth` where the
values were smoothed over so many steps. `browser/chart.js` finds it by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.downsample import MAX_POINTS, Envelope, Indices, Window, envelope, thin
from logprobe.app.dashboard.charts.packing import packed, packed_steps, transparent
from logprobe.app.dashboard.charts.rows import Row
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.theme import Theme

LONGEST: Final = 999  # steps; beyond that a run has a level, and no trend


def centred_median(y: Floats, steps: int) -> Floats:
    """The median of the `steps` values around each one; shape [n] as `y`.

    Windows are odd (one is added to an even `steps`), end where a gap (NaN) begins, and are shorter at the ends. A gap
    stays a gap. `browser/traces.js` smooths what it has by the same rule; change both together.

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

_ACROSS: Final = 1000  # points of a line over the whole of a long run: what a screen shows, before a band of all values


@dataclass(frozen=True)
class Detail:
    """What a reader looks at in a run that is too long to be sent whole: steps (first, last), and lines smoothed over
    so many.

    What is short enough is always sent whole; the browser zooms and smooths by itself.
    """

    window: Window | None = None
    smooth: int = 0


def too_long(run: RunSeries) -> bool:
    """Whether a trace cannot have a point for each of its steps."""
    return len(run.steps) > MAX_POINTS


def row_traces(runs: Sequence[RunSeries], row: Row, theme: Theme, detail: Detail) -> Iterator[Trace]:
    """All lines of a row that have any value; y values as measured, also where a logarithmic axis has no place for
    them."""
    for number, line in enumerate(row.panel.lines):
        if not line.measured(runs):
            continue
        run = runs[line.run]
        x, y = run.steps.astype(np.float64), line.values(runs)
        meta = {"row": row.axis, "run": line.run, "role": line.role}
        base: Trace = {"type": "scatter", "yaxis": row.axis, "hoverinfo": "skip", "connectgaps": False}
        most = _ACROSS if detail.window is None and too_long(run) else MAX_POINTS
        band = envelope(x, y, detail.window, max_points=most)
        yield from _band(band, base | {"meta": meta | {"of": number}}, theme.color(line.role))
        pen = {"color": theme.color(line.role), "width": 1.5 if number == 0 else 1.1, "dash": line.dash}
        drawn = base | {"mode": "lines", "name": f"{row.panel.title}, {line.name}", "line": pen}
        yield drawn | _line(*thin(x, y, detail.window, max_points=most)) | {"meta": meta | {"line": number}}
        if detail.smooth and too_long(run):
            points = _line(*thin(x, centred_median(y, detail.smooth), detail.window, max_points=most))
            yield drawn | points | {"meta": meta | {"line": number, "smooth": detail.smooth}}


def _line(steps: Floats, y: Floats) -> Trace:
    return {"x": packed_steps(steps), "y": packed(y)}


def _band(band: Envelope | None, base: Trace, color: str) -> Iterator[Trace]:
    """The envelope as one trace, a polygon for each stretch of it without a gap: a fill between two lines would span
    the gaps."""
    if band is None:
        return
    parts = [part for part in _stretches(band.low) if len(part)]
    # There along one edge and back along the other; −1: the break between two polygons.
    around = [np.append(np.concatenate([part, part[::-1]]), -1) for part in parts]
    at = np.concatenate([*around, np.empty(0, dtype=np.int64)])
    there = np.concatenate([np.arange(len(turn)) < len(turn) // 2 for turn in around] or [np.empty(0, dtype=bool)])
    edge = np.where(at < 0, np.nan, np.where(there, band.low[at], band.high[at]))
    yield (
        base
        | {
            "x": packed(band.x[at]),
            "y": packed(edge),
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
