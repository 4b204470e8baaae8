"""Overview: is the run healthy, since which step not, which layer, what to do; then its newest values, and how they
came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from logprobe.app.dashboard.charts.panels import OVERVIEW, Panel, chosen, metrics_of
from logprobe.app.dashboard.charts.tiles import tiles_of
from logprobe.app.dashboard.data.feed import RunView, usual
from logprobe.app.dashboard.data.visible import visible
from logprobe.app.dashboard.elements.verdict import banner, links
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, catalog_of, guarded, theme
from logprobe.app.runs import Run


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    colors = theme()
    version = f"{view.version} {colors.mode}"
    with guarded("verdict"):
        report("verdict", "verdict", [banner(view) | {"links": links(view, run)}])
    panels = chosen(asked("charts"))
    with guarded("chosen metrics"):
        view = _with(view, panels)
    with guarded("tiles"):
        seen = visible(asked("steps"), view.series.steps)
        tiles = tiles_of(view, panels, colors, seen)
        names = ",".join(panel.metric for panel in panels)
        show("tiles", "tiles", {"version": f"{version} {seen.key} {names}", "tiles": tiles})
    with guarded("chart"):
        steps_chart("chart", view, panels, offered=True)


def _with(view: RunView, panels: Sequence[Panel]) -> RunView:
    """The run with what these rows need: the feed reads those of the overview only."""
    keys = metrics_of(tuple(panels))
    if set(keys) <= set(metrics_of(OVERVIEW)):
        return view
    whole = catalog_of(view.series.run, view.series.revision)
    if whole is None:
        return view
    values = {key: whole.column(key) for key in keys}
    series = replace(whole, values=values, read=frozenset(keys))
    return replace(view, series=series, medians=usual(series))
