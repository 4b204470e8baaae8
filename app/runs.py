"""The runs of a home, each judged whether it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from logprobe.alerts.liveness import Liveness, Writer, judge
from logprobe.monitor.judgement import Judgement


@dataclass(frozen=True)
class Run:
    """One line of the run picker."""

    name: str
    liveness: Liveness
    steps: int
    last_step: int | None
    tokens: int
    sequences: int
    revision: int
    last_record: datetime | None
    news: str | None = None  # becomes another when the run is diagnosed, an alert moves, its correction is acted upon
    judgement: Judgement = field(default_factory=Judgement)


def runs_of(rows: pa.Table, now: datetime) -> tuple[Run, ...]:
    """Rows of `app_runs`, in their order, each judged at time `now`."""
    return tuple(_run(row, now) for row in rows.to_pylist())


def _run(row: Mapping[str, Any], now: datetime) -> Run:
    writers = [Writer(**writer) for writer in row["writers"]]
    liveness = judge(
        now=now, last_record=row["last_record_at"], median_step_seconds=row["step_seconds"], writers=writers
    )
    # A service of an earlier version says nothing of a judgement.
    ended_after = row["steps"] if liveness.state.over else None
    judgement = Judgement.of(row.get("judgement"), now, ended_after=ended_after)
    return Run(
        name=row["run"],
        liveness=liveness,
        steps=row["steps"],
        last_step=row["last_step"],
        tokens=row["tokens"] or 0,
        sequences=row["sequences"] or 0,
        revision=row["revision"],
        last_record=row["last_record_at"],
        news=row["news"],
        judgement=judgement,
    )
