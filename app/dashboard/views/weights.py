"""Weights: how old the weights were that sampled, when new ones arrived where, and what updates did to requests in flight."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from logprobe.app.dashboard.data.catalog_series import CatalogSeries
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.data.visible import Visible, visible
from logprobe.app.dashboard.elements.blocks import Block
from logprobe.app.dashboard.pages import weights as words
from logprobe.app.dashboard.pages import weights_study as study
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, rows_of, theme
from logprobe.app.runs import Run
from logprobe.monitor.analysis.weight_updates import Lane, ReplicaLag, lag_by_replica, lanes
from logprobe.monitor.event_study import around_updates, by_cached_prefix, contrasts

T = TypeVar("T")

_VERSIONS: Final = 120  # newest ones on the timeline while nobody asks for others
_STEPS: Final = 1000  # newest ones that are looked at sequence by sequence
_TOKENS: Final = 2_000_000  # of the newest steps that are looked at token by token


@dataclass(frozen=True)
class _Looking:
    """What is looked at: of which run, which steps are in view, and of these those few enough for sequences and for tokens."""

    run: Run
    view: RunView
    seen: Visible
    sequences: Visible
    tokens: Visible

    def once(self, what: str, steps: Visible, read: Callable[[], T]) -> T | None:
        """What `read` returns for these steps, as it was last worth computing; the last that is known while the service is away."""
        key: Hashable = (
            self.run.name,
            what,
            steps.first if not self.seen.whole else None,
            steps.last if not self.seen.whole else None,
        )
        state = (self.view.series.revision, steps)
        return kept(f"weights {key}", lambda: _cache(str(home())).get(key, state, read).value)


@cache
def _series(_home: str) -> CatalogSeries:
    return CatalogSeries(feed(), words.METRICS)


@cache
def _cache(_home: str) -> StaleCache:
    return StaleCache()


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    seen = visible(asked("steps"), view.series.steps)
    at = _Looking(run, view, seen, _newest(view, seen, sequences=True), _newest(view, seen, sequences=False))
    sections = (("timeline", _timeline), ("lag", _lag), ("event study", _study), ("weight versions", _by_version))
    for name, section in sections:
        with guarded(name):
            section(at)


def _newest(view: RunView, seen: Visible, *, sequences: bool) -> Visible:
    """The newest of the steps in view: so many, or with about so many tokens."""
    steps, tokens = view.series.steps, view.series.tokens
    inside = np.flatnonzero((steps >= seen.first) & (steps <= seen.last))
    if sequences:
        chosen = inside[-_STEPS:]
    else:
        counted = np.cumsum(np.nan_to_num(tokens[inside])[::-1])[::-1]
        chosen = inside[(counted <= _TOKENS) | (inside == inside[-1])]
    return Visible(int(steps[chosen[0]]), int(steps[chosen[-1]]), whole=seen.whole and len(chosen) == len(steps))


def _blocks(key: str, blocks: Sequence[Block]) -> None:
    report(f"weights {key}", key, blocks)


def _drawn(kind: str, key: str, run: Run, data: Mapping[str, Any]) -> None:
    show(kind, f"weights {key}", {"run": run.name, "mode": theme().mode, **data})


def _timeline(at: _Looking) -> None:
    newest = _VERSIONS if at.seen.whole else None
    steps = (None, None) if at.seen.whole else (at.seen.first, at.seen.last)
    found: tuple[Lane, ...] | None = at.once(
        "lanes", at.seen, lambda: lanes(feed(), at.run.name, steps=steps, newest=newest)
    )
    if found is None:
        return
    shown = (
        f"the newest {_VERSIONS} versions; zoom into the chart for others"
        if at.seen.whole
        else f"versions of {at.seen.words}"
    )
    series = _with_lag(at)
    age = None if series is None else words.age_of(series)
    _blocks("status", words.status_lines(found, age))
    if found:
        _drawn("weights", "timeline", at.run, words.timeline(found, shown))
        _blocks("lanes", words.lanes_blocks(found, age))


def _with_lag(at: _Looking) -> RunSeries | None:
    """The run with the metrics of this page; the last that is known while the service is away."""
    run, revision = at.run.name, at.view.series.revision
    return kept(f"weights series {run}", lambda: _series(str(home())).of(run, revision))


def _lag(at: _Looking) -> None:
    run, series = at.run.name, _with_lag(at)
    if series is None:
        return
    window = (at.sequences.first, at.sequences.last)
    lags: list[ReplicaLag] | None = at.once("replicas", at.sequences, lambda: lag_by_replica(feed(), run, window))
    panels, beside, keys = words.with_replicas(series, lags or ())
    _blocks("lag title", words.title("Lag and delay", _note(at, len(beside))))
    steps_chart(
        "weights", replace(at.view, series=series), panels, beside=[RunView(each) for each in beside], legend=keys
    )


def _note(at: _Looking, engines: int) -> str:
    note = "age of the weights that sampled, and how long new ones took to arrive"
    return f"{note}; engines apart: {at.sequences.words}" if engines and at.sequences != at.seen else note


def _study(at: _Looking) -> None:
    run, few, many = at.run.name, at.tokens, at.sequences
    switches = at.once("switches", few, lambda: around_updates(feed(), run, steps=(few.first, few.last)).to_pylist())
    cached = at.once("cached", many, lambda: by_cached_prefix(feed(), run, steps=(many.first, many.last)).to_pylist())
    if switches is None or cached is None:
        return
    _drawn("points", "switches", at.run, study.switch_points(switches, few.words))
    _blocks("patterns", [*study.contrasts_blocks(contrasts(switches, cached)), *study.cached_blocks(cached)])


def _by_version(at: _Looking) -> None:
    steps = at.sequences
    rows = at.once(
        "versions", steps, lambda: rows_of("app_weights_versions", run=at.run.name, first=steps.first, last=steps.last)
    )
    if rows is not None:
        _drawn("points", "versions", at.run, study.version_points(rows, steps.words))
        _blocks("rest", words.versions_blocks(rows))
