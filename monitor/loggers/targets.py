"""Opens what settings name."""

from __future__ import annotations

import importlib.util

from logprobe.collectors.errors import MissingExtraError
from logprobe.monitor.home import Home
from logprobe.monitor.loggers.settings import Logger, TensorBoardSettings, WandbSettings
from logprobe.monitor.loggers.target import Target


def require(name: str) -> None:
    """Raises `MissingExtraError` when the package that writes to `name` is not installed."""
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(f"pushing to {name} needs the package {name!r}; pip install 'logprobe[{name}]'")


def open_target(settings: Logger, run: str, home: Home) -> Target:
    """Resumes where an earlier one stopped. Raises `MissingExtraError`, and whatever the target raises when it cannot be reached."""
    require(settings.to)
    if isinstance(settings, TensorBoardSettings):
        from logprobe.monitor.loggers.tensorboard_target import TensorBoardTarget  # noqa: PLC0415 - an extra

        return TensorBoardTarget(run, settings)
    if isinstance(settings, WandbSettings):
        from logprobe.monitor.loggers.wandb_target import WandbTarget  # noqa: PLC0415 - an extra

        return WandbTarget(run, settings, home.path / "pushed" / "wandb")
    from logprobe.monitor.loggers.trackio_target import TrackioTarget  # noqa: PLC0415 - an extra

    return TrackioTarget(run, settings)
