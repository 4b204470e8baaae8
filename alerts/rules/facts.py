"""Reads what the rules look at, from a running service, a store or a file: the facts of a run's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa

from logprobe.alerts.rules.conditions import metrics_of
from logprobe.alerts.rules.observation import StepFacts
from logprobe.alerts.rules.rule import Exact, Rule
from logprobe.monitor.analysis import identity, slices
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.metrics.catalog import KEYS

STEPS_PER_BATCH: Final = 256
_UNKNOWN: Final = "unknown"  # the slice of sequences of which it is not known where they belong

Values = dict[tuple[str, str | None], float | None]


def steps_after(
    source: Source, run: str, rules: Sequence[Rule], after: int | None, *, quiet_since: datetime
) -> list[StepFacts]:
    """Facts of the next steps of a run, ascending, at most `STEPS_PER_BATCH`.

    Args:
        source: where from.
        run: which run.
        rules: what is going to be asked.
        after: newest step that was looked at; None: none.
        quiet_since: a step that was computed later may still receive data, and those after it wait with it; so does one that waits
            for the engine's records.
    """
    rows = source.read(
        "alert_steps", run=run, after=after, quiet_since=quiet_since.isoformat(), count=STEPS_PER_BATCH
    ).to_pylist()
    if not rows:
        return []
    window = (rows[0]["step"], rows[-1]["step"])
    values = _values(source, run, rules, window)
    parts: dict[int, dict[str, tuple[str, ...]]] = {row["step"]: {} for row in rows}
    for dimension, metrics in _sliced(rules).items():
        _add_slices(
            slices.by(source, run, dimension, steps=window, metrics=metrics, per_step=True), dimension, values, parts
        )
    same = _identities(source, run, rules, window)
    return [
        StepFacts(row["step"], row["time"], values.get(row["step"], {}), parts[row["step"]], same.get(row["step"]))
        for row in rows
    ]


def _values(source: Source, run: str, rules: Sequence[Rule], window: tuple[int, int]) -> dict[int, Values]:
    metrics = sorted({key for rule in rules if rule.slice is None for key in metrics_of(rule)})
    found: dict[int, Values] = {}
    if metrics:
        rows = source.read("alert_values", run=run, first=window[0], last=window[1], metrics=metrics)
        for step, metric, value in zip(*(rows[name].to_pylist() for name in ("step", "metric", "value")), strict=True):
            found.setdefault(step, {})[metric, None] = value
    return found


def _sliced(rules: Sequence[Rule]) -> Mapping[str, list[str]]:
    """Metrics that are looked at by slice, by dimension."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        if rule.slice is not None:
            found.setdefault(rule.slice.partition("=")[0], set()).update(metrics_of(rule))
    return {dimension: sorted(metrics) for dimension, metrics in found.items()}


def _add_slices(
    table: pa.Table, dimension: str, values: dict[int, Values], parts: dict[int, dict[str, tuple[str, ...]]]
) -> None:
    for row in table.to_pylist():
        name = row["slice"] if row["slice"] is not None else _UNKNOWN
        step = row["step"]
        if step in parts:
            parts[step][dimension] = (*parts[step].get(dimension, ()), name)
            of_slice: Values = {(key, f"{dimension}={name}"): value for key, value in row.items() if key in KEYS}
            values.setdefault(step, {}).update(of_slice)


def _identities(
    source: Source, run: str, rules: Sequence[Rule], window: tuple[int, int]
) -> dict[int, identity.StepFacts]:
    if not any(isinstance(rule.when, Exact) for rule in rules):
        return {}
    rows = source.read("slice_identity", run=run, first=window[0], last=window[1])
    return {facts.step: facts for facts in identity.facts_of(rows)}
