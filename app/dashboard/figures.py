"""Charts as pure functions from columns to plotly figures as plain data, with the extras of `browser/plot.js`.

Plain data is used because plotly.py's objects cost 0.5 s of CPU time per figure. Rows share one x axis, zoom and
crosshair. A page draws a chart with ``ui.plot("my key", rows_chart(...))``.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import Floats, floor_of, thin
from logprobe.app.text.numbers import number

Figure = dict[str, Any]
Window = tuple[float, float]

STEPS: Final = "step"  # title of the axis whose places are whole steps
HEADING: Final = 28  # pixels above each row
STRIP: Final = 16  # of the marks on top
_MARGIN: Final = {"l": 54, "r": 12, "t": 6, "b": 40, "pad": 0}
_LOW: Final = 100  # pixels: such a row has room for few labels
_ROOM: Final = 0.08  # of the range, above and below: no label is cut off
_LATE: Final = 0.85  # of the width: beyond it words stand on the left of their line
_SINGLE: Final = np.finfo(np.float32)
_MANY_UPDATES: Final = 12  # more than that, and full-height lines would be a barcode
MOST_LINES: Final = 100
MOST_SYMBOLS: Final = 300  # of a kind, the newest


@dataclass(frozen=True)
class Curve:
    """A line of a row, with ascending `x` and NaN in `y` for a gap.

    `group`: legend entry that toggles the line. `band`: lower and upper edge around the line. `faint`: true for a line
    drawn behind another.
    """

    name: str
    x: Floats
    y: Floats
    color: str
    dash: str = "solid"
    group: str = ""
    band: tuple[Floats, Floats] | None = None
    faint: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a chart.

    Attributes:
        title: title of the row.
        curves: lines of the row, at least one.
        unit: unit next to the title.
        help: explanation in a tooltip.
        log: true for a logarithmic axis.
        from_zero: true if a linear axis begins at 0.
        limits: words and values of horizontal lines.
        around: normal value, and the factor of normal variation up and down.
        height: height of the plot in pixels.
    """

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    help: str = ""
    log: bool = False
    from_zero: bool = False
    limits: Sequence[tuple[str, float]] = ()
    around: tuple[float, float] | None = None
    height: int = 110


@dataclass(frozen=True)
class Mark:
    """An event at a place of the x axis. `kind`: one of `KINDS`."""

    kind: str
    at: float
    words: str


@dataclass(frozen=True)
class Kind:
    """Name and appearance of a kind of event. `through`: true to draw a line through all rows."""

    name: str
    symbol: str
    color: Callable[[Theme], str]
    through: bool = False


KINDS: Final = {
    "weights": Kind("weights updated", "line-ns-open", lambda theme: theme.muted),
    "alert": Kind("alert fired", "triangle-up", lambda theme: theme.alarm),
    "config": Kind("configuration changed", "diamond", lambda theme: theme.update, through=True),
    "learning_rate": Kind("learning rate changed", "circle", lambda theme: theme.accent),
    "restart": Kind("restarted", "cross", lambda theme: theme.text, through=True),
    "correction": Kind("correction", "square", lambda theme: theme.total, through=True),
    "broken": Kind("broken tokens", "x", lambda theme: theme.alarm),
    "chosen": Kind("chosen", "triangle-down", lambda theme: theme.alarm, through=True),
}


@dataclass(frozen=True)
class Chart:
    """A figure with its texts.

    Attributes:
        figure: figure for plotly.
        alt: description in words.
        rows: axis, tooltip and lines of each row. A line is the number of its trace, name, colour and CSS style.
        words: texts by x place.
        axis: name of the x axis, for keyboard users.
        zooms: true if the x axis can be zoomed. whole: true if the x places are whole steps. A zoom then begins and
            ends between steps.
        note: text below the chart.
    """

    figure: Figure
    alt: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    axis: str = ""
    zooms: bool = True
    whole: bool = False
    note: str = ""

    @cached_property
    def text(self) -> str:
        """The figure as JSON text."""
        return json.dumps(self.figure, separators=(",", ":"))


def packed(values: NDArray[Any], kind: str = "f8") -> dict[str, str]:
    """Return an array in plotly's typed form, which has half the size of JSON numbers and needs no parsing."""
    return {"dtype": kind, "bdata": b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode("ascii")}


