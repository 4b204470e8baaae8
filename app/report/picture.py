"""Several charts as one SVG file that stands for itself: for a README, on a light page, with its legend. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from logprobe.app.dashboard.theme import RUN_DASHES
from logprobe.app.report.chart import HEIGHT, WIDTH, Chart, drawing
from logprobe.app.report.html import Markup, element, joined

_TITLE, _LEGEND, _GAP, _MARGIN = 22.0, 26.0, 14.0, 10.0
_LETTER: Final = 6.6  # pixels of one in the legend, about
_STYLE: Final = (
    "text{fill:#5c6773;font:10.5px system-ui,-apple-system,'Segoe UI',sans-serif}.title{fill:#1b2129;font-size:12px;font-weight:600}"
    ".legend{fill:#1b2129;font-size:12px}.grid{stroke:#e3e7ec}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}"
    ".mark{stroke:#b3261e;stroke-dasharray:2 3}.band{fill:#475463;opacity:.16}"
)


def picture(alt: str, charts: Sequence[Chart], labels: Mapping[str, str], *, columns: int = 2) -> str:
    """The document.

    Args:
        alt: what it shows, in a sentence.
        charts: left to right, top to bottom.
        labels: of the lines, by their order as colours → the colour in CSS.
        columns: charts side by side.
    """
    rows = -(-len(charts) // columns)
    width = 2 * _MARGIN + columns * WIDTH + (columns - 1) * _GAP
    height = _MARGIN + _LEGEND + rows * (_TITLE + HEIGHT) + (rows - 1) * _GAP
    style = _STYLE + "".join(f".c{at}{{stroke:{color}}}" for at, color in enumerate(labels.values()))
    content = [
        element("title", alt),
        element("style", Markup(style)),
        element("rect", width="100%", height="100%", fill="#ffffff"),
        *_legend(list(labels)),
        *(_placed(chart, at % columns, at // columns) for at, chart in enumerate(charts)),
    ]
    box = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return str(element("svg", joined(content), xmlns="http://www.w3.org/2000/svg", role="img", **box)) + "\n"


def _legend(labels: Sequence[str]) -> Iterator[Markup]:
    x, y = _MARGIN, _MARGIN + 8
    for at, label in enumerate(labels):
        yield element("path", d=f"M{x:g} {y - 4:g}h26", class_=f"line c{at}", stroke_dasharray=RUN_DASHES[at])
        yield element("text", label, x=f"{x + 32:g}", y=f"{y:g}", class_="legend")
        x += 52 + _LETTER * len(label)


def _placed(chart: Chart, column: int, row: int) -> Markup:
    x, y = _MARGIN + column * (WIDTH + _GAP), _MARGIN + _LEGEND + row * (_TITLE + HEIGHT + _GAP)
    unit = f", {chart.unit}" if chart.unit else ""
    title = element("text", f"{chart.title}{unit}", y="14", class_="title")
    under = element("text", chart.x_label, x=f"{WIDTH - 8:g}", y="14", text_anchor="end")
    inside = element("g", drawing(chart), transform=f"translate(0 {_TITLE:g})")
    return element("g", title, under, inside, transform=f"translate({x:g} {y:g})")
