"""Compare: runs of the home, and of those that `logprobe up --also` names, against a baseline, metric by metric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard.data.comparing import Comparer, Made, Recent
from logprobe.app.dashboard.data.elsewhere import OtherPlaces
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.pages.compare import Choice, choice_of, chooser, compare_data, values_of
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, is_new, kept, theme
from logprobe.app.report import comparison as html
from logprobe.app.runs import Run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare import Comparison, Place

_KEY: Final = "compare"
_ASKED: Final = ("baseline", "runs", "align", "metric")
_GIVEN: Final = "compare given"  # the download that was asked for last, so that it is made once
_FILE: Final = "compare file"


@cache
def _comparer(_: str) -> Comparer:
    return Comparer(lambda name: _others().place(name) or Place(name, name, feed()))


@cache
def _others() -> OtherPlaces:
    return OtherPlaces.of(os.environ)


@cache
def _drawn() -> Recent[dict[str, Any]]:
    return Recent(8)


def draw(run: Run, _: RunView) -> None:
    """Draws the page."""
    with guarded("comparison"):
        others = _others().look()
        runs = {each.name: each for each in feed().snapshot(run.name).runs or ()} | dict(others.runs)
        choice = choice_of(list(runs), run.name, {name: asked(name) for name in _ASKED})
        found, problem = _found(choice, runs)
        data = {
            "choice": chooser(choice, list(runs.values()), [*others.problems, problem]),
            "file": st.session_state.pop(_FILE, None),
        }
        wanted = show(_KEY, _KEY, data | ({} if found is None else _drawing(found, choice)))
        _give(wanted, None if found is None else found.value, choice)


def _found(choice: Choice, runs: Mapping[str, Run]) -> tuple[Made[Comparison] | None, str]:
    """The comparison, or why there is none."""
    if choice.baseline is None or not choice.runs:
        return None, ""
    baseline, others = runs[choice.baseline], tuple(runs[name] for name in choice.runs)
    comparer = _comparer(str(home()))
    try:
        return kept(
            f"{_KEY} {choice}",
            lambda: comparer.compare(others, baseline, axis=choice.axis, metrics=choice.metrics),
        ), ""
    except ConfigurationError as error:
        return None, str(error).replace("use --align step", "align by step")


def _drawing(found: Made[Comparison], choice: Choice) -> dict[str, Any]:
    """Data of the comparison, with a version that is another whenever it is; made once for all sessions that look at the same."""
    colors = theme()
    key = (str(home()), choice, found.state, colors.mode)
    return _drawn().of(key, lambda: compare_data(found.value, choice, colors) | {"version": f"{hash(key):x}"})


def _give(wanted: Mapping[str, Any] | None, found: Comparison | None, choice: Choice) -> None:
    """Makes the file that was asked for, and redraws the page with it."""
    if found is None or not is_new(wanted, _GIVEN):
        return
    name = f"comparison-with-{found.baseline}"
    kind = wanted.get("id")
    if kind == "json":
        file = {"type": "application/json", "text": tables.dump(found.document())}
    elif kind == "csv":
        file = {"type": "text/csv;charset=utf-8", "text": tables.csv_text(values_of(found, choice.shown))}
    else:
        file = {"type": "text/html", "text": html.report(found)}
    st.session_state[_FILE] = file | {"name": f"{name}.{kind}", "at": wanted.get("at")}
    st.rerun(scope="fragment")
