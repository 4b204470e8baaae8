"""What the service has concluded about a run: its diagnosis, and its own normal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from logprobe.alerts.controller.standing import Standing
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.monitor import queries
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.growth_kept import growth_of
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.result import Growth
from logprobe.monitor.reader import Reader


@dataclass(frozen=True)
class LatestDiagnosis:
    """The newest diagnosis of a run.

    Attributes:
        document: as `Diagnosis.document` gives it.
        step: last one that it has seen.
        at: when it was made.
        growth: K3 over time up to then; its baseline is the run's own normal.
        standing: of the run's correction.
    """

    document: DiagnosisDocument
    step: int
    at: datetime
    growth: Growth
    standing: Standing = field(default_factory=Standing)


def read_latest_diagnosis(reader: Reader, series: RunSeries) -> LatestDiagnosis | None:
    """The newest diagnosis; None: there is none yet."""
    rows = queries.diagnosis_latest(reader, run=series.run).to_pylist()
    if not rows:
        return None
    (row,) = rows
    document: DiagnosisDocument = json.loads(row["document"])
    return LatestDiagnosis(
        document=document,
        step=row["step"],
        at=row["diagnosed_at"],
        growth=Growth.of(document["growth"]) if "growth" in document else _judged(reader, series, row["step"]),
        standing=Standing.read(reader, series.run),
    )


def _judged(reader: Reader, series: RunSeries, last: int) -> Growth:
    """Growth up to a step, for a diagnosis of an earlier version, which did not keep it."""
    seen = series.steps <= last
    return growth_of(reader, series.run, series.steps[seen].tolist(), series.column(K3)[seen].tolist())