def packed_places(places: Floats) -> dict[str, str]:
    """Return places of an x axis, packed as integers if all of them are."""
    whole = not len(places) or bool((places == np.round(places)).all() and np.abs(places).max() < 2**31)
    return packed(places, "i4" if whole else "f8")


def packed_values(values: Floats) -> dict[str, str]:
    """Return values to be drawn, packed with seven digits where they fit, which is enough for a screen."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    fits = not len(sizes) or bool(sizes.max() < _SINGLE.max and sizes.min() > _SINGLE.tiny)
    return packed(values, "f4" if fits else "f8")


def transparent(color: str, alpha: float) -> str:
    """Return a hex colour with an opacity of 0 to 1.

    >>> transparent("#0072b2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def plain(words: object) -> str:
    """Return escaped text for a label of plotly, which interprets labels as markup."""
    return escape(str(words), quote=False)


def rows_chart(
    name: str,
    rows: Sequence[Row],
    theme: Theme,
    *,
    alt: str,
    marks: Sequence[Mark] = (),
    since: float | None = None,
    window: Window | None = None,
    axis: str = STEPS,
    legend: bool = False,
    note: str = "",
    exact: bool = False,
    zooms: bool = True,
) -> Chart:
    """Return a chart of rows over one x axis.

    Args:
        name: identity of the content. A zoom and hidden lines persist while the name is unchanged.
        rows: rows from the top down, at least one.
        theme: colours.
        alt: description in words.
        marks: events in a strip on top.
        since: step of a line through all rows that marks the onset.
        window: places in view, or None for all.
        axis: title of the x axis.
        legend: true to list groups of curves above, as switches.
        note: text below the chart.
        exact: true to keep all digits of values instead of those that a screen needs.
        zooms: true if its x axis can be zoomed.
    """
    places = np.concatenate([curve.x[np.isfinite(curve.x)] for row in rows for curve in row.curves])
    low, high = window or (float(places.min()), float(places.max()))
    room = 0.5 if window and axis == STEPS else max(0.5 if axis == STEPS else 0.0, 0.005 * (high - low)) or 0.5
    shown = (low - room, high + room)
    top = STRIP if marks or since is not None else 0
    height = top + sum(row.height + HEADING for row in rows)
    margin = dict(_MARGIN, t=_MARGIN["t"] + (22 if legend else 0))
    layout = _layout(height + margin["t"] + margin["b"], margin, theme) | {
        "uirevision": name,
        "dragmode": "zoom" if zooms else False,
        "showlegend": legend,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "groupclick": "togglegroup",
            "font": {"size": 12, "color": theme.text},
        },
        "xaxis": _x_axis(theme, axis) | {"range": list(shown)},
        "yaxis": {"domain": [1 - max(top, 1) / height, 1], "range": [0, 1], "fixedrange": True, "visible": False},
    }
    traces: list[Figure] = []
    headings: list[dict[str, Any]] = []
    named: set[str] = set()
    for at, row in enumerate(rows, start=2):
        top += HEADING
        end = 1 - top / height
        placed = {"domain": [max(0.0, 1 - (top + row.height) / height), end], "anchor": "x"}
        layout[f"yaxis{at}"] = _y_axis(row, shown, theme) | placed
        layout["annotations"].append(_title(row, end, theme))
        headings.append({"axis": f"yaxis{at}", "help": row.help, "title": row.title, "lines": []})
        for curve in row.curves:
            traces += _band(curve, f"y{at}", log=row.log)
            if not curve.faint:
                several = len(row.curves) > 1
                line = {"trace": len(traces), "name": curve.name if several else "", "color": curve.color}
                line["line"] = "solid" if curve.dash == "solid" else "dashed"
                headings[-1]["lines"].append(line)
            traces.append(
                _trace(row, curve, f"y{at}", in_legend=legend and curve.group not in named | {""}, exact=exact)
            )
            named.add(curve.group)
        layout["shapes"] += [*_limits(row, f"y{at}", theme)]
        layout["annotations"] += [
            _limit_words(words, value, f"y{at}", theme, log=row.log) for words, value in row.limits
        ]
        top += row.height
    layout["shapes"] += _lines(marks, theme)
    if since is not None:
        layout["shapes"].append(_upright(since, {"width": 1.5, "color": theme.alarm}))
        layout["annotations"].append(_beside(f" since {since:,g} ", since, shown, theme))
    traces += [_symbols(kind, marks, theme) for kind in KINDS if any(mark.kind == kind for mark in marks)]
    words: dict[str, str] = {}
    for mark in marks:
        if mark.kind != "weights":
            words[_key(mark.at)] = "; ".join(filter(None, [words.get(_key(mark.at)), mark.words]))
    figure = {"data": traces, "layout": layout}
    return Chart(figure, alt, headings, words, axis, zooms, whole=axis == STEPS, note=note)


