"""Tiles: the newest value of each panel's metric, what is usual for the run, and a sparkline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from logprobe.app.dashboard.charts.panels import COVERAGE, Line, Panel, why_missing
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.data.visible import Visible
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.diagnosis import multiple
from logprobe.app.text.numbers import number, quantity
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.metrics.catalog import metric

_SPARK_STEPS: Final = 60  # points of a sparkline
_USUAL_LATENESS: Final = 5  # steps
_SAME = 0.005  # relative: smaller changes are not worth a number
_DECADE = 10.0
_MULTIPLE: Final = "as the verdict has it: by the run's own baseline, or by what is normal for its setup"


def tiles_of(
    view: RunView, panels: Sequence[Panel], theme: Theme, seen: Visible | None = None
) -> list[dict[str, object]]:
    """One tile per panel, as the component draws them (`browser/tiles.js`). All values are text, ready to be shown.

    `path`: where its metric is defined and drawn for all pairs. `seen`: the steps of the sparklines; None: the whole
    run.
    """
    shown = [p for p in panels if not p.optional or any(view.series.measured(line.metric) for line in p.lines)]
    return [_tile(view, panel, theme, seen) for panel in shown]


def _tile(view: RunView, panel: Panel, theme: Theme, seen: Visible | None) -> dict[str, object]:
    line = next((line for line in panel.lines if view.series.measured(line.metric)), None)
    tile: dict[str, object] = {
        "key": panel.metric,
        "label": panel.title,
        "help": panel.words,
        "path": f"mismatch?metric={panel.metric}",
    }
    if line is None:
        waits = view.awaited and coverage_key(panel.metric) is not None
        why = "waiting for engine records" if waits else f"not measured · {why_missing(panel.metric)}"
        return tile | {"value": "–", "unit": "", "note": why, "missing": True}
    latest = view.series.latest(line.metric)
    step, value = latest if latest is not None else (None, None)
    median = view.medians.get(line.metric)
    return tile | {
        "label": panel.title if line is panel.lines[0] else f"{panel.title}, {line.name}",
        "value": number(value),
        "unit": unit_beside_label(line.metric),
        "note": _late(view, step) or _incomplete(view, line),
        "waits": view.awaited,
        "change": _with_step(_multiple(view, line) or change(value, median, log=panel.scale == "log"), view, step),
        "change_help": _MULTIPLE
        if _multiple(view, line)
        else "latest value compared with the median of earlier steps, "
        f"{quantity(median, unit_beside_label(line.metric))}",
        "spark": spark(thinned(inside(view.series, line.metric, seen)), log=panel.scale == "log"),
        "color": theme.color(line.role),
    }


def _multiple(view: RunView, line: Line) -> str:
    """Of K3 what the banner says: one number for one thing; "": the banner has none."""
    diagnosis = view.diagnosis
    return "" if diagnosis is None or line.metric != K3 else multiple(diagnosis.document, diagnosis.growth)


def unit_beside_label(key: str) -> str:
    """Unit of a metric where its label stands next to it; "" where the label says it already."""
    unit = metric(key).unit
    return "" if unit in {"fraction", "1e-4"} else unit


def change(value: float | None, median: float | None, *, log: bool) -> str:
    """The change against what is usual, in words: a factor on log scales, else a difference; "" where unknown.

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


def _behind(view: RunView, step: int | None) -> int:
    return 0 if step is None else int(np.count_nonzero(view.series.steps > step))


def _late(view: RunView, step: int | None) -> str:
    return f"last measured at step {step:,}" if _behind(view, step) > _USUAL_LATENESS else ""


def _with_step(words: str, view: RunView, step: int | None) -> str:
    """What the engine reports joins a little after what the trainer does: the tile says of which step it speaks."""
    return " · ".join(filter(None, [words, f"step {step:,}"])) if _behind(view, step) else words


def _incomplete(view: RunView, line: Line) -> str:
    coverage = coverage_key(line.metric)
    latest = view.series.latest(coverage) if coverage else None
    if latest is None or latest[1] >= 1:
        return ""
    if view.awaited:
        return f"step {latest[0]:,}: waiting for engine records"
    return f"{math.floor(1e4 * latest[1]) / 100:g} % of tokens measured"  # never rounded up to 100


def coverage_key(key: str) -> str | None:
    """The metric that says how much of the data a pair's metric rests on; None for metrics of no pair."""
    candidate = f"{key.partition('.')[0]}.coverage"
    return candidate if candidate in COVERAGE else None


def inside(run: RunSeries, key: str, seen: Visible | None) -> Floats:
    """The values of a metric at the steps in view; None: at all steps."""
    column = run.column(key)
    return column if seen is None else column[(run.steps >= seen.first) & (run.steps <= seen.last)]


def thinned(values: Floats) -> Floats:
    """At most `_SPARK_STEPS` of the values, evenly, the last one among them: a sparkline shows a trend, not every
    peak."""
    if len(values) <= _SPARK_STEPS:
        return values
    chosen_values: Floats = values[np.linspace(0, len(values) - 1, _SPARK_STEPS).round().astype(np.int64)]
    return chosen_values


def spark(column: Floats, *, log: bool) -> list[float | None]:
    """Values scaled to 0…1 for drawing; None is a gap."""
    values = np.log(np.where(column > 0, column, np.nan)) if log else column
    finite = values[np.isfinite(values)]
    if not len(finite):
        return []
    low, span = finite.min(), finite.max() - finite.min()
    scaled = np.where(span > 0, (values - low) / (span or 1.0), np.where(np.isfinite(values), 0.5, np.nan))
    return [round(float(value), 3) if np.isfinite(value) else None for value in scaled]
