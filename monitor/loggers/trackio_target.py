"""trackio: a run in a local project. What it holds back in memory is lost with the process, and pushed again by the next."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import datetime

import trackio

from logprobe.monitor.loggers.settings import TrackioSettings


class TrackioTarget:
    """One run of trackio."""

    def __init__(self, run: str, settings: TrackioSettings) -> None:
        """Starts or resumes it. Raises what trackio raises."""
        self.last: int | None = trackio.SQLiteStorage.get_max_step_for_run(settings.project, run)
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

    def flush(self) -> None:
        """Trackio writes by itself every half second or so."""

    def close(self) -> None:
        """Waits until everything is written."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
