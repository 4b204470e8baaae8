"""Charts of runs side by side: a metric's values over one axis, and below them its ratio to the baseline. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.downsample import thin
from logprobe.app.dashboard.charts.packing import packed
from logprobe.app.dashboard.charts.panels import why_missing
from logprobe.app.dashboard.charts.scales import wants_log
from logprobe.app.dashboard.theme import RUN_DASHES, Theme
from logprobe.app.text.comparison import alt_of
from logprobe.monitor.compare import Comparison, MetricVerdict
from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.metrics.catalog import metric as declared

_MOST_POINTS: Final = 800  # of a line on a small chart


def run_looks(found: Comparison, theme: Theme) -> list[dict[str, str]]:
    """Name, colour and dash of each line: the baseline's first, in the neutral colour."""
    colors = (theme.neutral, *theme.runs)
    return [
        {"name": run.label, "color": colors[at % len(colors)], "dash": RUN_DASHES[at % len(RUN_DASHES)]}
        for at, run in enumerate(found.histories)
    ]


def charts_of(found: Comparison, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """One chart per metric; a line's `run` is its place in `run_looks`."""
    return [_chart(found, key) for key in metrics]


def help_of(key: str) -> str:
    """What a metric is, and how it is computed."""
    metric = declared(key)
    return f"{metric.words} {metric.formula}"


def _chart(found: Comparison, key: str) -> dict[str, Any]:
    items = [next(item for item in pairing.metrics if item.metric == key) for pairing in found.pairings]
    lines = list(_lines(found, key))
    values = np.concatenate([y for _, _, y in lines]) if lines else np.empty(0)
    return {
        "key": key,
        "title": items[0].label.partition(", distance")[0],
        "help": help_of(key),
        "unit": declared(key).unit,
        "log": wants_log(values[np.isfinite(values)]) if len(values) else False,
        "alt": alt_of(found, items),
        "missing": "" if lines else f"not measured, {why_missing(key)}",
        "lines": [{"run": run, "x": packed(x, "f4"), "y": packed(y, "f4")} for run, x, y in lines],
        "ratio": _ratio(items, found.widths),
    }


def _lines(found: Comparison, key: str) -> Iterator[tuple[int, Any, Any]]:
    overlay = found.overlay(key)
    for run, history in enumerate(found.histories):
        if history.label in overlay:
            x, y = (np.array(column, np.float64) for column in zip(*overlay[history.label], strict=True))
            yield run, *thin(x, y, max_points=_MOST_POINTS)


def _ratio(items: Sequence[MetricVerdict], widths: Sequence[float]) -> dict[str, Any]:
    """Per run, blocks as [x, ratio, low, high]; logarithmic where they span decades."""
    found = [ratios(item.trajectory, width) for item, width in zip(items, widths, strict=True)]
    values = np.array([number for line in found for each in line for number in (each.value, each.low, each.high)])
    return {
        "lines": [
            {"run": run, "blocks": [[each.at, each.value, each.low, each.high] for each in line]}
            for run, line in enumerate(found, start=1)
        ],
        "log": wants_log(values) if len(values) else False,
        "of": "distances" if ", distance" in items[0].label else "values",
        "missing": "no ratio: the baseline is 0"
        if any(item.level for item in items)
        else "too few common steps for a ratio",
    }
