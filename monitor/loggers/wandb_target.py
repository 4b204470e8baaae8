"""Weights & Biases: its own run beside the trainer's, because a run takes steps in one order from one place only.

Its id follows from the run's name, so that a new process continues with the same one. How far it got say the files that
W&B leaves below `dir`, in either mode, and online the server too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import wandb

from logprobe.monitor.importers import wandb_files
from logprobe.monitor.loggers.settings import WandbSettings, wandb_id
from logprobe.monitor.loggers.standing import PREFIX, Standing

# Nothing of the machine, its repository or its output: metrics are all that was asked for.
_SETTINGS: Final = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
}


class WandbTarget:
    """One run of W&B."""

    def __init__(self, run: str, settings: WandbSettings, folder: Path) -> None:
        """Starts or resumes it; `folder`: where its files go unless the settings say. Raises `wandb.Error`,
        `OSError`."""
        directory = (settings.dir or folder).expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        name = wandb_id(run)
        self._name = run
        self._severity: str | None = None
        steps = [step for path in directory.glob(f"wandb/*run-*/run-{name}.wandb") for step in wandb_files.steps(path)]
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            id=name,
            name=f"{run} (logprobe)",
            dir=str(directory),
            mode="offline" if settings.offline else "online",
            resume=None if settings.offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(**_SETTINGS),
        )
        if not settings.offline and self._run.step:
            steps.append(self._run.step - 1)
        self.last = max(steps, default=None)

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """One row of the history; `commit` sends it without waiting for the next step."""
        stamp = {} if time is None else {"_timestamp": time.timestamp()}
        self._run.log({**values, **stamp}, step=step, commit=True)
        self.last = step

    def stand(self, standing: Standing) -> None:
        """Summary and tag; an alert when it gets worse. Offline, a process that continues does not know what was said
        before."""
        run = self._run
        before = self._severity or run.summary.get(f"{PREFIX}severity")
        run.summary.update(standing.summary())
        run.tags = (*(tag for tag in run.tags or () if not tag.startswith("logprobe:")), standing.tag)
        if standing.alerts_after(before):
            level = "ERROR" if standing.severity == "critical" else "WARN"
            run.alert(title=f"{self._name}: {standing.severity}", text=standing.text, level=level)
        self._severity = standing.severity

    def flush(self) -> None:
        """W&B writes in a separate process, which continues when this one ends."""

    def close(self) -> None:
        """Waits until everything is written, online also sent."""
        self._run.finish()