def _key(place: float) -> str:
    """Return an x place in the notation of JavaScript."""
    return str(int(place)) if place == int(place) else repr(float(place))


def _layout(height: int, margin: dict[str, int], theme: Theme) -> Figure:
    return {
        "height": height, "margin": margin, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted}, "showlegend": False, "hovermode": "closest", "dragmode": False,
        "hoverlabel": {"font": {"size": 12}, "align": "left"}, "shapes": [], "annotations": [],
    }  # fmt: skip


def _x_axis(theme: Theme, title: str) -> Figure:
    return {
        "anchor": "free", "position": 0, "gridcolor": theme.line, "zeroline": False, "ticks": "", "nticks": 10,
        "title": {"text": plain(title), "standoff": 4, "font": {"size": 11}}, "tickformat": ",d" if title == STEPS else "~s",
    }  # fmt: skip


def _y_axis(row: Row, shown: Window, theme: Theme) -> Figure:
    """Return the y axis around the values in view. A logarithmic axis omits tiny outliers at its lower end."""
    axis = {
        "fixedrange": True,
        "gridcolor": theme.line,
        "zeroline": not row.log,
        "zerolinecolor": theme.muted,
        "exponentformat": "e",
        "zerolinewidth": 0.5,
        "nticks": 4 if row.height < _LOW else 6,
        "type": "log" if row.log else "linear",
    }
    parts = [curve.y[(curve.x >= shown[0]) & (curve.x <= shown[1])] for curve in row.curves]
    values = np.concatenate([*parts, np.array([value for _, value in row.limits], dtype=np.float64)])
    values = values[np.isfinite(values) & ((values > 0) | (not row.log))]
    if row.log and len(values):
        values = np.log10(values[values >= floor_of(values)])
    if not len(values):
        return axis
    low, high = float(values.min()), float(values.max())
    low = min(0.0, low) if row.from_zero and not row.log else low
    room = _ROOM * ((high - low) or abs(high) * 0.1 or 1.0)
    axis["range"] = [low if row.from_zero and not row.log else low - room, high + room]
    return axis | ({"dtick": log_ticks(high - low + 2 * room), "tickformat": ".2~e"} if row.log else {})


def log_ticks(decades: float) -> str | int | None:
    """Return plotly's `dtick` of a logarithmic axis by its number of decades, or None for plotly's choice."""
    if decades < 0.35:  # noqa: PLR2004 - less than a factor of 2.2
        return None
    return "D2" if decades < 1.6 else math.ceil(decades / 4)  # noqa: PLR2004 - four labels at most


def _title(row: Row, y: float, theme: Theme) -> Figure:
    unit = f' <span style="color:{theme.muted};font-weight:400">{plain(row.unit)}</span>' if row.unit else ""
    return {
        "text": f"<b>{plain(row.title)}</b>{unit}",
        "xref": "paper",
        "x": 0,
        "xshift": 6 - _MARGIN["l"],
        "xanchor": "left",
        "yref": "paper",
        "y": y,
        "yanchor": "bottom",
        "yshift": 3,
        "showarrow": False,
        "font": {"size": 12, "color": theme.text},
    }


