"""Line charts as inline SVG of a few kilobytes. The functions are pure.

Each line has a distinct dash, so colour never carries the meaning alone. Lines are thinned to the resolution with
extremes preserved. A step without a value is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from logprobe.app.dashboard.thinning import thin, wants_log
from logprobe.app.text.html import Markup, element, joined
from logprobe.app.text.numbers import number

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 190.0, 48.0, 8.0, 8.0, 22.0
_MOST_POINTS: Final = 600
_TICKS: Final = 5
DASHES: Final = ("1 0", "1 0", "5 2", "2 2", "7 2 2 2", "1 3")  # no two of neighbouring colour have the same one
_GAP: Final = 3.0  # usual distances without a value


@dataclass(frozen=True)
class Line:
    """One run on a chart. `colour`: index of its colour, equal on every chart. `opacity`: 0 to 1."""

    label: str
    points: Points
    colour: int = 0
    opacity: float = 1.0


@dataclass(frozen=True)
class Chart:
    """A chart over steps. `alt`: content in a sentence. `mark`: x place of a highlight, with its words."""

    title: str
    alt: str
    lines: Sequence[Line]
    unit: str = ""
    mark: tuple[float, str] | None = None
    log: bool | None = None  # None: by the values


@dataclass(frozen=True)
class _Frame:
    """Scale from data to the picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = field(default=False)

    def across(self, value: float) -> float:
        return _LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        place = math.log10(value) if self.log and value > 0 else self.y[0] if self.log else value
        share = min(max((place - self.y[0]) / (self.y[1] - self.y[0]), 0.0), 1.0)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def figure(chart: Chart) -> Markup:
    """Return the chart with its caption."""
    unit = f", {chart.unit}" if chart.unit else ""
    frame = _frame(chart)
    scale = " · logarithmic" if frame is not None and frame.log else ""
    caption = element("figcaption", element("strong", f"{chart.title}{unit}"), f"by step{scale}")
    if frame is None:
        return element("figure", caption, element("p", "Not measured.", class_="note"))
    drawn = joined([element("title", chart.alt), drawing(chart)])
    picture = element("svg", drawn, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=chart.alt)
    return element("figure", caption, picture)


def drawing(chart: Chart) -> Markup:
    """Return the content of the chart's SVG, `WIDTH` × `HEIGHT`, empty if nothing was measured."""
    frame = _frame(chart)
    if frame is None:
        return Markup()
    lines = (_path(line, frame) for line in chart.lines)
    return joined([*_axes(frame), *_mark(chart, frame), *lines])


def _frame(chart: Chart) -> _Frame | None:
    points = [point for line in chart.lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return None
    x = [x for x, _ in points]
    y = np.array([y for _, y in points])
    log = wants_log(y) if chart.log is None else chart.log
    if log:
        y = np.log10(y[y > 0]) if (y > 0).any() else np.zeros(1)
    return _Frame(_padded(min(x), max(x), 0.0), _padded(float(y.min()), float(y.max()), 0.05), log)


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share or (0.0 if high > low else abs(high) * 0.1 or 1.0)
    return low - room, high + room


def _axes(frame: _Frame) -> Iterator[Markup]:
    for value in ticks(*frame.y, least=1.0 if frame.log else 0.0):
        height = f"{frame.up(10**value if frame.log else value):.1f}"
        yield element("path", d=f"M{_LEFT} {height}H{WIDTH - _RIGHT}", class_="grid")
        shown = number(10**value if frame.log else value).replace(".00e", "e")
        yield element("text", shown, x=f"{_LEFT - 5}", y=height, text_anchor="end", dominant_baseline="middle")
    for value in ticks(*frame.x):
        x = f"{frame.across(value):.1f}"
        yield element("text", number(value), x=x, y=f"{HEIGHT - 6}", text_anchor="middle")


def ticks(low: float, high: float, *, least: float = 0.0) -> list[float]:
    """Return about five round numbers from `low` to `high`, at least `least` apart.

    >>> ticks(0.0, 299.0)
    [0.0, 100.0, 200.0]
    """
    rough = max((high - low) / _TICKS, least)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [float(f"{step * index:.12g}") for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _path(line: Line, frame: _Frame) -> Markup:
    x, y = (
        (np.array(column, np.float64) for column in zip(*line.points, strict=True))
        if line.points
        else (np.empty(0),) * 2
    )
    x, y = thin(*_with_gaps(x, y), max_points=_MOST_POINTS)
    words, pen = [], "M"
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        if not math.isfinite(up):
            pen = "M"
            continue
        words.append(f"{pen}{frame.across(across):.1f} {frame.up(up):.1f}")
        pen = "L"
    lonely = "dot" if len(words) == 1 else "line"  # a single value has no line
    drawn = "".join(words) + ("h0" if lonely == "dot" else "")
    look = {"class_": f"{lonely} c{line.colour}", "stroke_dasharray": DASHES[line.colour]}
    if line.opacity < 1:  # what lies behind: no dashes, which many steps would blur
        look = {"class_": f"{lonely} c{line.colour}", "stroke_opacity": f"{line.opacity:g}"}
    return element("path", d=drawn, **look)


def _with_gaps(
    x: np.ndarray[tuple[int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Break the line at missing steps. A continuous line would claim unmeasured values."""
    distance = np.diff(x)
    if not len(distance):
        return x, y
    after = np.flatnonzero(distance > _GAP * np.median(distance)) + 1
    return np.insert(x, after, x[after]), np.insert(y, after, np.nan)


def _mark(chart: Chart, frame: _Frame) -> Iterator[Markup]:
    if chart.mark is None or not frame.x[0] <= chart.mark[0] <= frame.x[1]:
        return
    x = frame.across(chart.mark[0])
    yield element("path", d=f"M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}", class_="mark")
    side, anchor = (4, "start") if x < WIDTH / 2 else (-4, "end")
    yield element("text", chart.mark[1], x=f"{x + side:.1f}", y=f"{_TOP + 8}", text_anchor=anchor)
