"""The dashboard's linked chart in a notebook, as a plotly figure: ``figure("/shared/logprobe", "my-run")``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from html import escape
from os import PathLike
from textwrap import wrap
from typing import Any, Final

import plotly.graph_objects as go

from logprobe.app.dashboard.charts.figures import steps_figure
from logprobe.app.dashboard.charts.packing import packed, unpacked
from logprobe.app.dashboard.charts.panels import OVERVIEW
from logprobe.app.dashboard.charts.rows import Row, rows_of
from logprobe.app.dashboard.charts.steps_chart import absent, trend_of
from logprobe.app.dashboard.data.feed import Feed, RunView
from logprobe.app.dashboard.elements.verdict import sentence
from logprobe.app.dashboard.theme import DARK, LIGHT, Theme
from logprobe.app.ingesting import take
from logprobe.collectors.errors import HomeBusyError, ServiceUnavailableError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

_LINE: Final = 22  # pixels of a line of the title
_LONGEST: Final = 120  # characters of one


def figure(home: str | PathLike[str], run: str, *, dark: bool = False) -> go.Figure:
    """The Overview's rows over steps, with marks, baseline band, onset and the verdict as its title, which also names
    the rows without any value.

    Reads through the service where one runs; where none does, what was recorded is ingested first. Raises `StoreError`
    when there is no such run, or no store; `ServiceUnavailableError` when a service holds the home and does not answer.
    """
    _ingest(Home(home))
    with open_reader(home) as reader:
        snapshot = Feed(lambda: reader).snapshot(run)
    if snapshot.away_since is not None:
        raise ServiceUnavailableError(f"the service of {home} stopped responding; try again, or start it: logprobe up")
    if snapshot.view is None:
        names = ", ".join(of_run.name for of_run in snapshot.runs or ()) or "none"
        raise StoreError(snapshot.problem or f"there is no run {run!r} in {home}; there are: {names}")
    return _figure(snapshot.view, DARK if dark else LIGHT)


def _ingest(home: Home) -> None:
    """Where no service does it. A home that is busy, or that may only be read, shows what is stored."""
    if home.owner() is None and home.spool.is_dir():
        with suppress(HomeBusyError, OSError):
            take(home)


def _figure(view: RunView, theme: Theme) -> go.Figure:
    runs, events = [view.series], view.marked
    shown = [panel for panel in OVERVIEW if any(line.measured(runs) for line in panel.lines)]
    drawn = steps_figure(runs, shown, events, theme, trend=trend_of(view), pack=packed)
    layout, rows = drawn["layout"], list(rows_of(runs, shown))
    texts = (sentence(view), absent(OVERVIEW, shown))
    title = [f"<b>{_text(view.series.run)}</b>", *(_text(line) for text in texts for line in wrap(text, _LONGEST))]
    head = _LINE * (len(title) + 1)
    layout |= {
        "title": {"text": "<br>".join(title), "font": {"size": 13, "color": theme.text}, "y": 1, "yanchor": "top", "pad": {"t": _LINE}},
        "annotations": [*layout["annotations"], *(_heading(row, layout, theme) for row in rows)],
        "height": layout["height"] + head,
        "margin": {**layout["margin"], "t": layout["margin"]["t"] + head},
        "paper_bgcolor": theme.page,
        "plot_bgcolor": theme.page,
        "hovermode": "x",
    }  # fmt: skip
    data = [{**trace, **{axis: _array(trace[axis]) for axis in "xy"}} for trace in drawn["data"]]
    result = go.Figure({"data": data, "layout": layout})
    return result.update_traces(hoverinfo="x+y+name", selector=lambda trace: "line" in (trace.meta or {}))


def _heading(row: Row, layout: Mapping[str, Any], theme: Theme) -> dict[str, object]:
    """Title of a row and, where it has several lines, which is which."""
    dashes = {"solid": "━", "dot": "┈", "dash": "╍", "dashdot": "╌"}
    several = len(row.panel.lines) > 1
    names = " ".join(
        f'<span style="color:{theme.color(line.role)}">{dashes[line.dash]} {_text(line.name)}</span>'
        for line in row.panel.lines
        if several
    )
    return {
        "text": f"<b>{_text(row.panel.title)}</b> {names}", "x": 0, "xref": "paper", "xanchor": "left", "showarrow": False,
        "y": layout[row.layout_key]["domain"][1], "yref": "paper", "yanchor": "bottom", "font": {"size": 12, "color": theme.text},
    }  # fmt: skip


def _array(values: Any) -> Any:
    """Numbers to go on with, where they came packed."""
    return unpacked(values) if isinstance(values, dict) else values


def _text(words: str) -> str:
    """Plotly reads its texts as markup; names of runs are not."""
    return escape(words, quote=False)
