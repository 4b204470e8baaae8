"""Reader of completed steps for thresholds, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

STEPS_PER_BATCH: Final = 256


class Step(NamedTuple):
    """One step of a run: time of its newest record, and its metrics."""

    step: int
    at: datetime
    values: Mapping[str, float]


def next_steps(
    source: Source, after: Mapping[str, int | None], metrics: Collection[str], *, quiet_since: datetime
) -> dict[str, list[Step]]:
    """Return the next steps of each run, ascending, at most `STEPS_PER_BATCH` of each.

    Args:
        source: source of the metrics.
        after: newest evaluated step of each run, or None.
        metrics: catalog keys of the metrics.
        quiet_since: time after which a computed step may still receive data. Such a step, any later step, and a step
            that awaits the engine's records are deferred.
    """
    found: dict[str, list[Step]] = {run: [] for run in after}
    asked = {"runs": list(after), "after": list(after.values()), "metrics": sorted(metrics), "count": STEPS_PER_BATCH}
    for row in queries.alert_steps(source, **asked, quiet_since=quiet_since.isoformat()).to_pylist():
        values = {each["metric"]: each["value"] for each in row["values"] or ()}
        found[row["run"]].append(Step(row["step"], row["time"], values))
    return found
