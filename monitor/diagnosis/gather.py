"""From a store to `Evidence`: everything by stored queries, and one bounded sample of raw tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence import Evidence, Joins, Series, Slice, Slices, WeightRecord, Weights
from logprobe.monitor.diagnosis.onset import Growth, judge
from logprobe.monitor.diagnosis.setup import from_documents
from logprobe.monitor.diagnosis.tokens import Tokens, from_table
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.metrics.lag import WeightRecord as Label
from logprobe.monitor.slices import Source, Steps

SAMPLE_TOKENS: Final = 200_000
_READ_TOKENS: Final = 2_000_000  # raw tokens of the sampled steps, which are decoded to find the sample
_FEWEST_STEPS: Final = 8


def gather(source: Source, run: str, *, steps: Steps = (None, None)) -> Evidence:
    """Everything known of a run in a window of steps.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: first and last, both included; None: no bound.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    window: dict[str, Any] = {"run": run, "first": steps[0], "last": steps[1]}
    series = Series(_columns(source.read("diagnosis_steps", **window)))
    weights = source.read("diagnosis_weights", run=run).to_pylist()
    configs = source.read("diagnosis_configs", run=run).to_pylist()
    recorded = _sample(source, run, series, _versions(weights))
    return Evidence(
        run=run,
        series=series,
        slices=Slices(tuple(Slice(**row) for row in source.read("diagnosis_slices", **window).to_pylist())),
        joins=_joins(source.read("diagnosis_joins", **window).to_pylist()),
        setup=from_documents(configs),
        weights=Weights(tuple(_weight_record(row) for row in weights)),
        growth=_growth(source, run, series, first=steps[0], configs=configs),
        tokens=None if recorded is None else recorded.valid,
        recorded=recorded,
        update=_update(source, **window),
    )


def _columns(table: pa.Table) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def _growth(source: Source, run: str, series: Series, *, first: int | None, configs: list[dict[str, Any]]) -> Growth:
    """The course of K3 up to the end of the window: a run's normal is that of its beginning, wherever the window begins."""
    if not len(series):
        return judge([], [])
    if first is not None:
        series = Series(_columns(source.read("diagnosis_steps", run=run, first=None, last=int(series.step[-1]))))
    engines = sum(row["kind"] == "engine_config" and row["sequences"] > 0 for row in configs)
    changes = source.read("diagnosis_config_changes", run=run)["step"].to_pylist() if engines > 1 else []
    k3 = [value if math.isfinite(value) else None for value in series.k3.tolist()]
    return judge(series.step.tolist(), k3, config_changes=changes)


def _update(source: Source, **window: Any) -> dict[int, float]:
    rows = source.read("diagnosis_update", **window).to_pylist()
    return {row["step"]: row["k3"] for row in rows}


def _joins(rows: list[dict[str, Any]]) -> Joins:
    rows = [row for row in rows if not row["pending"]]

    def count(column: str, **where: Any) -> int:
        return sum(row[column] for row in rows if all(row[key] == value for key, value in where.items()))

    return Joins(
        sequences=count("sequences"),
        tokens=count("tokens"),
        missing=count("sequences", rollout_source="missing"),
        missing_tokens=count("tokens", rollout_source="missing"),
        unaligned=count("sequences", rollout_source="unaligned"),
        received=count("sequences", rollout_source="received"),
        seen_by_engine=count("seen_by_engine"),
        other_ids=count("sequences", token_match=False),
        other_lengths=count("sequences", length_match=False),
        received_differs=count("received_differs"),
        reduced=count("reduced"),
        versioned=count("versioned"),
    )


def _weight_record(row: Mapping[str, Any]) -> WeightRecord:
    return WeightRecord(**{name: value for name, value in row.items() if name != "time"})


def _versions(rows: list[dict[str, Any]]) -> Versions:
    labels = (Label(r["version"], r["step"], r["time"], r["source"]) for r in rows if r["version"] is not None)
    return Versions.from_records(labels)


def _sample(source: Source, run: str, series: Series, versions: Versions) -> Tokens | None:
    """At most about `SAMPLE_TOKENS` tokens, spread evenly over the window's steps; None: no raw tokens are kept."""
    steps, parts = _plan(series)
    if not steps:
        return None
    table = source.read("diagnosis_tokens", run=run, steps=steps, parts=parts)
    return from_table(table, versions) if table.num_rows else None


def _plan(series: Series) -> tuple[list[int], int]:
    """Steps to sample, and into how many parts their sequences are cut, of which one is taken."""
    tokens = series["n_expected"]
    if not len(series) or not tokens.sum():
        return [], 1
    affordable = max(_FEWEST_STEPS, int(_READ_TOKENS / max(tokens.mean(), 1)))
    chosen = np.unique(np.linspace(0, len(series) - 1, min(affordable, len(series))).round().astype(np.int64))
    parts = max(1, round(float(tokens[chosen].sum()) / SAMPLE_TOKENS))
    return series.step[chosen].tolist(), parts
