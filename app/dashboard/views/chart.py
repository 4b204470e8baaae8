"""The linked step chart on a page: what the reader wants to see of a long run comes from the address, exports go to the
browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import streamlit as st

from logprobe.app.dashboard.charts.figures import WHOLE
from logprobe.app.dashboard.charts.lines import LONGEST, Detail, too_long
from logprobe.app.dashboard.charts.packing import packed
from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.charts.steps_chart import PAIR_KEYS, Key, chart_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.visible import visible
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, made, theme


def columns_of(runs: Sequence[RunSeries], panels: Sequence[Panel], wanted: Mapping[str, Any]) -> dict[str, object]:
    """All lines between the steps `wanted["from"]` and `wanted["to"]` (null: from or to the end), none thinned.

    → `at`, which says what was asked for, and per run its steps, tokens (cumulative), time (seconds) and `lines` by
    metric.
    """
    metrics = [{line.metric for panel in panels for line in panel.lines if line.run == at} for at in range(len(runs))]
    return {
        "at": wanted["at"],
        "runs": [_columns(run, sorted(keys), wanted) for run, keys in zip(runs, metrics, strict=True)],
    }


def _columns(run: RunSeries, metrics: Sequence[str], wanted: Mapping[str, Any]) -> dict[str, object]:
    low = -np.inf if wanted["from"] is None else wanted["from"]
    high = np.inf if wanted["to"] is None else wanted["to"]
    shown = (run.steps >= low) & (run.steps <= high)
    return {
        "name": run.run,
        "steps": packed(run.steps[shown].astype(np.float64)),
        "tokens": packed(run.trained[shown]),
        "time": packed(run.elapsed[shown]),
        "lines": {metric: packed(run.column(metric)[shown]) for metric in metrics if run.measured(metric)},
    }


def steps_chart(
    key: str,
    view: RunView,
    panels: Sequence[Panel],
    *,
    beside: Sequence[RunView] = (),
    legend: Sequence[Key] = PAIR_KEYS,
    offered: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draws `panels` of a run, and of the runs `beside` it; see `charts/steps_chart.py`.

    `key`: unique on the page; `offered`: rows that the reader can choose from (`browser/picker.js`).
    """
    views = (view, *beside)
    drawn = _drawn(key, views, panels, legend, _detail(views)) | {"offered": list(offered)}
    export = st.session_state.pop(f"{key} export", None)
    sent = show("chart", key, drawn if export is None else drawn | {"export": export})
    if sent is not None:
        st.session_state[f"{key} export"] = columns_of([shown.series for shown in views], panels, sent)
        st.rerun(scope="fragment")


def _detail(views: Sequence[RunView]) -> Detail:
    """What a reader wants to see of runs that are too long to be sent whole."""
    if not any(too_long(drawn.series) for drawn in views):
        return WHOLE
    seen, smooth = visible(asked("steps"), views[0].series.steps), asked("smooth") or ""
    window = None if seen.whole else (float(seen.first), float(seen.last))
    return Detail(window, min(int(smooth), LONGEST) if smooth.isdecimal() else 0)


def _drawn(
    key: str, views: tuple[RunView, ...], panels: Sequence[Panel], legend: Sequence[Key], detail: Detail
) -> dict[str, object]:
    """The chart's data, rebuilt only when something of it is another."""
    colors = theme()
    others = tuple(view.series.checksum for view in views[1:])  # which need not be runs of the feed
    state = (views[0].version, others, colors.mode, detail, tuple(panels), tuple(legend))
    make = partial(chart_of, views[0], panels, colors, beside=views[1:], legend=legend, detail=detail)
    return {"version": sha256(repr(state).encode()).hexdigest()[:16], **made(f"{key} drawn", state, make)}
