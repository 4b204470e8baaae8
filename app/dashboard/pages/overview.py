"""Overview page: verdict, onset, layer and remedy, then the newest values and their history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import polars as pl
import streamlit as st

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.data import measured
from logprobe.app.dashboard.panels import COVERAGE, OVERVIEW, Panel, why_missing
from logprobe.app.dashboard.steps import change, unit_beside_label
from logprobe.app.dashboard.verdict import LatestDiagnosis, sentence, verdict_of
from logprobe.app.runs import Run
from logprobe.app.text.diagnosis import multiple
from logprobe.app.text.html import Markup, element
from logprobe.app.text.numbers import number, quantity
from logprobe.monitor.judging import bit_equality
from logprobe.monitor.judging.growth_rule import K3

_USUAL_LATENESS: Final = 5  # steps


def draw(run: Run) -> None:
    """Draw the page."""
    found = data.diagnosis_of(run)
    frame = data.frame_of(run)
    shown = verdict_of(run.judgement, found, frame["step"].to_list(), awaited=data.awaits(run, frame))
    ui.verdict(shown)
    with ui.guarded("bit equality"):
        complete = bit_equality.complete_until(datetime.now(UTC), ended=run.liveness.state.over)
        equal = data.kept(
            ("bit equality", run.name),
            (data.version_of(run), complete is None),
            lambda: bit_equality.read(data.reader(), [run.name], until=complete),
        )[run.name]
        if equal.verdict in {"zero", "broken"}:  # others claim nothing
            st.caption(ui.unmarked(f"Bit equality: {equal.words}"))
    with ui.guarded("tiles"):
        st.html(tiles(run, frame, OVERVIEW, found))
    with ui.guarded("chart"):
        ui.zoom()
        ui.steps_chart("steps chart", run, frame, OVERVIEW, diagnosis=found, said=sentence(shown))


def tiles(run: Run, frame: pl.DataFrame, panels: Sequence[Panel], found: LatestDiagnosis | None) -> Markup:
    """Return one tile per panel: its newest value, against the usual one."""
    awaited = data.awaits(run, frame)
    there = [
        panel for panel in panels if not panel.optional or any(measured(frame, line.metric) for line in panel.lines)
    ]
    return element(
        "div",
        element("div", *(_tile(run, frame, panel, found, awaited=awaited) for panel in there), class_="lp-tiles"),
        class_="lp",
    )


def _tile(run: Run, frame: pl.DataFrame, panel: Panel, found: LatestDiagnosis | None, *, awaited: bool) -> Markup:
    lines = panel.lines[:1] if coverage_key(panel.metric) else panel.lines  # another pair's K3 is not this one's
    line = next((line for line in lines if measured(frame, line.metric)), None)
    if line is None:
        waits = awaited and coverage_key(panel.metric) is not None
        why = "waiting for engine records" if waits else f"not measured · {why_missing(panel.metric)}"
        return _drawn(run, panel, panel.title, Markup(element("b", "–")), words=why)
    known = frame.select("step", line.metric).drop_nulls()
    step, value = known.row(-1)
    values = known[line.metric].to_numpy()
    median = float(np.median(values[:-1])) if len(values) > 1 else None
    behind = int((frame["step"] > step).sum())
    late = f"last measured at step {step:,}" if behind > _USUAL_LATENESS else ""
    times = multiple(found.document) if found is not None and line.metric == K3 else ""
    words = times or change(value, median, log=panel.scale == "log")
    words = " · ".join(filter(None, [words, f"step {step:,}" if behind else ""]))
    usual = f"compared with the median of earlier steps, {quantity(median, unit_beside_label(line.metric))}"
    shown = Markup(
        element("b", number(value)) + element("span", f" {unit_beside_label(line.metric)}", class_="lp-hint")
    )
    name = panel.title if line is panel.lines[0] else f"{panel.title}, {line.name}"
    odd = late or _incomplete(frame, line.metric, awaited=awaited)
    return _drawn(run, panel, name, shown, words=odd or words, usual="" if odd else usual)


def _drawn(run: Run, panel: Panel, name: str, value: Markup, *, words: str, usual: str = "") -> Markup:
    query = {"run": run.name, "metric": panel.metric.partition(".")[2] or panel.metric}
    head = element("h3", ui.link(name, "mismatch", query, title=panel.words))
    note = element("p", words, **({"title": usual} if usual else {"class_": "lp-odd"}))
    return element("div", head, element("div", value), note, class_="lp-tile")


def coverage_key(key: str) -> str | None:
    """Return the coverage metric of a pair's metric, or None for metrics of no pair."""
    candidate = f"{key.partition('.')[0]}.coverage"
    return candidate if candidate in COVERAGE else None


def _incomplete(frame: pl.DataFrame, key: str, *, awaited: bool) -> str:
    coverage = coverage_key(key)
    if coverage is None or not measured(frame, coverage):
        return ""
    step, share = frame.select("step", coverage).drop_nulls().row(-1)
    if share >= 1:
        return ""
    return (
        f"step {step:,}: waiting for engine records"
        if awaited
        else f"{math.floor(1e4 * share) / 100:g} % of tokens measured"
    )
