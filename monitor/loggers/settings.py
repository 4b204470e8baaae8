"""Where metrics are pushed to."""

from __future__ import annotations

from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from logprobe.monitor.settings_file import Settings

_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]


class _Logger(Settings):
    runs: str = "*"  # a pattern of run names, as of files

    def wants(self, run: str) -> bool:
        """Whether the run is to be pushed."""
        return fnmatchcase(run, self.runs)


class TensorBoardSettings(_Logger):
    """Event files in a folder per run below `dir`."""

    to: Literal["tensorboard"]
    dir: Path


class WandbSettings(_Logger):
    """A separate run in a project of Weights & Biases. `offline`: files below `dir`, for ``wandb sync``."""

    to: Literal["wandb"]
    project: _Name
    entity: str | None = None
    offline: bool = False
    dir: Path | None = None  # default: below the home


class TrackioSettings(_Logger):
    """A run in a local project of trackio, where ``TRACKIO_DIR`` says or trackio has it by itself."""

    to: Literal["trackio"]
    project: _Name


def wandb_id(run: str) -> str:
    """Id of a run in W&B: a new process continues with the same one."""
    return f"logprobe-{sha256(run.encode()).hexdigest()[:16]}"


Logger: TypeAlias = Annotated[TensorBoardSettings | WandbSettings | TrackioSettings, Field(discriminator="to")]
