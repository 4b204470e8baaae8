"""Where the rows of a linked figure stand: one y axis per panel, from the top down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.charts.scales import Scale, scale_of
from logprobe.app.dashboard.data.series import RunSeries

HEADING: Final = 28  # pixels above each row
STRIP: Final = 14  # height of the strip of marks on top
LANE: Final = 16  # below it, for the words beside the onset


@dataclass(frozen=True)
class Row:
    """Where a panel stands: its y axis, and its domain in pixels from the top of the plot area."""

    panel: Panel
    axis: str  # "y2"
    top: int
    bottom: int
    scale: Scale

    @property
    def layout_key(self) -> str:
        """Name of its axis in a plotly layout."""
        return f"yaxis{self.axis[1:]}"


def rows_of(runs: Sequence[RunSeries], panels: Sequence[Panel]) -> Iterator[Row]:
    """A row per panel, in their order; the axis `y` itself belongs to the strip of marks."""
    top = STRIP + LANE
    for number, panel in enumerate(panels, start=2):
        top += HEADING
        yield Row(panel, f"y{number}", top, top + panel.height, scale_of(runs, panel))
        top += panel.height
