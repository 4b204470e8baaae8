"""Data of the linked chart: the figure, what stands around it, and the words for those who cannot see it. Pure.

How a page shows one: `views/chart.py`, ``steps_chart("my-key", view, PANELS)`` in a `guarded` block. PANELS are rows
from the top down (`charts/panels.py`); each `Line` names a metric of the catalog, read from `view.series`; metrics that
the feed does not hold by itself come as ``replace(view, series=...)``. Runs beside the first are given as
``beside=[other_view, …]`` and drawn by lines with ``run=1, 2, …`` and the role ``"run 1"``, …; such a chart gets a
`legend` of these roles. Zoom, x axis, smoothing, scales and hidden lines are in the address (`charts/look.py`) and are
shared by all charts of a page; keys tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from logprobe.app.dashboard.charts.axes import AXES, Axis, axis_of, why_not
from logprobe.app.dashboard.charts.figures import WHOLE, Figure, steps_figure
from logprobe.app.dashboard.charts.lines import Trace, too_long
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.marks import KINDS, Trend, event_color
from logprobe.app.dashboard.charts.packing import packed_places, packed_steps, unpacked
from logprobe.app.dashboard.charts.panels import PAIR_WORDS, Line, Panel, why_missing
from logprobe.app.dashboard.charts.scales import Scale, scale_of
from logprobe.app.dashboard.charts.tiles import unit_beside_label
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.theme import DASHES, Theme
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.kernel.pairs import SIDES
from logprobe.monitor.judging.growth_rule import K3, RULE
from logprobe.monitor.metrics.catalog import metric

_MARKED_EVENTS: Final = 2000


@dataclass(frozen=True)
class Key:
    """An entry of the legend, with which all lines of its `role` are switched on and off."""

    name: str
    role: str
    dash: str = "solid"
    help: str = ""


PAIR_KEYS: Final = tuple(Key(pair, pair, DASHES[pair], help=words) for pair, words in PAIR_WORDS.items())


def chart_of(
    view: RunView,
    panels: Sequence[Panel],
    theme: Theme,
    *,
    beside: Sequence[RunView] = (),
    legend: Sequence[Key] = PAIR_KEYS,
    look: Look = WHOLE,
) -> dict[str, object]:
    """Data of `browser/chart.js`. Panels without any value are named below the figure instead of drawn empty."""
    views = [view, *beside]
    runs, events = [drawn.series for drawn in views], view.marked
    shown = [panel for panel in panels if any(line.measured(runs) for line in panel.lines)]
    onsets = onsets_of(views)
    axis = axis_of(runs, onsets, look.x)
    figure = steps_figure(runs, shown, events, theme, trend=trend_of(view), look=look, axis=axis)
    traces, columns = _shared(figure["data"])
    unable = "" if axis.kind == look.x else f"not over {AXES[look.x]}: {why_not(runs, onsets, look.x)}"
    return {
        "run": view.series.run,
        "figure": figure | {"data": traces},
        "columns": columns,
        "stops": [_stops(drawn.series, at, figure, axis) for at, drawn in enumerate(views)],
        "unit": axis.unit,
        "zooms": True,
        "window": None if look.window is None else [int(step) for step in look.window],
        "rows": [
            {"axis": f"y{number}", **_row(view, runs, panel, theme, look)}
            for number, panel in enumerate(shown, start=2)
        ],
        "legend": _legend(runs, shown, legend, theme, look),
        "note": _joined(unable, _incomplete(view, shown)),
        "note_help": "Tokens that are broken (not finite, a probability above 1, a placeholder) or could not be "
        "matched are left out.",
        "absent": absent(panels, shown),
        "kinds": _kinds(events, theme),
        "events": _events(events),
        "alt": alt_text(runs, shown),
    }


def onsets_of(views: Sequence[RunView]) -> list[int | None]:
    """Of each run the step that its diagnosis names."""
    return [None if view.diagnosis is None else view.diagnosis.document["since_step"] for view in views]


def _shared(traces: Sequence[Trace]) -> tuple[list[Trace], list[object]]:
    """The traces, and columns of x values that several have: sent once, and named by their number."""
    columns: dict[str, int] = {}
    drawn = []
    for trace in traces:
        x = trace["x"]
        drawn.append(trace | {"x": columns.setdefault(json.dumps(x), len(columns))} if isinstance(x, dict) else trace)
    return drawn, [json.loads(column) for column in columns]


def _stops(run: RunSeries, at: int, figure: Figure, axis: Axis) -> dict[str, object]:
    """Steps that a reader can go to, and their places: of a long run those that its first row is drawn by."""
    steps = run.steps.astype(np.float64)
    if too_long(run):
        lines = [trace for trace in figure["data"] if trace["meta"].get("run") == at and "line" in trace["meta"]]
        drawn = [unpacked(trace["x"]) for trace in lines if trace["meta"]["row"] == lines[0]["meta"]["row"]]
        near = np.isin(axis.places[at], np.concatenate([*drawn, np.empty(0)]))
        near[[0, -1]] = True
        steps = steps[near]
    places = axis.place(steps, at)
    return {
        "name": run.run,
        "steps": packed_steps(steps),
        "places": None if axis.kind == "step" else packed_places(places),
    }


def trend_of(view: RunView) -> Trend | None:
    """What the diagnosis says of K3: the run's own normal, and from the step on which it is left; None while there is
    no diagnosis."""
    judged = view.diagnosis
    if judged is None:
        return None
    since = judged.document["since_step"]
    if since is not None and len(view.series.steps) and since <= int(view.series.steps[0]):
        since = None  # it was never otherwise: nothing to mark
    return Trend(K3, judged.growth.baseline, RULE.growing.short_ratio, since)


def _row(view: RunView, runs: Sequence[RunSeries], panel: Panel, theme: Theme, look: Look) -> dict[str, object]:
    scale, baseline = scale_of(runs, panel), _baseline(view, panel)
    log = look.is_log(panel.metric, usual=scale.log)
    below = _below(scale) if scale.log and look.window is None else ""  # zoomed, the axis is around what is in view
    return {
        "key": panel.metric,
        "title": panel.title,
        "unit": unit_beside_label(panel.metric),
        "help": panel.words,
        "log": log,
        "other": look.other_scale(panel.metric, usual=scale.log),
        "note": _joined(baseline, _unplaced(scale), below) if log else baseline,
        "lines": [
            _line(runs, line, at, theme)
            for at, line in enumerate(panel.lines)
            if line.measured(runs) and line.role not in look.hide
        ],
    }


def _line(runs: Sequence[RunSeries], line: Line, at: int, theme: Theme) -> dict[str, object]:
    latest = runs[line.run].latest(line.metric)
    return {
        "line": at,
        "key": line.metric,
        "run": line.run,
        "role": line.role,
        "name": line.name,
        "color": theme.color(line.role),
        "dash": line.dash,
        "latest": None if latest is None else latest[1],
    }


def _baseline(view: RunView, panel: Panel) -> str:
    """What the band behind the row's lines is."""
    trend = trend_of(view)
    if trend is None or trend.baseline is None or panel.metric != trend.metric:
        return ""
    return f"baseline {number(trend.baseline)}; shaded: within {trend.within:g}× of it"


