"""Values of a long run as they were measured, for a file that the browser writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logprobe.app.dashboard.charts.packing import packed
from logprobe.app.dashboard.charts.panels import Panel
from logprobe.app.dashboard.data.series import RunSeries


def columns_of(runs: Sequence[RunSeries], panels: Sequence[Panel], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """All lines between the steps `wanted["from"]` and `wanted["to"]` (null: from or to the end), none thinned.

    → `at`, which says what was asked for, and per run its steps, tokens (cumulative), time (seconds) and `lines` by metric.
    """
    metrics = [{line.metric for panel in panels for line in panel.lines if line.run == at} for at in range(len(runs))]
    return {
        "at": wanted["at"],
        "runs": [_columns(run, sorted(keys), wanted) for run, keys in zip(runs, metrics, strict=True)],
    }


def _columns(run: RunSeries, metrics: Sequence[str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    low = -np.inf if wanted["from"] is None else wanted["from"]
    high = np.inf if wanted["to"] is None else wanted["to"]
    shown = (run.steps >= low) & (run.steps <= high)
    return {
        "name": run.run,
        "steps": packed(run.steps[shown].astype(np.float64)),
        "tokens": packed(run.trained[shown]),
        "time": packed(run.elapsed[shown]),
        "lines": {metric: packed(run.column(metric)[shown]) for metric in metrics if run.measured(metric)},
    }
