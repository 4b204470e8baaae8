"""Step charts as pure functions: columns in, a plotly figure (plain data, as `plotly.io.from_json` takes it) out.

One figure, one x axis, one row per panel: zoom and crosshair are shared by construction. Headings, legends and the
values under the cursor are drawn around it by `browser/chart.js`, which finds a line's place through its trace's `meta`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logprobe.app.dashboard.charts.downsample import MAX_POINTS, envelope, thin
from logprobe.app.dashboard.charts.panels import Line, Panel
from logprobe.app.dashboard.charts.scales import Scale, log_ticks, scale_of
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.theme import Theme

Figure = dict[str, Any]
Trace = dict[str, Any]

_HEADING: Final = 28  # pixels above each row
_STRIP: Final = 12  # height of the event strip
_TOP, _BOTTOM, _LEFT, _RIGHT = 4, 40, 54, 10
_MANY_UPDATES: Final = 12  # more than that, and full-height lines would be a barcode
_MOST_LINES: Final = 100
_SYMBOLS: Final = {
    "config": ("configuration changes", "diamond"),
    "alert": ("alerts", "triangle-up"),
    "correction": ("corrections", "square"),
}


@dataclass(frozen=True)
class _Row:
    """Where a panel stands: its y axis, and its domain in pixels from the top of the plot area."""

    panel: Panel
    axis: str  # "y2"
    top: int
    bottom: int
    scale: Scale

    @property
    def layout_key(self) -> str:
        return f"yaxis{self.axis[1:]}"


@dataclass(frozen=True)
class Course:
    """What a chart shows of a verdict: the normal of `metric` with the band that is no growth, and where growth began."""

    metric: str
    baseline: float | None = None
    within: float = 1.0  # the band: baseline ÷ within … baseline × within
    since: int | None = None


def steps_figure(
    run: RunSeries, panels: Sequence[Panel], events: Sequence[Event], theme: Theme, course: Course | None = None
) -> Figure:
    """One row per panel over steps; `events` as ticks in a strip on top, and as hairlines while they are few.

    Lines without any value are left out. A trace has at most `MAX_POINTS` points; where that drops some, a shaded
    min–max envelope stands behind it. NaN is a gap.
    """
    rows = list(_rows(run, panels))
    height = rows[-1].bottom if rows else _STRIP
    data = [trace for row in rows for trace in _row_traces(run, row, theme)]
    layout = _layout(run, height, theme)
    for row in rows:
        layout[row.layout_key] = _y_axis(row, height, theme) | _scaled(row)
    data += _event_traces(events, theme)
    layout["shapes"] = [*_event_lines(events, theme), *_course_shapes(course, rows, theme)]
    layout["annotations"] = _onset_label(course, theme)
    return {"data": data, "layout": layout}


def _rows(run: RunSeries, panels: Sequence[Panel]) -> Iterator[_Row]:
    top = _STRIP
    for number, panel in enumerate(panels, start=2):  # y itself belongs to the event strip
        top += _HEADING
        yield _Row(panel, f"y{number}", top, top + panel.height, scale_of(run, panel))
        top += panel.height


def _layout(run: RunSeries, height: int, theme: Theme) -> dict[str, Any]:
    return {
        "uirevision": run.run,
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
            "range": _x_range(run),
            "title": {"text": "step", "standoff": 4, "font": {"size": 11}},
        },
        "yaxis": {
            "domain": [1 - _STRIP / height, 1],
            "range": [0, 1],
            "fixedrange": True,
            "visible": False,
        },
    }


def _y_axis(row: _Row, height: int, theme: Theme) -> dict[str, Any]:
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
    }


def _x_range(run: RunSeries) -> list[float]:
    """A little wider than the run, so that its ends can be seen."""
    if not len(run.steps):
        return [0.0, 1.0]
    first, last = float(run.steps[0]), float(run.steps[-1])
    room = max(0.5, 0.005 * (last - first))
    return [first - room, last + room]


def _scaled(row: _Row) -> dict[str, Any]:
    """The kind of y axis; `browser/traces.js` chooses ticks by the same rule when the reader zooms."""
    if not row.scale.log:
        return {"rangemode": "tozero"} if row.panel.from_zero else {}
    axis: dict[str, Any] = {"type": "log", "tickformat": ".2~e", "dtick": log_ticks(row.scale.decades)}
    return axis if row.scale.range is None else axis | {"range": list(row.scale.range)}


def _row_traces(run: RunSeries, row: _Row, theme: Theme) -> Iterator[Trace]:
    for number, line in enumerate(row.panel.lines):
        if not run.measured(line.metric):
            continue
        x, y = run.steps.astype(np.float64), run.column(line.metric)
        if row.scale.log:
            y = np.where(y > 0, y, np.nan)  # a logarithm has no place for them; the heading counts them
        yield from _envelope_traces(x, y, row, theme.color(line.role))
        yield _line_trace(thin(x, y, max_points=MAX_POINTS), row, number, line, theme)


def _line_trace(points: tuple[Floats, Floats], row: _Row, number: int, line: Line, theme: Theme) -> Trace:
    x, y = points
    lonely = _lonely(y)
    return {
        "type": "scatter",
        "mode": "lines+markers" if lonely.any() else "lines",
        "name": f"{row.panel.title}, {line.name}",
        "x": packed(x),
        "y": packed(y),
        "yaxis": row.axis,
        "line": {"color": theme.color(line.role), "width": 1.5 if number == 0 else 1.1, "dash": line.dash},
        # A point between two gaps has no line to be seen by.
        "marker": {"color": theme.color(line.role), "size": np.where(lonely, 4, 0).tolist() if lonely.any() else 4},
        "connectgaps": False,
        "hoverinfo": "skip",
        "meta": {"row": row.axis, "line": number},
    }


def _lonely(y: Floats) -> npt.NDArray[np.bool_]:
    known = np.isfinite(y)
    before, after = np.append(False, known[:-1]), np.append(known[1:], False)
    lonely: npt.NDArray[np.bool_] = known & ~before & ~after
    return lonely


def _envelope_traces(x: Floats, y: Floats, row: _Row, color: str) -> Iterator[Trace]:
    band = envelope(x, y)
    if band is None:
        return
    for edge, fill in ((band.low, "none"), (band.high, "tonexty")):
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": packed(band.x),
            "y": packed(edge),
            "yaxis": row.axis,
            "line": {"width": 0, "color": color},
            "fill": fill,
            "fillcolor": _transparent(color, 0.18),
            "hoverinfo": "skip",
        }


def _event_traces(events: Sequence[Event], theme: Theme) -> list[Trace]:
    """Weight updates as ticks, everything else as symbols, one kind each."""
    updates = _bars([event.step for event in events if event.kind == "weights" and event.step is not None])
    base: Trace = {"type": "scatter", "yaxis": "y", "hoverinfo": "skip"}
    ticks = base | {"mode": "lines", "name": "weight updates", "x": updates[0], "y": updates[1]}
    ticks |= {"line": {"color": theme.muted, "width": 1}}
    return [ticks, *(base | _symbols(events, kind, theme) for kind in _SYMBOLS)]


def _symbols(events: Sequence[Event], kind: str, theme: Theme) -> Trace:
    name, symbol = _SYMBOLS[kind]
    steps = [float(event.step) for event in events if event.kind == kind and event.step is not None]
    return {
        "mode": "markers", "name": name, "x": steps, "y": [0.5] * len(steps), "cliponaxis": False,
        "marker": {"symbol": symbol, "size": 8, "color": event_color(kind, theme)},
    }  # fmt: skip


def event_color(kind: str, theme: Theme) -> str:
    """Colour of the marks of one kind of event."""
    return {"weights": theme.line, "alert": theme.alarm, "correction": theme.total}.get(kind, theme.update)


def _bars(steps: Sequence[int]) -> tuple[list[float | None], list[float | None]]:
    """Short upright ticks as one line with gaps, thinned to what a screen can tell apart."""
    shown = sorted(set(steps))
    shown = shown[:: max(1, -(-len(shown) // (MAX_POINTS // 3)))]
    return [x for step in shown for x in (float(step), float(step), None)], [0.15, 0.85, None] * len(shown)


def _event_lines(events: Sequence[Event], theme: Theme) -> list[dict[str, Any]]:
    """Hairlines through all rows: what people did always, weight updates while they can be told apart, alerts never."""
    placed = [event for event in events if event.step is not None]
    updates = [event for event in placed if event.kind == "weights"]
    shown = [event for event in placed if event.kind in {"config", "correction"}]
    if len(updates) <= _MANY_UPDATES:
        shown += updates
    return [
        {
            "type": "line", "xref": "x", "yref": "paper", "x0": event.step, "x1": event.step, "y0": 0, "y1": 1,
            "layer": "below",
            "line": {"width": 1, "dash": "dot", "color": event_color(event.kind, theme)},
        }
        for event in shown[-_MOST_LINES:]
    ]  # fmt: skip


def _course_shapes(course: Course | None, rows: Sequence[_Row], theme: Theme) -> Iterator[dict[str, Any]]:
    if course is None:
        return
    row = next((row for row in rows if row.panel.metric == course.metric), None)
    if row is not None and course.baseline is not None:
        yield _baseline(course.baseline, row, theme) | {"type": "line", "y1": course.baseline}
        if course.within > 1:
            yield _band(course.baseline / course.within, course.baseline * course.within, row, theme)
    if course.since is not None:
        yield {
            "type": "line", "xref": "x", "yref": "paper", "x0": course.since, "x1": course.since, "y0": 0, "y1": 1,
            "layer": "below", "line": {"width": 1.5, "color": theme.alarm},
        }  # fmt: skip


def _baseline(value: float, row: _Row, theme: Theme) -> dict[str, Any]:
    line = {"width": 1, "dash": "dash", "color": theme.neutral}
    return {"xref": "x domain", "yref": row.axis, "x0": 0, "x1": 1, "y0": value, "layer": "below", "line": line}


def _band(low: float, high: float, row: _Row, theme: Theme) -> dict[str, Any]:
    base = _baseline(low, row, theme)
    return base | {"type": "rect", "y1": high, "line": {"width": 0}, "fillcolor": _transparent(theme.neutral, 0.12)}


def _onset_label(course: Course | None, theme: Theme) -> list[dict[str, Any]]:
    if course is None or course.since is None:
        return []
    font = {"size": 11, "color": theme.alarm}
    place = {
        "xref": "x",
        "yref": "paper",
        "x": course.since,
        "y": 1,
        "xanchor": "left",
        "yanchor": "top",
        "yshift": -10,
    }
    return [{**place, "text": f" since {course.since:,}", "showarrow": False, "font": font}]


def packed(values: Floats) -> dict[str, str]:
    """An array in plotly's typed form: half the size of JSON numbers, and nothing to parse. Steps fit float64 exactly."""
    return {"dtype": "f8", "bdata": b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")}


def _transparent(color: str, alpha: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