def _unplaced(scale: Scale) -> str:
    return f"{_steps(scale.unplaced)} at 0 or below, not drawn" if scale.unplaced else ""


def _below(scale: Scale) -> str:
    return f"{_steps(scale.below)} below the axis; zoom in to see" if scale.below else ""


def _joined(*notes: str) -> str:
    return " · ".join(filter(None, notes))


def _incomplete(view: RunView, panels: Sequence[Panel]) -> str:
    """How often values rest on fewer tokens than they should; "" when they never do, or only where engine records may
    still arrive."""
    run = view.series
    drawn = {line.metric.partition(".")[0] for panel in panels for line in panel.lines}
    short = {pair: run.column(f"{pair}.coverage") < 1 for pair in SIDES if pair in drawn}
    partial = {pair: int(np.count_nonzero(_settled(below) if view.awaited else below)) for pair, below in short.items()}
    return " · ".join(f"{pair}: incomplete at {_steps(count)}" for pair, count in partial.items() if count)


def _settled(short: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """All but the newest steps, as far back as they are incomplete."""
    whole = np.flatnonzero(~short)
    return short[: whole[-1] if len(whole) else 0]


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _legend(
    runs: Sequence[RunSeries], panels: Sequence[Panel], keys: Sequence[Key], theme: Theme, look: Look
) -> list[dict[str, object]]:
    drawn = {line.role for panel in panels for line in panel.lines if line.measured(runs)}
    return [
        {
            "name": key.name, "role": key.role, "color": theme.color(key.role), "dash": key.dash, "help": key.help,
            "hidden": key.role in look.hide, "other": look.switched(key.role),
        }
        for key in keys
        if key.role in drawn
    ]  # fmt: skip


def absent(panels: Sequence[Panel], shown: Sequence[Panel]) -> str:
    """Which of `panels` are not among those that are `shown`, and why; "" when all are."""
    missing = [panel for panel in panels if panel not in shown and not panel.optional]
    return "; ".join(f"{panel.title}: not measured, {why_missing(panel.metric)}" for panel in missing)


def _kinds(events: Sequence[Event], theme: Theme) -> list[dict[str, str]]:
    """The legend of marks: kinds of which there is one."""
    there = {event.kind for event in events if event.step is not None}
    return [
        {"kind": kind, "name": drawn.name, "sign": drawn.sign, "color": event_color(kind, theme)}
        for kind, drawn in KINDS.items()
        if kind in there
    ]


def _events(events: Sequence[Event]) -> list[dict[str, object]]:
    placed = [event for event in events if event.step is not None][-_MARKED_EVENTS:]
    return [{"kind": event.kind, "step": event.step, "words": event.words} for event in placed]


def alt_text(runs: Sequence[RunSeries], panels: Sequence[Panel]) -> str:
    """The chart in words: per row, newest value and range."""
    rows = [_row_in_words(runs, panel) for panel in panels]
    others = "".join(f", {run.run} over {len(run.steps):,}" for run in runs[1:])
    return f"Metrics of run {runs[0].run} over {len(runs[0].steps):,} steps{others}. {' '.join(rows)}"


def _row_in_words(runs: Sequence[RunSeries], panel: Panel) -> str:
    line = next(line for line in panel.lines if line.measured(runs))
    step, value = runs[line.run].latest(line.metric) or (0, float("nan"))
    column = line.values(runs)
    low, high = number(float(np.nanmin(column))), number(float(np.nanmax(column)))
    return (
        f"{panel.title} ({line.name}): {quantity(value, metric(line.metric).unit)} at step {step:,}, between {low} and "
        f"{high}."
    )
