"""The chart of step metrics, made from a run's frame and rows of the catalog by pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from logprobe.app.dashboard.data import column, measured
from logprobe.app.dashboard.figures import Chart, Curve, Mark, Row, rows_chart
from logprobe.app.dashboard.panels import PAIR_WORDS, Panel, why_missing
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import Floats, wants_log
from logprobe.app.dashboard.verdict import LatestDiagnosis
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.kernel.pairs import RATIO_PAIRS
from logprobe.monitor.judging.growth_rule import K3, RULE
from logprobe.monitor.metrics.catalog import metric

_SAME: Final = 0.005  # relative: smaller changes are not worth a number
_DECADE: Final = 10.0
_RANGE: Final = re.compile(r"(\d{1,18}):(\d{1,18})")


def window_of(asked: str, steps: Sequence[int] | Floats) -> tuple[int, int] | None:
    """Return the range of steps ``A:B`` within the run, or None if it is invalid or covers the whole run."""
    match = _RANGE.fullmatch(asked.strip())
    if match is None or not len(steps):
        return None
    first, last = max(int(match[1]), int(steps[0])), min(int(match[2]), int(steps[-1]))
    there = np.asarray(steps)
    if (first, last) == (int(steps[0]), int(steps[-1])) or not ((there >= first) & (there <= last)).any():
        return None
    return first, last


def onset_of(diagnosis: LatestDiagnosis | None) -> int | None:
    """Return the onset of a run's problem by its diagnosis."""
    return None if diagnosis is None else diagnosis.document["since_step"]


def steps_chart(
    name: str,
    frame: pl.DataFrame,
    panels: Sequence[Panel],
    theme: Theme,
    *,
    window: tuple[int, int] | None = None,
    marks: Sequence[Mark] = (),
    baseline: float | None = None,
    since: int | None = None,
    awaited: bool = False,
    said: str = "",
    exact: bool = False,
) -> Chart:
    """Return the linked chart of a run, with one row per panel that has a value. A note lists the missing inputs of
    other panels.

    Args:
        name: name of the run.
        frame: result of `data.frame_of`, with at least one step.
        panels: rows.
        theme: colours.
        window: steps in view, or None for all.
        marks: events at steps.
        baseline: baseline of the run's K3, or None.
        since: onset of the growth, or None.
        awaited: true if engine records of the newest step may still arrive.
        said: verdict as text, for users of screen readers.
        exact: true to keep all digits of values.
    """
    shown = [panel for panel in panels if any(measured(frame, line.metric) for line in panel.lines)]
    places = column(frame, "step")
    rows = [_row(frame, panel, theme=theme, baseline=baseline) for panel in shown]
    if not rows:
        rows = [Row("nothing was measured", [Curve("", places, np.full(len(places), np.nan), theme.muted)])]
    if since is not None and len(places) and since <= places[0]:
        since = None  # it was never otherwise: nothing to mark
    return rows_chart(
        f"{name} {window}",
        rows,
        theme,
        alt=" ".join(filter(None, [said, alt_text(name, frame, shown)])),
        marks=[replace(mark, words=f"step {mark.at:,}: {mark.words}") for mark in marks],
        since=since,
        window=window,
        legend=True,
        note=" · ".join(filter(None, [_incomplete(frame, shown, awaited=awaited), absent(panels, shown)])),
        exact=exact,
    )


def _row(frame: pl.DataFrame, panel: Panel, *, theme: Theme, baseline: float | None) -> Row:
    lines = [line for line in panel.lines if measured(frame, line.metric)]
    columns = {line.metric: column(frame, line.metric) for line in lines}
    finite = np.concatenate([values[np.isfinite(values)] for values in columns.values()])
    positive = bool(len(finite)) and float((finite > 0).mean()) >= 0.98  # noqa: PLR2004 - some zeros do no harm
    log = panel.scale == "log" or (panel.scale == "auto" and positive and wants_log(finite[finite > 0]))
    curves = []
    for line in lines:
        pair = line.role if line.metric.startswith(f"{line.role}.") else ""  # what the legend switches together
        curves.append(
            Curve(line.name, column(frame, "step"), columns[line.metric], theme.color(line.role), line.dash, pair)
        )
    around = (baseline, RULE.growing.short_ratio) if baseline is not None and panel.metric == K3 else None
    return Row(
        panel.title,
        curves,
        unit_beside_label(panel.metric),
        panel.words,
        log,
        panel.from_zero,
        around=around,
        height=panel.height,
    )


def unit_beside_label(key: str) -> str:
    """Return the unit of a metric next to its label, or "" if the label includes it."""
    unit = metric(key).unit
    return "" if unit in {"fraction", "1e-4"} else unit


def change(value: float | None, median: float | None, *, log: bool) -> str:
    """Return the change against the usual value: a factor on log scales, else a difference, or "" if unknown.

    >>> change(3e-3, 1e-3, log=True), change(0.91, 0.95, log=False), change(1.0, None, log=False)
    ('3.00× median', '−0.04 vs median', '')
    """
    if value is None or median is None:
        return ""
    if log and value > 0 and median > 0:
        factor = value / median
        if abs(factor - 1) < _SAME:
            return "= median"
        return f"{number(factor)}× median" if factor >= _DECADE else f"{factor:.2f}× median"
    difference = value - median
    if abs(difference) <= _SAME * abs(median):
        return "= median"
    return f"{'+' if difference > 0 else ''}{number(difference)} vs median"


def pairs_of(frame: pl.DataFrame) -> list[str]:
    """Return the pairs for selection on the page, which include the reference policy only if it was recorded."""
    return [pair for pair in PAIR_WORDS if pair in RATIO_PAIRS or measured(frame, f"{pair}.coverage")]


def absent(panels: Sequence[Panel], shown: Collection[Panel]) -> str:
    """Return the names of `panels` that are not `shown`, with the reasons, or "" if all are shown."""
    missing = [panel for panel in panels if panel not in shown and not panel.optional]
    return "; ".join(f"{panel.title}: not measured, {why_missing(panel.metric)}" for panel in missing)


def _incomplete(frame: pl.DataFrame, shown: Sequence[Panel], *, awaited: bool) -> str:
    """Describe the frequency of values with incomplete tokens, except in the newest steps."""
    said = []
    for pair in dict.fromkeys(line.metric.partition(".")[0] for panel in shown for line in panel.lines):
        short = column(frame, f"{pair}.coverage") < 1
        whole = np.flatnonzero(~short)
        count = int(np.count_nonzero(short[: whole[-1] if len(whole) else 0] if awaited else short))
        said += [f"{pair}: incomplete at {count:,} step{'' if count == 1 else 's'}"] if count else []
    return " · ".join(said)


def alt_text(name: str, frame: pl.DataFrame, panels: Sequence[Panel]) -> str:
    """Return a description of the chart in words, with newest value and range per row."""
    parts = [f"Metrics of run {name} over {len(frame):,} steps."]
    for panel in panels:
        line = next(line for line in panel.lines if measured(frame, line.metric))
        known = frame.select("step", line.metric).drop_nulls()
        step, value = known.row(-1)
        values = known[line.metric].cast(pl.Float64).to_numpy()
        low, high = number(float(values.min())), number(float(values.max()))
        latest = quantity(value, metric(line.metric).unit)
        parts.append(f"{panel.title} ({line.name}): {latest} at step {step:,}, between {low} and {high}.")
    return " ".join(parts)
