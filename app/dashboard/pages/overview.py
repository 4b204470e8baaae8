"""Overview: is the run healthy, since which step not, which layer, what to do; then its newest values, and how they came about."""

from __future__ import annotations

from logprobe.app.dashboard.charts.panels import OVERVIEW
from logprobe.app.dashboard.charts.tiles import tiles_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.visible import visible
from logprobe.app.dashboard.elements.verdict import banner, links
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import asked, guarded, theme
from logprobe.app.runs import Run


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    colors = theme()
    version = f"{view.version} {colors.mode}"
    with guarded("verdict"):
        report("verdict", "verdict", [banner(view) | {"links": links(view, run)}], version=version)
    with guarded("tiles"):
        seen = visible(asked("steps"), view.series.steps)
        tiles = tiles_of(view, OVERVIEW, colors, seen)
        show("tiles", "tiles", {"version": f"{version} {seen.key}", "tiles": tiles})
    with guarded("chart"):
        steps_chart("chart", view, OVERVIEW)
