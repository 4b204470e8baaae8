"""The section ``loggers`` of a home's settings: where its metrics are pushed to while it is served.

loggers:
  - to: tensorboard
    dir: /logs/tensorboard
  - to: wandb
    project: my-project
    runs: "ablation-*"
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.loggers.settings import Logger
from logprobe.monitor.loggers.targets import require

_KIND: Final = TypeAdapter(tuple[Logger, ...])


def load(home: Home) -> tuple[Logger, ...]:
    """The loggers of a home. Raises `ConfigurationError` that names file and line, and `MissingExtraError` when a package is not installed."""
    loggers = settings_file.read(home.path, "loggers", _KIND, ())
    for logger in loggers:
        require(logger.to)
    return loggers


def checked(where: str, document: Any) -> tuple[Logger, ...]:
    """The loggers that plain data declares. Raises `ConfigurationError` that names what is wrong."""
    return settings_file.checked(document, "loggers", _KIND, where)
