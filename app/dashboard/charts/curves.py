"""Small charts of curves over steps, for `browser/chart.js`: rows with headings that read the values, marks, spans and
limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.downsample import Window
from logprobe.app.dashboard.charts.packing import packed_places, packed_values, transparent
from logprobe.app.dashboard.charts.scales import log_ticks
from logprobe.app.dashboard.data.series import Floats
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number

_TOP, _BOTTOM, _LEFT, _RIGHT, _HEAD = 4, 40, 54, 10, 28
_ROOM: Final = 0.08  # of the range, above and below
_DASHES: Final = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Curve:
    """A line of a row; `x` ascending, NaN in `y` is a gap."""

    name: str
    x: Floats
    y: Floats
    color: str
    dash: str = "solid"


@dataclass(frozen=True)
class CurveRow:
    """A row of a chart.

    Attributes:
        title: of the row.
        curves: one at least.
        unit: beside the title.
        help: what it is, in a tooltip.
        note: beside the title, in small print.
        log: whether its axis is logarithmic.
        floor: what is below it is not seen; None: all is.
        limits: words and values of horizontal lines.
        height: of the plot, pixels.
    """

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    help: str = ""
    note: str = ""
    log: bool = False
    floor: float | None = None
    limits: Sequence[tuple[str, float]] = ()
    height: int = 110


@dataclass(frozen=True)
class Happened:
    """What happened at a step; `color` of its line."""

    step: float
    words: str
    color: str


@dataclass(frozen=True)
class Span:
    """Steps of which something holds."""

    first: float
    last: float
    color: str


def curves_chart(
    name: str,
    rows: Sequence[CurveRow],
    theme: Theme,
    *,
    alt: str,
    marks: Sequence[Happened] = (),
    spans: Sequence[Span] = (),
    window: Window | None = None,
    axis: str = "step",
) -> dict[str, object]:
    """Data of `browser/chart.js`: all rows share the x axis, and thereby the zoom. `window`: what is in view."""
    places = np.unique(np.concatenate([curve.x for row in rows for curve in row.curves]))
    low, high = (places[0], max(places[-1], places[0] + 1)) if window is None else window
    room = max(0.5, 0.005 * (high - low))
    shown = (float(low - room), float(high + room))
    height = sum(row.height + _HEAD for row in rows)
    layout = _layout(height, shown, theme, axis)
    traces: list[dict[str, Any]] = []
    top = 0
    for at, row in enumerate(rows, start=1):
        key = "" if at == 1 else str(at)
        top += _HEAD
        layout[f"yaxis{key}"] = _axis(row, shown, theme) | {
            "domain": [max(0.0, 1 - (top + row.height) / height), 1 - top / height], "anchor": "x",
        }  # fmt: skip
        top += row.height
        traces += [_trace(row, curve, line, f"y{key}") for line, curve in enumerate(row.curves)]
        layout["shapes"] += [_limit(value, f"y{key}", theme) for _, value in row.limits]
        layout["annotations"] += [_words(words, value, f"y{key}", theme, log=row.log) for words, value in row.limits]
    layout["shapes"] += [*map(_span, spans), *(_line(mark) for mark in marks if low <= mark.step <= high)]
    return {
        "run": name,
        "figure": {"data": traces, "layout": layout},
        "columns": [],
        "stops": [{"name": name, "steps": packed_places(places), "places": None}],
        "unit": "",
        "zooms": True,
        "axis": axis,
        "window": None if window is None else [int(step) for step in window],
        "rows": [_row(row, "" if at == 1 else str(at)) for at, row in enumerate(rows, start=1)],
        "legend": [],
        "note": "", "note_help": "", "absent": "", "kinds": [],
        "events": [{"step": mark.step, "words": mark.words} for mark in marks],
        "alt": alt,
    }  # fmt: skip


def dash_of(at: int) -> str:
    """The dash of the n-th of several lines."""
    return _DASHES[at % len(_DASHES)]


def _layout(height: int, shown: tuple[float, float], theme: Theme, title: str) -> dict[str, Any]:
    return {
        "height": _TOP + height + _BOTTOM,
        "margin": {"l": _LEFT, "r": _RIGHT, "t": _TOP, "b": _BOTTOM, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted}, "showlegend": False, "hovermode": "closest", "dragmode": "zoom",
        "xaxis": {
            "anchor": "free", "position": 0, "gridcolor": theme.line, "zeroline": False, "ticks": "", "tickformat": ",d",
            "nticks": 12, "range": list(shown), "title": {"text": title, "standoff": 4, "font": {"size": 11}},
        },
        "shapes": [], "annotations": [],
    }  # fmt: skip


def _axis(row: CurveRow, shown: tuple[float, float], theme: Theme) -> dict[str, Any]:
    """The y axis around what is in view, with a little room, so that no label is cut off."""
    kind = {
        "fixedrange": True, "gridcolor": theme.line, "zeroline": not row.log, "zerolinecolor": theme.muted,
        "zerolinewidth": 0.5, "nticks": 4, "type": "log" if row.log else "linear",
    }  # fmt: skip
    values = _placed(
        np.concatenate([*(_in_view(curve, shown) for curve in row.curves), [v for _, v in row.limits]]), row
    )
    if not len(values):
        return kind
    low, high = float(values.min()), float(values.max())
    room = _ROOM * ((high - low) or abs(high) * 0.1 or 1.0)
    ticks = {"dtick": log_ticks(high - low + 2 * room), "tickformat": ".2~e"} if row.log else {}
    return kind | {"range": [low - room, high + room]} | ticks


def _in_view(curve: Curve, shown: tuple[float, float]) -> Floats:
    seen: Floats = curve.y[(curve.x >= shown[0]) & (curve.x <= shown[1])]
    return seen


def _placed(values: Floats, row: CurveRow) -> Floats:
    """Those that the axis has a place for; of a logarithmic one in decades."""
    finite: Floats = values[np.isfinite(values)]
    if not row.log:
        return finite
    logs: Floats = np.log10(finite[(finite > 0) & (finite >= (row.floor or 0.0))])
    return logs


def _trace(row: CurveRow, curve: Curve, line: int, axis: str) -> dict[str, Any]:
    y = np.where(curve.y > 0, curve.y, np.nan) if row.log else curve.y
    alone = np.isfinite(y) & ~np.isfinite(np.append(np.nan, y[:-1])) & ~np.isfinite(np.append(y[1:], np.nan))
    trace = {
        "type": "scatter", "mode": "lines", "name": curve.name, "x": packed_places(curve.x), "y": packed_values(y),
        "yaxis": axis, "hoverinfo": "skip", "connectgaps": False,
        "line": {"color": curve.color, "width": 1.5, "dash": curve.dash},
        "meta": {"row": axis, "run": 0, "line": line},
    }  # fmt: skip
    return trace | ({"mode": "lines+markers", "marker": {"size": (4 * alone).tolist()}} if alone.any() else {})


def _limit(value: float, axis: str, theme: Theme) -> dict[str, Any]:
    line = {"width": 1, "dash": "dash", "color": theme.neutral}
    return {"type": "line", "xref": "x domain", "yref": axis, "x0": 0, "x1": 1, "y0": value, "y1": value, "layer": "below", "line": line}  # fmt: skip


def _words(words: str, value: float, axis: str, theme: Theme, *, log: bool) -> dict[str, Any]:
    return {
        "text": f"{words} {number(value)}", "xref": "x domain", "x": 0.01, "yref": axis, "y": np.log10(value) if log else value,
        "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": theme.muted},
    }  # fmt: skip


def _span(span: Span) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": span.first, "x1": max(span.last, span.first + 0.5), "y0": 0, "y1": 1,
        "layer": "below", "line": {"width": 0}, "fillcolor": transparent(span.color, 0.14),
    }  # fmt: skip


def _line(mark: Happened) -> dict[str, Any]:
    line = {"width": 1, "dash": "dot", "color": mark.color}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": mark.step, "x1": mark.step, "y0": 0, "y1": 1, "layer": "below", "line": line}  # fmt: skip


def _row(row: CurveRow, key: str) -> dict[str, object]:
    return {
        "axis": f"y{key}", "key": row.title, "title": row.title, "unit": row.unit, "help": row.help, "log": row.log, "other": None,
        "note": row.note,
        "lines": [
            {"line": at, "run": 0, "role": "", "name": curve.name, "color": curve.color, "dash": curve.dash, "latest": _newest(curve.y)}
            for at, curve in enumerate(row.curves)
        ],
    }  # fmt: skip


def _newest(values: Floats) -> float | None:
    finite: Floats = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def columns_of(points: Iterable[tuple[float, float | None]]) -> tuple[Floats, Floats]:
    """Points as columns; None is NaN."""
    pairs = list(points)
    x = np.array([step for step, _ in pairs], dtype=np.float64)
    return x, np.array([np.nan if value is None else value for _, value in pairs], dtype=np.float64)
