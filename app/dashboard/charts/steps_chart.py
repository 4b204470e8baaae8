"""Data of the linked chart: the figure, what stands around it, and the words for those who cannot see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logprobe.app.dashboard.charts.figures import Course, packed, steps_figure
from logprobe.app.dashboard.charts.panels import PAIR_WORDS, PAIRS, Line, Panel, why_missing
from logprobe.app.dashboard.charts.scales import scale_of
from logprobe.app.dashboard.charts.tiles import unit_beside_label
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.judgement import K3
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.pages.verdict import sentence
from logprobe.app.dashboard.theme import DASHES, Theme
from logprobe.app.numbers import number, quantity
from logprobe.monitor.diagnosis.growth_rule import RULE
from logprobe.monitor.metrics.catalog import metric

_MARKED_EVENTS = 2000


def chart_of(view: RunView, panels: Sequence[Panel], theme: Theme) -> dict[str, Any]:
    """Data of `browser/chart.js`. Panels without any value are named below the figure instead of drawn empty."""
    run, events = view.series, [*view.events, *view.marks]
    shown = [panel for panel in panels if any(run.measured(line.metric) for line in panel.lines)]
    return {
        "run": run.run,
        "revision": run.revision,
        "figure": steps_figure(run, shown, events, theme, course_of(view)),
        "steps": packed(run.steps.astype(np.float64)),
        "rows": [_row(view, panel, number, theme) for number, panel in enumerate(shown, start=2)],
        "legend": _legend(run, shown, theme),
        "note": _incomplete(run),
        "note_help": "Tokens that are broken (not finite, a probability above 1, a placeholder) or could not be matched are left out.",
        "strip_help": "Ticks: weights updated in the engine. Diamonds: a configuration changed. Triangles: an alert began to fire. "
        "Squares: what became of the correction.",
        "absent": _absent([panel for panel in panels if panel not in shown]),
        "events": [{"step": e.step, "words": e.words} for e in events if e.step is not None][-_MARKED_EVENTS:],
        "alt": " ".join(filter(None, [sentence(view), alt_text(run, shown)])),
    }


def course_of(view: RunView) -> Course | None:
    """What the diagnosis says of K3: the run's own normal, and since when it is left; None while there is no diagnosis."""
    judged = view.judgement
    if judged is None:
        return None
    since = judged.document["since_step"]
    if since is not None and since <= int(view.series.steps[0]):
        since = None  # it was never otherwise: nothing to mark
    return Course(K3, judged.growth.baseline, RULE.growing.short_ratio, since)


def _row(view: RunView, panel: Panel, axis: int, theme: Theme) -> dict[str, Any]:
    run = view.series
    return {
        "axis": f"y{axis}",
        "title": panel.title,
        "unit": unit_beside_label(panel.metric),
        "help": panel.words,
        "note": " · ".join(filter(None, [_baseline(view, panel), _note(run, panel)])),
        "lines": [_line(run, line, at, theme) for at, line in enumerate(panel.lines) if run.measured(line.metric)],
    }


def _line(run: RunSeries, line: Line, at: int, theme: Theme) -> dict[str, Any]:
    latest = run.latest(line.metric)
    return {
        "line": at,
        "name": line.name,
        "color": theme.color(line.role),
        "dash": line.dash,
        "latest": None if latest is None else latest[1],
    }


def _baseline(view: RunView, panel: Panel) -> str:
    """What the band behind the row's lines is."""
    course = course_of(view)
    if course is None or course.baseline is None or panel.metric != course.metric:
        return ""
    return f"baseline {number(course.baseline)}; shaded: within {course.within:g}× of it"


def _note(run: RunSeries, panel: Panel) -> str:
    """What the row cannot show."""
    scale = scale_of(run, panel)
    parts = []
    if scale.unplaced:
        parts.append(f"{_steps(scale.unplaced)} at 0 or below, not drawn")
    if scale.below:
        parts.append(f"{_steps(scale.below)} below the axis; zoom in to see")
    return " · ".join(parts)


def _incomplete(run: RunSeries) -> str:
    """How often values rest on fewer tokens than they should; "" when they never do."""
    partial = {pair: int(np.count_nonzero(run.column(f"{pair}.coverage") < 1)) for pair in PAIRS}
    return " · ".join(f"{pair}: incomplete at {_steps(count)}" for pair, count in partial.items() if count)


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _legend(run: RunSeries, panels: Sequence[Panel], theme: Theme) -> list[dict[str, str]]:
    drawn = {line.role for panel in panels for line in panel.lines if line.name in PAIRS and run.measured(line.metric)}
    return [
        {"name": pair, "color": theme.color(pair), "dash": DASHES[pair], "help": PAIR_WORDS[pair]}
        for pair in PAIRS
        if pair in drawn
    ]


def _absent(panels: Sequence[Panel]) -> str:
    return "; ".join(f"{panel.title}: not measured, {why_missing(panel.metric)}" for panel in panels)


def alt_text(run: RunSeries, panels: Sequence[Panel]) -> str:
    """The chart in words: per row, newest value and range."""
    rows = [_row_in_words(run, panel) for panel in panels]
    return f"Metrics of run {run.run} over {len(run.steps):,} steps. {' '.join(rows)}"


def _row_in_words(run: RunSeries, panel: Panel) -> str:
    line = next(line for line in panel.lines if run.measured(line.metric))
    step, value = run.latest(line.metric) or (0, float("nan"))
    column = run.column(line.metric)
    low, high = number(float(np.nanmin(column))), number(float(np.nanmax(column)))
    return f"{panel.title} ({line.name}): {quantity(value, metric(line.metric).unit)} at step {step:,}, between {low} and {high}."
