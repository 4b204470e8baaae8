"""Mismatch: every metric by pair, how log-ratios spread, where in the sequences the gap is, and in which of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from logprobe.app.dashboard.charts.density import density_of
from logprobe.app.dashboard.charts.panels import PAIR_WORDS, PAIRS
from logprobe.app.dashboard.data.aged import AgedValues
from logprobe.app.dashboard.data.catalog_series import CatalogSeries
from logprobe.app.dashboard.data.feed import Run, RunView
from logprobe.app.dashboard.data.mismatch import MismatchData
from logprobe.app.dashboard.data.visible import Visible, visible
from logprobe.app.dashboard.pages.mismatch import Declared, about, chosen, grid_of, panel_of, why_unmeasured
from logprobe.app.dashboard.pages.mismatch_profiles import compared, profiles_of
from logprobe.app.dashboard.pages.mismatch_slices import columns_of, slices_of
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import live, report, show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, theme
from logprobe.monitor.metrics.catalog import CATALOG

_PAIRS: Final = [{"name": pair, "help": PAIR_WORDS[pair]} for pair in PAIRS]


@dataclass(frozen=True)
class _Looking:
    """What is looked at. `view`: with every metric of the catalog; `absent`: what to record for the pair, "" where it is there."""

    run: Run
    view: RunView
    seen: Visible
    pair: str
    absent: str
    metric: Declared
    colors: Theme

    @property
    def version(self) -> str:
        return f"{self.view.version} {self.seen} {self.metric.key} {self.colors.mode}"


def mismatch() -> None:
    """Draws the page."""
    live("mismatch", _run)


@cache
def _series(_home: str) -> CatalogSeries:
    return CatalogSeries(feed())


@cache
def _data(_home: str) -> MismatchData:
    return MismatchData(feed(), AgedValues())


def _run(run: Run, view: RunView) -> None:
    with guarded("metrics"):
        series = kept(f"catalog {run.name}", lambda: _series(str(home())).of(run.name, view.series.revision))
        if series is not None:
            _sections(_looking(run, replace(view, series=series)))


def _looking(run: Run, view: RunView) -> _Looking:
    asked_pair = asked("pair")
    pair = asked_pair if asked_pair in PAIRS else PAIRS[0]
    return _Looking(
        run=run,
        view=view,
        seen=visible(asked("steps"), view.series.steps),
        pair=pair,
        absent=why_unmeasured(view.series, pair),
        metric=chosen(asked("metric"), CATALOG),
        colors=theme(),
    )


def _sections(at: _Looking) -> None:
    report("about", {"version": at.metric.key, "label": "chosen metric", "blocks": about(at.metric)})
    with guarded("chart"):
        steps_chart("metric", at.view, (panel_of(at.metric),))
    with guarded("metrics"):
        grid = grid_of(at.view.series, CATALOG, at.seen, at.metric.key, at.colors)
        show("mismatch", "metrics", {"version": at.version, **grid})
    sections: tuple[tuple[str, Callable[[_Looking], dict[str, Any]]], ...] = (
        ("heatmap", _density),
        ("profiles", _profiles),
        ("slices", _slices),
    )
    for kind, read in sections:
        with guarded(kind):
            _section(kind, at, read)


def _section(kind: str, at: _Looking, read: Callable[[_Looking], dict[str, Any]]) -> None:
    """Draws a panel from what `read` returns, or returned last while the service is away."""
    drawn = kept(f"{kind} {at.run.name}", lambda: read(at))
    if drawn is not None:
        show(kind, kind, {"pairs": _PAIRS, **drawn})


def _density(at: _Looking) -> dict[str, Any]:
    data, run = _data(str(home())), at.run.name
    found = data.density(at.view.series, at.pair, at.seen, data.profiled(run))
    drawn = density_of(found.value, at.pair, at.colors, at.absent)
    version = f"{run} {at.pair} {found.state} {found.old} {at.colors.mode}"
    return {"version": version, "old": found.old, "whole": at.seen.whole, **drawn}


def _profiles(at: _Looking) -> dict[str, Any]:
    data, run, choice = _data(str(home())), at.run.name, asked("mismatch.profile")
    state = data.profiled(run)
    ranges = compared(choice, at.seen, at.view.series.steps)
    sides = [data.side(run, at.pair, name, seen, state) for name, seen in ranges]
    drawn = profiles_of([side.value for side in sides], at.pair, choice, at.colors, at.absent)
    old = any(side.old for side in sides)
    version = f"{run} {at.pair} {choice} {[side.state for side in sides]} {old} {at.colors.mode}"
    return {"version": version, "old": old, **drawn}


def _slices(at: _Looking) -> dict[str, Any]:
    data, run = _data(str(home())), at.run
    found = data.sliced(run.name, at.pair, asked("mismatch.by"), at.seen, run.revision)
    columns = columns_of(asked("mismatch.columns"), at.metric, CATALOG)
    drawn = slices_of(found.value, pair=at.pair, columns=columns, catalog=CATALOG, seen=at.seen, theme=at.colors)
    shown = ",".join(metric.key for metric in columns)
    version = f"{run.name} {at.pair} {found.value.dimension} {found.state} {found.old} {shown} {at.colors.mode}"
    return {"version": version, "old": found.old, **drawn}
