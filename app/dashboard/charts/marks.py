"""What happened, and what the diagnosis found, as marks on a linked figure: symbols in the strip on top, hairlines, a
band. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from logprobe.app.dashboard.charts.axes import Axis
from logprobe.app.dashboard.charts.downsample import MAX_POINTS
from logprobe.app.dashboard.charts.packing import transparent
from logprobe.app.dashboard.charts.rows import STRIP, Row
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.series import Steps
from logprobe.app.dashboard.theme import Theme

_MANY_UPDATES: Final = 12  # more than that, and full-height lines would be a barcode
_MOST_LINES: Final = 100
_MOST_SYMBOLS: Final = 300  # of a kind, the newest; beyond that they cannot be distinguished
_MOST_TICKS: Final = 150  # more than that, and ticks would be a solid bar


@dataclass(frozen=True)
class Kind:
    """How events of a kind are called and drawn: plotly's symbol, and the letter that looks like it."""

    name: str
    symbol: str
    sign: str


KINDS: Final = {
    "weights": Kind("weights updated", "line-ns", "|"),
    "alert": Kind("alert fired", "triangle-up", "▲"),
    "config": Kind("configuration changed", "diamond", "◆"),
    "learning_rate": Kind("learning rate changed", "circle", "●"),
    "restart": Kind("restarted", "cross", "✚"),
    "correction": Kind("correction", "square", "■"),
}
_THROUGH_ALL_ROWS: Final = frozenset({"config", "correction", "restart"})


@dataclass(frozen=True)
class Trend:
    """What a chart shows of a verdict: the normal of `metric` with the band that is no growth, and where growth
    began."""

    metric: str
    baseline: float | None = None
    within: float = 1.0  # the band: baseline ÷ within … baseline × within
    since: int | None = None


def event_traces(events: Sequence[Event], theme: Theme, axis: Axis) -> list[dict[str, object]]:
    """Weight updates as ticks, everything else as symbols, one kind each; `meta` says which."""
    updates = _bars([event.step for event in events if event.kind == "weights" and event.step is not None], axis)
    base: dict[str, object] = {"type": "scatter", "yaxis": "y"}
    ticks = base | {
        "mode": "lines",
        "name": KINDS["weights"].name,
        "x": updates[0],
        "y": updates[1],
        "hoverinfo": "skip",
    }
    ticks |= {"line": {"color": theme.muted, "width": 1}, "meta": {"kind": "weights"}}
    return [ticks, *(base | _symbols(events, kind, theme, axis) for kind in KINDS if kind != "weights")]


def _symbols(events: Sequence[Event], kind: str, theme: Theme, axis: Axis) -> dict[str, object]:
    """The newest events of a kind, with what happened in words."""
    placed = [event for event in events if event.kind == kind and event.step is not None][-_MOST_SYMBOLS:]
    at = axis.place(np.array([event.step for event in placed], dtype=np.float64))
    words = [f"step {event.step:,}: {escape(event.words, quote=False)}" for event in placed]
    return {
        "mode": "markers", "name": KINDS[kind].name, "x": at.tolist(), "y": [0.5] * len(placed), "cliponaxis": False,
        "text": words, "hoverinfo": "text", "meta": {"kind": kind},
        "marker": {"symbol": KINDS[kind].symbol, "size": 8, "color": event_color(kind, theme)},
    }  # fmt: skip


def event_color(kind: str, theme: Theme) -> str:
    """Colour of the marks of one kind of event; `theme.muted` for weight updates, of which there are most."""
    colors = {
        "weights": theme.muted,
        "alert": theme.alarm,
        "correction": theme.total,
        "config": theme.update,
        "learning_rate": theme.accent,
    }
    return colors.get(kind, theme.text)


def _bars(steps: Sequence[int], axis: Axis) -> tuple[list[float | None], list[float | None]]:
    """Short upright ticks as one line with gaps, thinned to what a screen can tell apart; where they touch, low ones: a
    thin line."""
    ticks = np.unique(np.array(steps, dtype=np.int64))
    low, high = (0.15, 0.85) if len(ticks) <= _MOST_TICKS else (0.42, 0.58)
    shown = axis.place(_spread(ticks, MAX_POINTS // 3)).tolist()
    return [x for place in shown for x in (place, place, None)], [low, high, None] * len(shown)


def _spread(steps: Steps, room: int) -> Steps:
    """At most `room` of them (ascending, each once), the first in each of as many equal parts of their range."""
    if len(steps) <= room:
        return steps
    parts = (steps - steps[0]) * room // (steps[-1] - steps[0] + 1)
    return steps[np.unique(parts, return_index=True)[1]]


def event_lines(events: Sequence[Event], theme: Theme) -> list[dict[str, object]]:
    """Hairlines through all rows: what people did always, weight updates while they can be told apart, alerts never."""
    placed = [event for event in events if event.step is not None]
    updates = [event for event in placed if event.kind == "weights"]
    shown = [event for event in placed if event.kind in _THROUGH_ALL_ROWS]
    if len(updates) <= _MANY_UPDATES:
        shown += updates
    return [
        {
            "type": "line", "xref": "x", "yref": "paper", "x0": event.step, "x1": event.step, "y0": 0, "y1": 1,
            "layer": "below",
            "line": {"width": 1, "dash": "dot", "color": theme.line if event.kind == "weights" else event_color(event.kind, theme)},
        }
        for event in shown[-_MOST_LINES:]
    ]  # fmt: skip


def trend_shapes(trend: Trend | None, rows: Sequence[Row], theme: Theme) -> Iterator[dict[str, object]]:
    """The run's own normal as a dashed line in a band, and a line through all rows from the step on which it is
    left."""
    if trend is None:
        return
    row = next((row for row in rows if row.panel.metric == trend.metric), None)
    if row is not None and trend.baseline is not None:
        yield _baseline(trend.baseline, row, theme) | {"type": "line", "y1": trend.baseline}
        if trend.within > 1:
            yield _band(trend.baseline / trend.within, trend.baseline * trend.within, row, theme)
    if trend.since is not None:
        yield {
            "type": "line", "xref": "x", "yref": "paper", "x0": trend.since, "x1": trend.since, "y0": 0, "y1": 1,
            "layer": "below", "line": {"width": 1.5, "color": theme.alarm},
        }  # fmt: skip


def _baseline(value: float, row: Row, theme: Theme) -> dict[str, object]:
    line = {"width": 1, "dash": "dash", "color": theme.neutral}
    return {"xref": "x domain", "yref": row.axis, "x0": 0, "x1": 1, "y0": value, "layer": "below", "line": line}


def _band(low: float, high: float, row: Row, theme: Theme) -> dict[str, object]:
    base = _baseline(low, row, theme)
    return base | {"type": "rect", "y1": high, "line": {"width": 0}, "fillcolor": transparent(theme.neutral, 0.12)}


def onset_label(trend: Trend | None, theme: Theme) -> list[dict[str, object]]:
    """The words beside the line since which the normal is left."""
    if trend is None or trend.since is None:
        return []
    font = {"size": 11, "color": theme.alarm}
    place = {
        "xref": "x",
        "yref": "paper",
        "x": trend.since,
        "y": 1,
        "xanchor": "left",
        "yanchor": "top",
        "yshift": 1 - STRIP,
    }
    return [{**place, "text": f" since {trend.since:,}", "showarrow": False, "font": font}]
