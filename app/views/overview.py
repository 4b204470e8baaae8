"""Overview: what a run is doing now, its newest values, and how they came about, step by step."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from logprobe.app.bar import bar_of
from logprobe.app.chart import panel
from logprobe.app.data import Look, Run
from logprobe.app.panels import OVERVIEW
from logprobe.app.steps_chart import chart_of
from logprobe.app.tiles import tiles_of
from logprobe.app.views.session import choose, chosen, guarded, home, looked, pace, theme
from logprobe.app.views.words import ABSENT_RUN, BEGINNING, no_service, recording_snippet


def overview() -> None:
    """Draws the page."""
    st.fragment(_live)()


def _live() -> None:
    """All that changes while a run goes on. The bar asks for the next look by itself, see `chart/bar.js`."""
    look, run = looked()
    if run is not None and chosen() is None:
        choose(run.name)  # a run that starts later must not take the place of the one being looked at
    bar = bar_of(look, run, asked=chosen(), now=datetime.now(UTC), interval=pace(look, run))
    sent = panel("bar", "bar", bar, triggers=("tick", "pick"))
    if sent.pick:
        choose(sent.pick)
        st.rerun(scope="fragment")
    if run is not None:
        _run(look, run)
    elif look.runs is None:
        no_service(home())
    else:
        recording_snippet(home())


def _run(look: Look, run: Run) -> None:
    view = look.view
    if view is None:
        st.caption(ABSENT_RUN)
    elif not len(view.series.steps):
        st.caption(BEGINNING)
    else:
        colors = theme()
        version = f"{run.name}@{view.series.revision} {colors.mode}"
        with guarded("tiles"):
            panel("tiles", "tiles", {"version": version, "tiles": tiles_of(view, OVERVIEW, colors)})
        with guarded("chart"):
            panel("chart", "chart", {"version": version, **chart_of(view, OVERVIEW, colors)})
