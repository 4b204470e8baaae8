"""Homes whose steps hold chosen metric values, for tests of what happens between the store and an alert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from logprobe.monitor.store.store import Store

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
K3 = "backend.k3_kl"


def at(step: int, seconds: float = 10.0) -> datetime:
    """When a step was recorded."""
    return START + timedelta(seconds=seconds * step)


def put(store: Store, run: str, values: Mapping[int, Mapping[str, float | None]]) -> None:
    """Steps as the step job leaves them."""
    rows = [(step, metric, value) for step, metrics in values.items() for metric, value in metrics.items()]
    with store.transaction() as cursor:
        cursor.execute(
            "DELETE FROM step_summaries WHERE run = ? AND list_contains(?::BIGINT[], step)", [run, list(values)]
        )
        cursor.execute(
            "INSERT INTO step_summaries (run, step, tokens, sequences, time, computed_at, revision)"
            " SELECT $run, step, 100, 4, time, time, nextval('revision')"
            " FROM (SELECT unnest($steps::BIGINT[]) AS step, unnest($times::TIMESTAMPTZ[]) AS time)",
            {"run": run, "steps": list(values), "times": [at(step) for step in values]},
        )
        steps, metrics, numbers = zip(*rows, strict=True) if rows else ((), (), ())
        cursor.execute(
            "INSERT INTO step_metrics"
            " SELECT $run, unnest($steps::BIGINT[]), unnest($metrics::VARCHAR[]), unnest($numbers::DOUBLE[])",
            {"run": run, "steps": list(steps), "metrics": list(metrics), "numbers": list(numbers)},
        )
        cursor.execute(
            "INSERT OR REPLACE INTO segments VALUES (?, ?, 'w', 1, 'training', 1, 100, 1, NULL, ?, NULL)",
            [f"{run}/w/{max(values)}", run, at(max(values))],
        )


def series(values: Iterable[float | None], metric: str = K3, first: int = 0) -> dict[int, dict[str, float | None]]:
    """One metric, step after step."""
    return {first + index: {metric: value} for index, value in enumerate(values)}


def rows(table: pa.Table) -> list[dict]:
    """Rows without their times of writing."""
    return table.to_pylist()