def _trace(row: Row, curve: Curve, axis: str, *, in_legend: bool, exact: bool) -> Figure:
    x, y = thin(curve.x, np.where(curve.y > 0, curve.y, np.nan) if row.log else curve.y)
    alone = np.isfinite(y) & ~np.isfinite(np.append(np.nan, y[:-1])) & ~np.isfinite(np.append(y[1:], np.nan))
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": plain(curve.group or curve.name),
        "x": packed_places(x),
        "y": packed(y) if exact else packed_values(y),
        "yaxis": axis,
        "hoverinfo": "skip",
        "line": {"color": curve.color, "width": 1.5, "dash": curve.dash},
        "showlegend": in_legend,
        "opacity": 0.28 if curve.faint else 1.0,
    }
    trace |= {"legendgroup": plain(curve.group)} if curve.group else {}
    return trace | ({"mode": "lines+markers", "marker": {"size": (4 * alone).tolist()}} if alone.any() else {})


def _band(curve: Curve, axis: str, *, log: bool) -> list[Figure]:
    if curve.band is None:
        return []
    low, high = (np.where(edge > 0, edge, np.nan) if log else edge for edge in curve.band)
    there = np.isfinite(low) & np.isfinite(high)
    x = np.concatenate([curve.x[there], curve.x[there][::-1]])
    y = np.concatenate([low[there], high[there][::-1]])
    fill = {"fill": "toself", "fillcolor": transparent(curve.color, 0.16), "line": {"width": 0}}
    base = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, "yaxis": axis}
    return [base | fill | {"x": packed_places(x), "y": packed_values(y)}]


def _limits(row: Row, axis: str, theme: Theme) -> list[Figure]:
    across = {"xref": "x domain", "yref": axis, "x0": 0, "x1": 1, "layer": "below"}
    line = {"type": "line", "line": {"width": 1, "dash": "dash", "color": theme.neutral}}
    shapes = [across | line | {"y0": value, "y1": value} for _, value in row.limits]
    if row.around is not None:
        value, factor = row.around
        shapes.append(across | line | {"y0": value, "y1": value})
        band = {"type": "rect", "line": {"width": 0}, "fillcolor": transparent(theme.neutral, 0.12)}
        shapes.append(across | band | {"y0": value / factor, "y1": value * factor})
    return shapes


def _limit_words(words: str, value: float, axis: str, theme: Theme, *, log: bool) -> Figure:
    return {
        "text": f"{plain(words)} {number(value)}",
        "xref": "x domain",
        "x": 0.01,
        "yref": axis,
        "y": np.log10(value) if log else value,
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "font": {"size": 11, "color": theme.muted},
        "bgcolor": theme.page,
    }


def _upright(at: float, line: Figure) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": line,
    }


def _lines(marks: Sequence[Mark], theme: Theme) -> list[Figure]:
    """Return vertical hairlines through all rows.

    Changes always have one, alerts never. Weight updates have one while the lines can be distinguished.
    """
    updates = [mark for mark in marks if mark.kind == "weights"]
    shown = [mark for mark in marks if KINDS[mark.kind].through] + (updates if len(updates) <= _MANY_UPDATES else [])
    colors = {mark.kind: theme.line if mark.kind == "weights" else KINDS[mark.kind].color(theme) for mark in shown}
    return [_upright(mark.at, {"width": 1, "dash": "dot", "color": colors[mark.kind]}) for mark in shown[-MOST_LINES:]]


def _beside(words: str, at: float, shown: Window, theme: Theme) -> Figure:
    late = at > shown[0] + _LATE * (shown[1] - shown[0])
    return {
        "text": words,
        "xref": "x",
        "x": at,
        "yref": "paper",
        "y": 1,
        "xanchor": "right" if late else "left",
        "yanchor": "top",
        "yshift": 2,
        "showarrow": False,
        "visible": shown[0] <= at <= shown[1],
        "font": {"size": 11, "color": theme.alarm},
        "bgcolor": theme.page,
    }


def _symbols(kind: str, marks: Sequence[Mark], theme: Theme) -> Figure:
    drawn = [mark for mark in marks if mark.kind == kind and np.isfinite(mark.at)][-MOST_SYMBOLS:]
    color = KINDS[kind].color(theme)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": KINDS[kind].name,
        "x": [mark.at for mark in drawn],
        "y": [0.5] * len(drawn),
        "yaxis": "y",
        "text": [plain(mark.words) for mark in drawn],
        "hoverinfo": "text",
        "cliponaxis": False,
        "showlegend": True,
        "marker": {"symbol": KINDS[kind].symbol, "size": 8, "color": color, "line": {"width": 1, "color": color}},
    }
