"""Runs page: all runs of this and other data directories, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
import streamlit as st

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.data import Look
from logprobe.app.dashboard.reading.other_places import Elsewhere, other_places
from logprobe.app.dashboard.thinning import floor_of
from logprobe.app.runs import Run
from logprobe.app.text.judgement import headline, lateness
from logprobe.app.text.numbers import number
from logprobe.app.text.runs import Glance, line, matching, worst_first
from logprobe.monitor import queries
from logprobe.monitor.judgement import SEVERITIES

MOST: Final = 100  # rows of a page
_OPENED: Final = "run that was opened"
_COLUMNS: Final[dict[str, Any]] = {
    "severity": pl.String,
    "run": pl.String,
    "cause": pl.String,
    "since": pl.Int64,
    "K3 over the run": pl.List(pl.Float64),
    "K3": pl.String,
    "alerts": pl.List(pl.String),
    "acknowledged by": pl.String,
    "lag": pl.String,
    "correction": pl.String,
    "state": pl.String,
    "step": pl.Int64,
}


def draw(look: Look, run: Run | None) -> None:  # noqa: ARG001 - it is about all of them
    """Draw the page."""
    elsewhere = other_places().look()
    runs = [*(look.runs or {}).values(), *elsewhere.runs.values()]
    words = st.text_input(
        "search", key="q", bind="query-params", persist_state="session", label_visibility="collapsed", live=True, width=420,
        placeholder="search names, causes and alerts, or: critical, running, ended",
    )  # fmt: skip
    for problem in elsewhere.problems:
        ui.write(problem, "warning")
    shown = worst_first(matching(runs, words or ""))
    st.caption(ui.unmarked(summary(shown, len(runs))))
    pages = max(1, -(-len(shown) // MOST))
    at = st.pagination(pages, key="rows") if pages > 1 else 1
    part = shown[MOST * (at - 1) : MOST * at]
    local = [each for each in part if each.name not in elsewhere.runs]
    glances = {**elsewhere.glances, **_glances(local)}
    rows = [row(each, glances.get(each.name)) for each in part]
    picked = st.dataframe(
        pl.DataFrame(rows, schema=_COLUMNS),
        hide_index=True,
        placeholder="–",
        on_select="rerun",
        selection_mode="single-cell",
        key="runs",
        height="content" if len(rows) <= 25 else 900,  # noqa: PLR2004 - what a screen shows
        alt="runs, the worst first",
        column_config={
            "K3 over the run": st.column_config.LineChartColumn(
                "K3 over the run", help="logarithmic; each run on an axis of its own, of at least two decades"
            ),
            "alerts": st.column_config.ListColumn("alerts"),
            "since": st.column_config.NumberColumn("since", format="localized"),
            "step": st.column_config.NumberColumn("step", format="localized"),
            "cause": st.column_config.TextColumn("cause", width="medium"),
            "run": st.column_config.TextColumn("run", width="medium", help="click a row to open it"),
        },
    )
    _open(picked.selection.cells, part, elsewhere)


def _open(cells: Sequence[Any], part: Sequence[Run], elsewhere: Elsewhere) -> None:
    """Open the run whose row was clicked. For a run of another place, open the Compare page."""
    chosen: tuple[int, str] | None = (int(cells[0][0]), str(cells[0][1])) if cells else None
    before, st.session_state[_OPENED] = st.session_state.get(_OPENED), chosen
    if chosen is None or chosen == before or chosen[0] >= len(part):
        return
    name = part[chosen[0]].name
    if name in elsewhere.runs:
        ui.go("compare", runs=[name])
    else:
        ui.go("", run=name)


def summary(shown: Sequence[Run], of: int) -> str:
    """Return the number of runs by state."""
    counts = Counter(run.judgement.severity for run in shown)
    parts = ", ".join(f"{counts[severity]:,} {severity}" for severity in SEVERITIES if counts[severity])
    return f"{len(shown):,} of {of:,} runs{': ' if parts else ''}{parts}"


def row(run: Run, glance: Glance | None) -> dict[str, Any]:
    """Return a run as a row of the table."""
    facts, shown = line(run, glance), headline(run.judgement)
    late = lateness(run.judgement)
    return {
        "severity": f"{shown.icon} {shown.word}",
        "run": run.name,
        "cause": "; ".join(filter(None, [facts["cause"], late.lower()])) or None,
        "since": facts["since"],
        "K3 over the run": decades((glance or {}).get("k3") or []),
        "K3": None if facts["k3"] is None else number(facts["k3"]),
        "alerts": facts["alerts"],
        "acknowledged by": facts["acknowledged_by"],
        "lag": None if facts["lag"] is None else number(facts["lag"]),
        "correction": None if glance is None else facts["correction"],
        "state": facts["state"].replace("_", " "),
        "step": facts["last_step"],
    }


def decades(k3: Sequence[float]) -> list[float]:
    """Return K3 in decades from 0 on. A run within two decades does not fill the height."""
    values = np.array([value for value in k3 if value is not None and value > 0], dtype=np.float64)
    if not len(values):
        return []
    logs = np.log10(np.maximum(values, floor_of(values)))
    span = max(2.0, float(np.ptp(logs)))
    return [round(float(value), 3) for value in (logs - (logs.min() + logs.max()) / 2 + span / 2) / span]


def _glances(runs: Sequence[Run]) -> Mapping[str, Glance]:
    """Return the rows of `app_runs_glance` by run. They are reread when one of the runs has changed."""
    version = tuple(map(data.version_of, runs))
    names = [run.name for run in runs]
    if not names:
        return {}
    rows = data.kept(
        ("glances", tuple(names)), version, lambda: queries.app_runs_glance(data.reader(), runs=names).to_pylist()
    )
    return {each["run"]: each for each in rows}
