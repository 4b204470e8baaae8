"""trackio: a run in a local project. What it holds back in memory is lost with the process, and pushed again by the
next."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import datetime

import trackio

from logprobe.monitor.loggers.settings import TrackioSettings
from logprobe.monitor.loggers.standing import Standing


class TrackioTarget:
    """One run of trackio."""

    def __init__(self, run: str, settings: TrackioSettings) -> None:
        """Starts or resumes it. Raises what trackio raises."""
        self.last: int | None = trackio.SQLiteStorage.get_max_step_for_run(settings.project, run)
        self._name = run
        self._severity: str | None = self._known_severity(settings.project)
        with redirect_stdout(sys.stderr):  # it greets on stdout, which is for results
            self._run = trackio.init(
                project=settings.project,
                name=run,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """One row; trackio puts the time at which it comes."""
        del time
        self._run.log(dict(values), step=step)
        self.last = step

    def stand(self, standing: Standing) -> None:
        """An alert when it gets worse, with cause and link; trackio has no summary of a run."""
        if standing.alerts_after(self._severity):
            level = trackio.AlertLevel.ERROR if standing.severity == "critical" else trackio.AlertLevel.WARN
            title = f"{self._name}: {standing.severity}{f', {standing.cause}' if standing.cause else ''}"
            self._run.alert(title, standing.text, level=level, step=standing.step)
        self._severity = standing.severity

    def _known_severity(self, project: str) -> str | None:
        """Of the newest alert that an earlier process left; None: there is none."""
        alerts = trackio.SQLiteStorage.get_alerts(project, run_name=self._name)
        newest = max(alerts, key=lambda alert: str(alert["timestamp"]), default=None)
        return None if newest is None else "critical" if newest["level"] == "error" else "warning"

    def flush(self) -> None:
        """Trackio writes by itself every half second or so."""

    def close(self) -> None:
        """Waits until everything is written."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
