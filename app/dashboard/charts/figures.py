"""Step charts as pure functions: columns in, a plotly figure (plain data, as `plotly.io.from_json` takes it) out.

One figure, one x axis, one row per panel: zoom and crosshair are shared by construction. Headings, legends and the
values under the pointer are the business of `browser/chart.js`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.axes import Axis, axis_of
from logprobe.app.dashboard.charts.lines import Drawing, Pack, Trace, row_traces
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.marks import Trend, event_lines, event_traces, onset_label, trend_shapes
from logprobe.app.dashboard.charts.packing import packed_values, unpacked
from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.charts.rows import STRIP, Row, rows_of
from logprobe.app.dashboard.charts.scales import log_ticks
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.theme import Theme

Figure = dict[str, Any]

_TOP, _BOTTOM, _LEFT, _RIGHT = 4, 40, 54, 10
_ROOM: Final = 0.08  # of the range of what is in view, above and below
_LATE: Final = 0.85  # of the width: beyond it words stand on the left of their line
WHOLE: Final = Look()


def steps_figure(
    runs: Sequence[RunSeries],
    panels: Sequence[Panel],
    events: Sequence[Event],
    theme: Theme,
    *,
    trend: Trend | None = None,
    look: Look = WHOLE,
    axis: Axis | None = None,
    pack: Pack = packed_values,
) -> Figure:
    """One row per panel; `events` as marks in a strip on top, and as hairlines while they are few. `axis`: of steps
    where none is given; `pack`: how values travel.

    Lines without any value are left out. A trace has at most `MAX_POINTS` points, most of them in view; where that
    drops some, a shaded min–max envelope stands behind it. NaN is a gap.
    """
    axis = axis or axis_of(runs)
    drawing = Drawing(runs, theme, axis, look, pack)
    rows = list(rows_of(runs, panels))
    height = rows[-1].bottom if rows else STRIP
    low, high = axis.range(look.window)
    layout = _layout(axis, (low, high), height, theme)
    lines: list[Trace] = []
    for row in rows:
        log = look.is_log(row.panel.metric, usual=row.scale.log)
        traces = list(row_traces(drawing, row, log=log))
        hidden = look.hide & {line.role for line in row.panel.lines}
        usual = row.scale.log and log and look.window is None and not hidden
        kind = _scaled(row) if usual else _around(traces, (low, high), log=log, zero=row.panel.from_zero)
        layout[row.layout_key] = _y_axis(row, height, theme, log=log) | kind
        lines += traces
    layout["shapes"] = [
        _placed(shape, axis) for shape in (*event_lines(events, theme), *trend_shapes(trend, rows, theme))
    ]
    layout["annotations"] = [_beside(words, axis, low, high) for words in onset_label(trend, theme)]
    return {"data": [*lines, *event_traces(events, theme, axis)], "layout": layout}


def _placed(shape: dict[str, object], axis: Axis) -> dict[str, object]:
    """A shape of steps at their places."""
    if shape["xref"] != "x":
        return shape
    return shape | {name: float(axis.place(np.float64(shape[name]))) for name in ("x0", "x1")}  # type: ignore[arg-type]


def _beside(words: dict[str, object], axis: Axis, low: float, high: float) -> dict[str, object]:
    """Words beside a line at a step, on the side where there is room."""
    at = float(axis.place(np.float64(words["x"])))  # type: ignore[arg-type]
    return words | {
        "x": at,
        "xanchor": "right" if at > low + _LATE * (high - low) else "left",
        "visible": low <= at <= high,
    }


def _layout(axis: Axis, shown: tuple[float, float], height: int, theme: Theme) -> dict[str, object]:
    return {
        "height": _TOP + height + _BOTTOM,
        "margin": {"l": _LEFT, "r": _RIGHT, "t": _TOP, "b": _BOTTOM, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted},
        "showlegend": False,
        "hovermode": "closest",  # of marks; the component reads all rows at once
        "hoverlabel": {"font": {"size": 12}, "align": "left"},
        "dragmode": "zoom",
        "xaxis": {
            "anchor": "free",
            "position": 0,
            "gridcolor": theme.line,
            "zeroline": False,
            "showline": False,
            "ticks": "",
            "tickformat": axis.tickformat,
            "nticks": 12,
            "range": list(shown),
            "title": {"text": axis.title, "standoff": 4, "font": {"size": 11}},
        },
        "yaxis": {
            "domain": [1 - STRIP / height, 1],
            "range": [0, 1],
            "fixedrange": True,
            "visible": False,
        },
    }


def _y_axis(row: Row, height: int, theme: Theme, *, log: bool) -> dict[str, object]:
    return {
        "domain": [max(0.0, 1 - row.bottom / height), 1 - row.top / height],
        "anchor": "x",
        "fixedrange": True,
        "gridcolor": theme.line,
        "zeroline": not log,
        "zerolinecolor": theme.muted,
        "zerolinewidth": 0.5,
        "nticks": 4 if row.panel.height < 100 else 6,  # noqa: PLR2004 -- what fits without touching
        "exponentformat": "e",
        "showexponent": "all",
        "rangemode": "tozero" if row.panel.from_zero else "normal",
    }


def _scaled(row: Row) -> dict[str, object]:
    """The logarithmic y axis over all of the run."""
    axis: dict[str, object] = {"type": "log", "tickformat": ".2~e", "dtick": log_ticks(row.scale.decades)}
    return axis if row.scale.range is None else axis | {"range": list(row.scale.range)}


def _around(traces: Iterable[Trace], shown: tuple[float, float], *, log: bool, zero: bool) -> dict[str, object]:
    """The y axis around what is in view, with room for the labels of its ends; `zero`: a linear one begins at 0."""
    kind: dict[str, object] = {"type": "log", "tickformat": ".2~e"} if log else {"type": "linear"}
    parts = [_in_view(trace, shown, log=log) for trace in traces]
    values = np.concatenate([*parts, np.empty(0)])
    if not len(values):
        return kind
    low, high = float(values.min()), float(values.max())
    from_zero = zero and not log
    low = min(0.0, low) if from_zero else low
    room = _ROOM * ((high - low) or abs(high) * 0.1 or 1.0)
    low = low if from_zero else low - room
    return kind | {"range": [low, high + room]} | ({"dtick": log_ticks(high + room - low)} if log else {})


def _in_view(trace: Trace, shown: tuple[float, float], *, log: bool) -> Floats:
    """Finite values (decades: `log`) of a trace in view; one point beyond either side counts: lines enter and leave
    it."""
    x, y = unpacked(trace["x"]), unpacked(trace["y"])
    after, before = np.append(x[1:], np.inf), np.append(-np.inf, x[:-1])
    values = y[(after >= shown[0]) & (before <= shown[1])]
    values = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
    drawn: Floats = np.log10(values) if log else values
    return drawn
