"""The linked step chart on a page: what the reader chose comes from the address; choices and exports are widgets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
import streamlit as st

from logprobe.app.dashboard.charts.axes import AXES, why_not
from logprobe.app.dashboard.charts.look import SMOOTHINGS, Look
from logprobe.app.dashboard.charts.panels import OFFERED, OVERVIEW, Panel
from logprobe.app.dashboard.charts.steps_chart import PAIR_KEYS, Key, chart_of, onsets_of, trend_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, made, put, theme
from logprobe.monitor.plain_text import csv_cell

_OVER: Final = {axis: f"over {words}" for axis, words in AXES.items()}


def steps_chart(
    key: str,
    view: RunView,
    panels: Sequence[Panel],
    *,
    beside: Sequence[RunView] = (),
    legend: Sequence[Key] = PAIR_KEYS,
    offered: bool = False,
) -> None:
    """Draws `panels` of a run, and of the runs `beside` it; see `charts/steps_chart.py`.

    `key`: unique on the page; `offered`: whether the reader can choose rows of the catalog.
    """
    views = (view, *beside)
    look = Look.of(asked, view.series.steps)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _tools(key, views, panels, look)
        if offered:
            _metrics(key, panels)
    colors = theme()
    others = tuple(each.series.checksum for each in views[1:])  # which need not be runs of the feed
    state = (
        view.series.run, view.series.revision, view.awaited, view.marked, trend_of(view), onsets_of(views), others,
        colors.mode, look, tuple(panels), tuple(legend), asked("steps"),
    )  # fmt: skip
    version = sha256(repr(state).encode()).hexdigest()[:16]
    make = partial(chart_of, view, panels, colors, beside=beside, legend=legend, look=look)
    show("chart", key, {"version": version, "steps": asked("steps") or "", **made(f"{key} drawn", version, make)})


def figure(key: str, chart: Mapping[str, Any]) -> None:
    """Draws a small chart; see `charts/curves.py`. `key`: unique on the page."""
    version = sha256(repr(chart).encode()).hexdigest()[:16]
    show("chart", key, {"version": version, "steps": asked("steps") or "", **chart})


def _tools(key: str, views: Sequence[RunView], panels: Sequence[Panel], look: Look) -> None:
    runs = [view.series for view in views]
    able = {axis: words for axis, words in _OVER.items() if axis == look.x or not why_not(runs, onsets_of(views), axis)}
    _choice(f"{key} x", "x axis", able, look.x, lambda axis: put({"x": None if axis == "step" else axis}))
    smooth = {str(steps): f"median of {steps}" if steps else "not smoothed" for steps in {*SMOOTHINGS, look.smooth}}
    smooth = {steps: smooth[steps] for steps in sorted(smooth, key=int)}
    _choice(f"{key} smooth", "smoothing", smooth, str(look.smooth), lambda steps: put({"smooth": steps.lstrip("0")}))
    name = f"{runs[0].run}{'' if look.window is None else f'-steps-{look.window[0]:.0f}-{look.window[1]:.0f}'}.csv"
    st.download_button(
        "CSV", partial(table_of, runs, panels, look), re.sub(r"[^\w.-]+", "_", name), "text/csv", key=f"{key} csv",
        help="the steps and lines that are shown, as measured, with all digits", on_click="ignore", type="tertiary",
    )  # fmt: skip
    if look.window is not None and st.button("reset zoom", key=f"{key} reset", type="tertiary"):
        put({"steps": None})
        st.rerun(scope="fragment")


def _choice(key: str, label: str, options: Mapping[str, str], chosen: str, choose: Callable[[str], None]) -> None:
    """One of `options` (value → words); the address says which one it is."""
    st.session_state[key] = chosen
    st.selectbox(
        label, list(options), format_func=options.__getitem__, key=key, width=190, label_visibility="collapsed",
        on_change=lambda: choose(st.session_state[key]),
    )  # fmt: skip


def _metrics(key: str, panels: Sequence[Panel]) -> None:
    """The rows: those of the overview, or any of the catalog."""
    shown, place = [panel.metric for panel in panels], f"{key} metrics"
    usual = [panel.metric for panel in OVERVIEW]

    def choose() -> None:
        names = st.session_state[place]
        put({"charts": None if set(names) == set(usual) else ",".join(name for name in OFFERED if name in names)})

    st.session_state[place] = shown
    with st.popover("metrics" if shown == usual else f"metrics: {len(shown)}", type="tertiary"):
        st.multiselect(
            "metrics", list(OFFERED), format_func=lambda name: f"{OFFERED[name].title} · {name}", key=place,
            on_change=choose, width=420, help="rows and tiles; none: those of the overview",
        )  # fmt: skip


def table_of(runs: Sequence[RunSeries], panels: Sequence[Panel], look: Look) -> str:
    """The lines in view as CSV, with all digits and none thinned; harmless in a spreadsheet."""
    lines = [line for panel in panels for line in panel.lines if line.role not in look.hide]
    metrics = list(dict.fromkeys(line.metric for line in lines))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\r\n")
    rows.writerow(["run", "step", "tokens", "seconds", *metrics])
    for at, run in enumerate(runs):
        drawn = {line.metric for line in lines if line.run == at and line.measured(runs)}
        shown = slice(None) if look.window is None else slice(*_inside(run, look.window))
        columns = [run.trained, run.elapsed, *(run.column(m) if m in drawn else _unknown(run) for m in metrics)]
        values = [column[shown].tolist() for column in columns]
        name = csv_cell(run.run)
        for step, *cells in zip(run.steps[shown].tolist(), *values, strict=True):
            rows.writerow([name, step, *("" if cell != cell else repr(cell).removesuffix(".0") for cell in cells)])  # noqa: PLR0124 -- NaN
    return text.getvalue()


def _inside(run: RunSeries, window: tuple[float, float]) -> tuple[int, int]:
    return int(np.searchsorted(run.steps, window[0])), int(np.searchsorted(run.steps, window[1], side="right"))


def _unknown(run: RunSeries) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.full(len(run.steps), np.nan)
