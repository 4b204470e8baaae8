"""What every page shares: the bar with runs and tabs, the live part below it, and going from page to page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import streamlit as st

from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.browser import panel
from logprobe.app.dashboard.data.feed import RunView, Snapshot
from logprobe.app.dashboard.elements.bar import bar_of
from logprobe.app.dashboard.page_table import BY_PATH, PAGES
from logprobe.app.dashboard.theme import colors_of
from logprobe.app.dashboard.views.acting import token_form
from logprobe.app.dashboard.views.empty_states import ABSENT_RUN, BEGINNING, no_service, recording_snippet
from logprobe.app.dashboard.views.session import (
    all_runs,
    asked,
    current_snapshot,
    feed,
    guarded,
    home,
    pace,
    put,
    theme,
)
from logprobe.app.runs import Run
from logprobe.app.text.runs import worst_first

_ALL: Final = "runs"


def live(path: str, draw: Callable[..., None]) -> None:
    """The page at `path`: bar, and what `draw` makes of the run that is looked at, or of the home.

    All of it is one fragment: the bar asks for the next look by itself, see `browser/bar.js`.
    """
    st.fragment(_live)(path, draw if BY_PATH[path].of_home else partial(_below, draw=draw))


def current() -> str:
    """Path of the page that the address names; for one that names neither page nor run the first, or that of all runs
    where there are two.

    Runs of other places count, too.
    """
    path = asked("page") or ""
    if not path and asked("run") is None and (Access.of(os.environ).also or len(feed().snapshot(None).runs or ()) > 1):
        put({"page": _ALL})
        return _ALL
    return path if path in BY_PATH else ""


def go(path: str) -> None:
    """Opens another page about what the address names; what stands behind a "?" is looked at there."""
    page, _, looked_at = path.partition("?")
    put({"page": page, **dict(parse_qsl(looked_at, keep_blank_values=True))})
    runs = feed().snapshot(None).runs
    if asked("run") is None and runs and page in BY_PATH and not BY_PATH[page].of_all:
        put({"run": worst_first(runs)[0].name})
    st.rerun()


def show(kind: str, key: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Draws the panel of `browser/<kind>.js`; what someone confirmed on it, or None.

    It is drawn again when its `version` is another: the one in `data`, else one of all that `data` holds. Links (`go`)
    are followed; what someone chose to look at (`set`) goes into the address, and the page is redrawn.
    """
    versioned = data if "version" in data else {"version": f"{hash(str(data)):x}", **data}
    sent = panel(kind, key, versioned, triggers=("go", "do", "set"))
    if sent.set:
        put(sent.set)
        st.rerun(scope="fragment")
    if sent.go:
        go(sent.go.strip("/"))
    wanted: Mapping[str, Any] | None = sent.do
    return wanted


def _live(path: str, below: Callable[[Snapshot, Run | None], None]) -> None:
    snapshot, run = all_runs() if BY_PATH[path].of_all else current_snapshot()
    if run is not None and asked("run") is None:
        put({"run": run.name})  # a run that starts later must not take the place of the one being looked at
    st.html(f"<style>{colors_of(theme())}</style>")
    now = datetime.now(UTC)
    bar = bar_of(snapshot, run, asked=asked("run"), now=now, interval=pace(snapshot, run), pages=PAGES, page=path)
    sent = panel("bar", "bar", bar, triggers=("tick", "pick", "go"))
    if sent.pick:
        put({"run": sent.pick})
        st.rerun(scope="fragment")
    if sent.go:
        go(sent.go.strip("/"))
    if current() != path:  # the reader went back
        st.rerun()
    if BY_PATH[path].acts:
        with guarded("field for the token"):
            token_form()
    below(snapshot, run)


def _below(snapshot: Snapshot, run: Run | None, draw: Callable[[Run, RunView], None]) -> None:
    if run is None:
        (no_service if snapshot.runs is None else recording_snippet)(home())
    elif snapshot.view is None:
        st.caption(ABSENT_RUN)
    elif not len(snapshot.view.series.steps):
        st.caption(BEGINNING)
    else:
        draw(run, snapshot.view)
