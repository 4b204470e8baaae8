"""Read the steps of runs that thresholds look at, each once it is complete and in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

STEPS_PER_BATCH: Final = 256


class Step(NamedTuple):
    """One step of a run: when its newest record was made, and the metrics that it has."""

    step: int
    at: datetime
    values: Mapping[str, float]


def next_steps(
    source: Source,
    after: Mapping[str, int | None],
    metrics: Mapping[str, Collection[str]],
    *,
    quiet_since: datetime,
) -> dict[str, list[Step]]:
    """Return the next steps of each run, ascending, at most `STEPS_PER_BATCH` of each.

    Args:
        source: where they are read from.
        after: newest step of each run that was looked at, or None.
        metrics: keys to read, by run.
        quiet_since: a step that was computed later may still receive data, and those after it wait with it; so does one
            that waits for the engine's records.
    """
    found: dict[str, list[Step]] = {run: [] for run in after}
    rows = queries.alert_steps(
        source,
        runs=list(after),
        after=list(after.values()),
        quiet_since=quiet_since.isoformat(),
        count=STEPS_PER_BATCH,
    ).to_pylist()
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        spans[row["run"]] = (spans.get(row["run"], (row["step"], 0))[0], row["step"])
    values = _values(source, {run: span for run, span in spans.items() if metrics.get(run)}, metrics)
    for row in rows:
        found[row["run"]].append(Step(row["step"], row["time"], values.get((row["run"], row["step"]), {})))
    return found


def _values(
    source: Source, spans: Mapping[str, tuple[int, int]], metrics: Mapping[str, Collection[str]]
) -> dict[tuple[str, int], dict[str, float]]:
    if not spans:
        return {}
    by_step: dict[tuple[str, int], dict[str, float]] = {}
    wanted = sorted({key for run in spans for key in metrics[run]})
    for row in queries.alert_values(
        source,
        runs=list(spans),
        first=[first for first, _ in spans.values()],
        last=[last for _, last in spans.values()],
        metrics=wanted,
    ).to_pylist():
        if row["metric"] in metrics[row["run"]]:
            by_step.setdefault((row["run"], row["step"]), {})[row["metric"]] = row["value"]
    return by_step
