"""What a logger has to be able to do, and opening the one that settings name."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from logprobe.collectors.errors import MissingExtraError
from logprobe.monitor.home import Home
from logprobe.monitor.loggers.settings import Logger, TensorBoardSettings, WandbSettings
from logprobe.monitor.loggers.standing import Standing


class Target(Protocol):
    """One run somewhere else. It knows itself how far it got, so that nothing has to be remembered here."""

    @property
    def last(self) -> int | None:
        """The newest step that is there; None: there is none."""

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """Logs one step; steps only go up. `time`: of the step, UTC."""

    def stand(self, standing: Standing) -> None:
        """Says how the run stands, where the target has a place for it; called when that has changed, and when the
        target was opened."""

    def flush(self) -> None:
        """Returns when what was logged survives the end of this process, as far as the target offers that."""

    def close(self) -> None:
        """Ends it."""


def require(name: str) -> None:
    """Raises `MissingExtraError` when the package that writes to `name` is not installed."""
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(f"pushing to {name} needs the package {name!r}; pip install 'logprobe[{name}]'")


def open_target(settings: Logger, run: str, home: Home) -> Target:
    """Resumes where an earlier one stopped. Raises `MissingExtraError`, and whatever the target raises when it cannot
    be reached."""
    require(settings.to)
    if isinstance(settings, TensorBoardSettings):
        from logprobe.monitor.loggers.tensorboard_target import TensorBoardTarget  # noqa: PLC0415 - an extra

        return TensorBoardTarget(run, settings)
    if isinstance(settings, WandbSettings):
        from logprobe.monitor.loggers.wandb_target import WandbTarget  # noqa: PLC0415 - an extra

        return WandbTarget(run, settings, home.path / "pushed" / "wandb")
    from logprobe.monitor.loggers.trackio_target import TrackioTarget  # noqa: PLC0415 - an extra

    return TrackioTarget(run, settings)
