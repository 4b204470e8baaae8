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
    with store.transaction() as cursor:
        for step, metrics in values.items():
            moment = at(step)
            cursor.execute(
                "INSERT OR REPLACE INTO step_summaries VALUES (?, ?, 100, 4, ?, ?, nextval('revision'))",
                [run, step, moment, moment],
            )
            for metric, value in metrics.items():
                cursor.execute("INSERT INTO step_metrics VALUES (?, ?, ?, ?)", [run, step, metric, value])
        cursor.execute(
            "INSERT OR REPLACE INTO segments VALUES (?, ?, 'w', 1, 'training', 1, 100, 1, NULL, ?)",
            [f"{run}/w/{max(values)}", run, at(max(values))],
        )


def series(values: Iterable[float | None], metric: str = K3, first: int = 0) -> dict[int, dict[str, float | None]]:
    """One metric, step after step."""
    return {first + index: {metric: value} for index, value in enumerate(values)}


def rows(table: pa.Table) -> list[dict]:
    """Rows without their times of writing."""
    return table.to_pylist()
