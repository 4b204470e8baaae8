"""Overview: is the run healthy, since which step not, which layer, what to do; then its newest values, and how they came about."""

from __future__ import annotations

from typing import Any, Final

from logprobe.app.dashboard.charts.panels import OVERVIEW
from logprobe.app.dashboard.charts.tiles import tiles_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.visible import visible
from logprobe.app.dashboard.elements.links import link
from logprobe.app.dashboard.elements.verdict import banner
from logprobe.app.dashboard.page_table import PAGES
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import asked, guarded, theme
from logprobe.app.runs import Run

_NEXT: Final = ("diagnosis", "alerts", "actions")  # where a verdict leads


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    colors = theme()
    version = f"{view.version} {colors.mode}"
    with guarded("verdict"):
        report("verdict", "verdict", [banner(view) | {"links": _links(run)}], version=version)
    with guarded("tiles"):
        seen = visible(asked("steps"), view.series.steps)
        tiles = tiles_of(view, OVERVIEW, colors, seen)
        show("tiles", "tiles", {"version": f"{version} {seen.key}", "tiles": tiles})
    with guarded("chart"):
        steps_chart("chart", view, OVERVIEW)


def _links(run: Run) -> list[dict[str, Any]]:
    return [
        {"path": page.path, "title": page.title, "href": link(page.path, run)} for page in PAGES if page.path in _NEXT
    ]
