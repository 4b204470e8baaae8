"""What the service has concluded about a run: its diagnosis, its own normal, and the alerts that fire."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from logprobe.app.dashboard.data.series import RunSeries
from logprobe.monitor.diagnosis.onset import Follower, Growth
from logprobe.monitor.reader import Reader

K3: Final = "backend.k3_kl"


@dataclass(frozen=True)
class Judgement:
    """The newest diagnosis of a run.

    Attributes:
        document: as `Diagnosis.document` gives it.
        step: last one that it has seen.
        at: when it was made.
        growth: the course of K3 up to then; its baseline is the run's own normal.
        firing: alerts that fire, the worst first, by rule.
    """

    document: Mapping[str, Any]
    step: int
    at: datetime
    growth: Growth
    firing: tuple[str, ...] = ()


def read_judgement(
    reader: Reader, series: RunSeries, *, reconfigured: bool, follower: Follower | None = None
) -> Judgement | None:
    """The newest diagnosis; None: there is none yet. `reconfigured`: whether a configuration changed, and the normal with it.

    `follower`: of this run, to judge only what is new.
    """
    rows = reader.read("diagnosis_latest", run=series.run).to_pylist()
    if not rows:
        return None
    (row,) = rows
    changes = reader.read("diagnosis_config_changes", run=series.run)["step"].to_pylist() if reconfigured else []
    alerts = reader.read("alert_list", run=series.run).to_pylist()
    return Judgement(
        document=json.loads(row["document"]),
        step=row["step"],
        at=row["diagnosed_at"],
        growth=growth_of(series, changes, follower),
        firing=tuple(alert["rule"] for alert in alerts if alert["phase"] in {"firing", "recovering"}),
    )


def growth_of(series: RunSeries, config_changes: list[int], follower: Follower | None = None) -> Growth:
    """The course of K3 of the pair `backend`, by the rule that the diagnosis uses."""
    values = [value if math.isfinite(value) else None for value in series.column(K3).tolist()]
    return (follower or Follower()).judge(series.steps.tolist(), values, config_changes=config_changes)
