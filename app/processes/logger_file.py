"""``loggers.yaml`` of a home: where its metrics are pushed to while it is served.

loggers:
  - to: tensorboard
    dir: /logs/tensorboard
  - to: wandb
    project: my-project
    runs: "ablation-*"
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.loggers.settings import Logger
from logprobe.monitor.loggers.targets import require

FILE: Final = "loggers.yaml"
_DOCS: Final = "docs/exporting.md"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    loggers: tuple[Logger, ...] = ()


def load(home: Home) -> tuple[Logger, ...]:
    """The loggers of a home; none without a file.

    Raises `ConfigurationError` that says what is wrong with the file, and `MissingExtraError` when a package is not installed.
    """
    loggers = settings_file.read(home.path / FILE, _Document, _DOCS).loggers
    for logger in loggers:
        require(logger.to)
    return loggers


def checked(where: str, document: Any) -> tuple[Logger, ...]:
    """The loggers that plain data declares. Raises `ConfigurationError` that names the first field that is wrong."""
    return settings_file.checked(where, document, _Document, _DOCS).loggers
