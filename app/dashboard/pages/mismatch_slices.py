"""The Mismatch page's slices: parts of the sequences in view, which of them the mismatch comes from. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.app.dashboard.charts.tiles import spark
from logprobe.app.dashboard.data.mismatch import MOST_TAGS, Sliced
from logprobe.app.dashboard.data.series import Floats
from logprobe.app.dashboard.data.visible import Visible
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.slices import DIMENSIONS, TAG
from logprobe.monitor.metrics.definition import PairMetric, StepMetric

USUAL_COLUMNS: Final = ("k3_kl", "logprob_abs_diff_mean", "kl", "ess", "calibration_z", "coverage", "reward")
MOST_SLICES: Final = 200
_SPARK_STEPS: Final = 60
_NAMES: Final = {
    "weight_lag": "weight lag",
    "weight_versions": "weight versions",
    "cached_prefix": "cached prefix",
    "finish_reason": "finish reason",
    "rank": "trainer rank",
}
_HOW: Final = {
    "weight_lag": "record weight_version with training records, and spans with rollouts",
    "weight_versions": "record spans with rollouts",
    "replica": "record rollouts with the name of their replica",
    "adapter": "record rollouts with the vLLM plugin, which knows their LoRA adapter",
    "environment": "record a tag `environment` with training records",
    "dataset": "record a tag `dataset` with training records",
    "cached_prefix": "record rollouts with cached_prefix_tokens",
    "finish_reason": "record rollouts with finish_reason",
    "rank": "record training with the rank of the trainer",
}

Declared = PairMetric | StepMetric


def columns_of(asked: str | None, selected: Declared, catalog: Sequence[Declared]) -> list[Declared]:
    """The metrics shown: those that the address names, else the usual ones; the metric of the open chart always among
    them."""
    by_key = {metric.key: metric for metric in catalog}
    wanted = [name for name in (asked or "").split(",") if name in by_key] or list(USUAL_COLUMNS)
    return [by_key[name] for name in dict.fromkeys([*wanted, selected.key])]


def key_of(metric: Declared, pair: str) -> str | None:
    """The stored key of a metric for a pair; None where it is not defined for it."""
    if isinstance(metric, StepMetric):
        return metric.key
    return f"{pair}.{metric.key}" if pair in metric.pairs else None


def slices_of(
    sliced: Sliced, *, pair: str, columns: Sequence[Declared], catalog: Sequence[Declared], seen: Visible, theme: Theme, why_absent: str
) -> dict[str, object]:  # fmt: skip
    """Data of `browser/slices.js`. Names of slices are foreign text. `why_absent`: what to record for the pair; "": it
    is there."""
    rows = sliced.table.slice(0, MOST_SLICES).to_pylist()
    gaps = sliced.gaps.slice(0, MOST_SLICES).to_pylist()
    trends = _trends(sliced.trend)
    named = any(row["slice"] is not None for row in rows)
    return {
        "pair": pair,
        "color": theme.color(pair),
        "dimension": sliced.dimension,
        "dimensions": _choices(sliced.tags[:MOST_TAGS]),
        "columns": [_head(metric) for metric in columns],
        "choices": [{"key": metric.key, "label": metric.label} for metric in catalog if key_of(metric, pair)],
        "rows": [_row(row, gap, columns, pair, trends) for row, gap in zip(rows, gaps, strict=True)],
        "note": _note(sliced, seen),
        "missing": " · ".join(filter(None, [why_absent, "" if named else _unrecorded(sliced.dimension)])),
    }


def _unrecorded(dimension: str) -> str:
    return f"not recorded: {_HOW.get(dimension, 'no sequence has this tag')}"


def _choices(tags: Sequence[str]) -> list[dict[str, str]]:
    own = [name for name in tags if name not in DIMENSIONS]
    return [
        *({"key": name, "label": _NAMES.get(name, name)} for name in DIMENSIONS),
        *({"key": f"{TAG}{name}", "label": f"tag {name}"} for name in own),
    ]


def _head(metric: Declared) -> dict[str, str]:
    unit = f" ({metric.unit})" if metric.unit not in {"", "fraction", "1e-4"} else ""
    return {"key": metric.key, "label": metric.label, "help": f"{metric.words}\n{metric.formula}{unit}"}


def _note(sliced: Sliced, seen: Visible) -> str:
    count = f"{sliced.sequences:,} sequences of {sliced.steps.words}"
    fewer = (sliced.steps.first, sliced.steps.last) != (seen.first, seen.last)
    hidden = sliced.table.num_rows - MOST_SLICES
    parts = [
        f"{count}: the newest in view that fit one query; zoom in to choose others" if fewer else count,
        f"{hidden:,} more slices are not shown" if hidden > 0 else "",
        f"more than {MOST_TAGS} tags: the most frequent can be chosen" if len(sliced.tags) > MOST_TAGS else "",
    ]
    return " · ".join(filter(None, parts))


def _row(
    row: Mapping[str, Any], gap: Mapping[str, Any], columns: Sequence[Declared], pair: str, trends: Mapping[str | None, Floats]
) -> dict[str, object]:  # fmt: skip
    trend = trends.get(row["slice"])
    return {
        "slice": "unknown" if row["slice"] is None else row["slice"],
        "unknown": row["slice"] is None,
        "worse": _stands_out(gap),
        "sequences": row["sequences"],
        "tokens": row["tokens"],
        "share": _cell(gap["k3_share"], percent=True),
        "cells": [_cell(row.get(key_of(metric, pair) or "")) for metric in columns],
        "spark": [] if trend is None else spark(trend[-_SPARK_STEPS:], log=_positive(trend)),
    }


def _stands_out(gap: Mapping[str, Any]) -> str:
    """The mark of a slice worse than the rest; "" for any other."""
    return (
        f"K3 {number(gap['times_rest'])}× that of all others, {number(gap['z'])} standard errors apart"
        if gap["worse"]
        else ""
    )


def _cell(value: float | None, *, percent: bool = False) -> dict[str, object]:
    unknown = value is None or not math.isfinite(value)
    return {
        "value": None if unknown else value,
        "text": "–" if unknown else f"{value:.1%}" if percent else number(value),
    }


def _trends(trend: pa.Table) -> dict[str | None, Floats]:
    """K3 over the steps, slice by slice; NaN where a step has none."""
    values: dict[str | None, list[float]] = {}
    for name, value in zip(trend["slice"].to_pylist(), trend.columns[-1].to_pylist(), strict=True):
        values.setdefault(name, []).append(math.nan if value is None else value)
    return {name: np.array(column) for name, column in values.items()}


def _positive(values: Floats) -> bool:
    finite = values[np.isfinite(values)]
    return bool(len(finite) and (finite > 0).all())
