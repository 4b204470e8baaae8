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

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.loggers.settings import Logger
from logprobe.monitor.loggers.targets import require

FILE: Final = "loggers.yaml"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    loggers: tuple[Logger, ...] = ()


def load(home: Home) -> tuple[Logger, ...]:
    """The loggers of a home; none without a file.

    Raises `ConfigurationError` that says what is wrong with the file, and `MissingExtraError` when a package is not installed.
    """
    path = home.path / FILE
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    loggers = checked(str(path), document or {})
    for logger in loggers:
        require(logger.to)
    return loggers


def checked(where: str, document: Any) -> tuple[Logger, ...]:
    """The loggers that plain data declares. Raises `ConfigurationError` that names the first field that is wrong."""
    try:
        return _Document.model_validate(document).loggers
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where}: {field or 'the file'}: {first['msg']} (docs/exporting.md)") from error
