"""Actions: the correction of a run, and switching it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import streamlit as st

from logprobe.alerts.controller.job import ACTION
from logprobe.app.commands.mis import describe, foresee
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.pages.actions import actions_blocks, outcome_blocks
from logprobe.app.dashboard.pages.correction_trend import trend_data
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import feed, guarded, home, kept, read_once, theme
from logprobe.app.runs import Run
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.home import Home

_KEY: Final = "actions"
_LAST_STEP: Final = 2**62


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    place = f"{_KEY} {run.name}"
    with guarded(_KEY):
        document = kept(place, lambda: _read(run.name))
        if document is not None:
            foreseen = st.session_state.get(_foreseen(run.name))
            blocks = [*said(place), *actions_blocks(document, foreseen, blocked=blocked(run.name))]
            wanted = report(_KEY, "actions", blocks)
            attempt(place, wanted, lambda asked: _do(run.name, asked))
            _trend(run, view, document)
            below = outcome_blocks(document)
            report("outcome", "what came of it", below)


def _trend(run: Run, view: RunView, document: Mapping[str, Any]) -> None:
    """Over steps; read again when the run has something new. Without a decision there is nothing to show."""
    if not document["actions"]:
        return
    version = f"{view.version} {theme().mode}"
    read = partial(feed().read, "controller_trend", run=run.name, first=0, last=_LAST_STEP)
    trend = read_once(f"trend {run.name}", version, lambda: trend_data(read(), document))
    if trend is not None:
        show("correction_trend", "trend", {"version": version, "run": run.name, **trend})


def _read(run: str) -> dict[str, Any]:
    """Only through the service: a file held open by a page would keep the service from starting again."""
    if feed().snapshot(run).away_since is not None:
        raise ServiceUnavailableError("the monitor service is not responding")
    return describe(Home(home()), run)


def _foreseen(run: str) -> str:
    return f"preview {run}"


def _do(run: str, asked: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what came of it. Raises `LogprobeError`."""
    if asked.get("id") == "preview":
        st.session_state[_foreseen(run)] = foresee(Home(home()), run)
        return "Computed; nothing was switched."
    done = ask(ACTION, {"run": run, "command": asked.get("command"), "by": asked.get("by"), "force": False})
    return " ".join(action["words"] for action in done["actions"]) or "No change: already in that state."
