"""Mismatch: every metric by pair, how log-ratios spread, where in the sequences the gap is, and in which of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.axes import places_of
from logprobe.app.dashboard.charts.density import density_of
from logprobe.app.dashboard.charts.panels import PAIR_WORDS, pairs_of
from logprobe.app.dashboard.data.catalog_series import CatalogSeries
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.mismatch import MismatchData
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.data.visible import Visible, visible
from logprobe.app.dashboard.pages.mismatch import Declared, about, as_of, chosen, grid_of, panel_of, why_unmeasured
from logprobe.app.dashboard.pages.mismatch_profiles import compared, profiles_of
from logprobe.app.dashboard.pages.mismatch_slices import columns_of, slices_of
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, made, theme
from logprobe.app.runs import Run
from logprobe.monitor.metrics.catalog import CATALOG

_LOADS: Final = 4  # some 10 MB each


@dataclass(frozen=True)
class _Looking:
    """What is looked at. `view`: with every metric of the catalog; `absent`: what to record for the pair, "" where it is there."""

    run: Run
    view: RunView
    seen: Visible
    pairs: list[dict[str, str]]
    pair: str
    absent: str
    metric: Declared
    colors: Theme

    @property
    def about(self) -> str:
        """What the panels of one pair are about."""
        return f"{self.run.name} {self.pair} {self.absent} {self.seen} {self.colors.mode}"


@dataclass(frozen=True)
class _Panel:
    """What a panel shows: another `version` whenever `draw` would return something else."""

    version: str
    draw: Callable[[], dict[str, Any]]


@cache
def _series(_home: str) -> CatalogSeries:
    return CatalogSeries(feed())


@cache
def _data(_home: str) -> MismatchData:
    return MismatchData(feed(), StaleCache(), StaleCache(_LOADS))


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    with guarded("metrics"):
        series = kept(f"catalog {run.name}", lambda: _series(str(home())).of(run.name, view.series.revision))
        if series is not None:
            _sections(_looking(run, replace(view, series=series)))


def _looking(run: Run, view: RunView) -> _Looking:
    asked_pair = asked("pair")
    pairs = pairs_of(view.series)
    pair = asked_pair if asked_pair in pairs else pairs[0]
    return _Looking(
        run=run,
        view=view,
        seen=visible(asked("steps"), view.series.steps),
        pairs=[{"name": each, "help": PAIR_WORDS[each]} for each in pairs],
        pair=pair,
        absent=why_unmeasured(view.series, pair),
        metric=chosen(asked("metric"), CATALOG),
        colors=theme(),
    )


def _sections(at: _Looking) -> None:
    report("about", "chosen metric", about(at.metric), version=at.metric.key)
    with guarded("chart"):
        steps_chart("metric", at.view, (panel_of(at.metric),))
    for kind, read in (("mismatch", _grid), ("heatmap", _density), ("profiles", _profiles), ("slices", _slices)):
        with guarded(kind):
            _section(kind, at, read)


def _section(kind: str, at: _Looking, read: Callable[[_Looking], _Panel]) -> None:
    """Draws a panel of what `read` found, or found last while the service is away; rebuilt only when it is another."""
    panel = kept(f"{kind} {at.run.name}", lambda: read(at))
    if panel is not None:
        drawn = made(f"{kind} drawn", panel.version, panel.draw)
        show(kind, kind, {"version": panel.version, "run": at.run.name, "pairs": at.pairs, **drawn})


def _grid(at: _Looking) -> _Panel:
    version = f"{at.view.version} {at.seen} {at.metric.key} {at.colors.mode}"
    return _Panel(version, lambda: grid_of(at.view.series, CATALOG, at.seen, at.metric.key, at.colors))


def _density(at: _Looking) -> _Panel:
    data = _data(str(home()))
    found = data.density(at.view.series, at.pair, at.seen, data.profiled(at.run.name))
    age = as_of(found.value.columns.last) if found.old else ""
    judged = at.view.diagnosis
    since = None if judged is None else judged.document["since_step"]

    def draw() -> dict[str, Any]:
        columns = found.value.columns
        begins = np.arange(columns.first, columns.last + 2, columns.width, dtype=np.float64)
        places = places_of(at.view.series, since, [begins, begins - 1])
        drawn = density_of(found.value, at.pair, at.colors, at.absent)
        return {"old": age, "whole": at.seen.whole, "places": places, **drawn}

    return _Panel(f"{at.about} {found.state} {age} {since}", draw)


def _profiles(at: _Looking) -> _Panel:
    data, run, choice = _data(str(home())), at.view.series, asked("mismatch.profile")
    profiled = data.profiled(run.run)
    sides = [data.side(run, at.pair, name, seen, profiled) for name, seen in compared(choice, at.seen, run.steps)]
    age = as_of(max(side.value.lag_steps.last for side in sides)) if any(side.old for side in sides) else ""

    def draw() -> dict[str, Any]:
        return {"old": age, **profiles_of([side.value for side in sides], at.pair, choice, at.colors, at.absent)}

    return _Panel(f"{at.about} {choice} {[side.state for side in sides]} {age}", draw)


def _slices(at: _Looking) -> _Panel:
    found = _data(str(home())).sliced(at.view.series, at.pair, asked("mismatch.by"), at.seen)
    columns = columns_of(asked("mismatch.columns"), at.metric, CATALOG)
    age = as_of(found.value.steps.last) if found.old else ""

    def draw() -> dict[str, Any]:
        drawn = slices_of(
            found.value,
            pair=at.pair,
            columns=columns,
            catalog=CATALOG,
            seen=at.seen,
            theme=at.colors,
            why_absent=at.absent,
        )
        return {"old": age, **drawn}

    shown = ",".join(metric.key for metric in columns)
    return _Panel(f"{at.about} {found.value.dimension} {found.state} {shown} {age}", draw)
