"""Step charts as pure functions: columns in, a plotly figure (plain data, as `plotly.io.from_json` takes it) out.

One figure, one x axis, one row per panel: zoom and crosshair are shared by construction. The x axis counts steps here;
headings, legends, the values under the cursor and other x axes are the business of `browser/chart.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from logprobe.app.dashboard.charts.lines import Detail, row_traces
from logprobe.app.dashboard.charts.marks import Trend, event_lines, event_traces, onset_label, trend_shapes
from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.charts.rows import STRIP, Row, rows_of
from logprobe.app.dashboard.charts.scales import log_ticks
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.theme import Theme

Figure = dict[str, Any]

_TOP, _BOTTOM, _LEFT, _RIGHT = 4, 40, 54, 10
WHOLE: Final = Detail()


def steps_figure(
    runs: Sequence[RunSeries],
    panels: Sequence[Panel],
    events: Sequence[Event],
    theme: Theme,
    *,
    trend: Trend | None = None,
    detail: Detail = WHOLE,
) -> Figure:
    """One row per panel over steps; `events` as marks in a strip on top, and as hairlines while they are few.

    Lines without any value are left out. A trace has at most `MAX_POINTS` points, `detail` says where they are wanted;
    where that drops some, a shaded min–max envelope stands behind it. NaN is a gap.
    """
    rows = list(rows_of(runs, panels))
    height = rows[-1].bottom if rows else STRIP
    layout = _layout(runs, height, theme)
    for row in rows:
        layout[row.layout_key] = _y_axis(row, height, theme) | _scaled(row)
    layout["shapes"] = [*event_lines(events, theme), *trend_shapes(trend, rows, theme)]
    layout["annotations"] = onset_label(trend, theme)
    lines = [trace for row in rows for trace in row_traces(runs, row, theme, detail)]
    return {"data": [*lines, *event_traces(events, theme)], "layout": layout}


def _layout(runs: Sequence[RunSeries], height: int, theme: Theme) -> dict[str, object]:
    return {
        "height": _TOP + height + _BOTTOM,
        "margin": {"l": _LEFT, "r": _RIGHT, "t": _TOP, "b": _BOTTOM, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted},
        "showlegend": False,
        "hovermode": False,  # the component's crosshair reads all rows at once
        "dragmode": "zoom",
        "xaxis": {
            "anchor": "free",
            "position": 0,
            "gridcolor": theme.line,
            "zeroline": False,
            "showline": False,
            "ticks": "",
            "tickformat": ",d",
            "nticks": 12,
            "range": _x_range(runs),
            "title": {"text": "step", "standoff": 4, "font": {"size": 11}},
        },
        "yaxis": {
            "domain": [1 - STRIP / height, 1],
            "range": [0, 1],
            "fixedrange": True,
            "visible": False,
        },
    }


def _y_axis(row: Row, height: int, theme: Theme) -> dict[str, object]:
    return {
        "domain": [max(0.0, 1 - row.bottom / height), 1 - row.top / height],
        "anchor": "x",
        "fixedrange": True,
        "gridcolor": theme.line,
        "zeroline": not row.scale.log,
        "zerolinecolor": theme.muted,
        "zerolinewidth": 0.5,
        "nticks": 4 if row.panel.height < 100 else 6,  # noqa: PLR2004 -- what fits without touching
        "exponentformat": "e",
        "showexponent": "all",
        "rangemode": "tozero" if row.panel.from_zero else "normal",
    }


def _x_range(runs: Sequence[RunSeries]) -> list[float]:
    """A little wider than the runs, so that their ends can be seen."""
    with_steps = [run.steps for run in runs if len(run.steps)]
    if not with_steps:
        return [0.0, 1.0]
    first, last = float(min(steps[0] for steps in with_steps)), float(max(steps[-1] for steps in with_steps))
    room = max(0.5, 0.005 * (last - first))
    return [first - room, last + room]


def _scaled(row: Row) -> dict[str, object]:
    """The kind of y axis; `browser/plot.js` chooses ticks by the same rule when the reader zooms."""
    if not row.scale.log:
        return {"type": "linear"}
    axis: dict[str, object] = {"type": "log", "tickformat": ".2~e", "dtick": log_ticks(row.scale.decades)}
    return axis if row.scale.range is None else axis | {"range": list(row.scale.range)}
