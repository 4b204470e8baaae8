"""``probe.yaml`` of a home: engines that score a few of their own sequences again while the home is served.

probe:
  - url: http://localhost:8000   # of `vllm serve`
    every: 60                    # seconds; docs/proof.md lists all settings
"""

from __future__ import annotations

import os
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from logprobe.alerts.sending.channels.addresses import opener
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.engine import Engine
from logprobe.monitor.proof.live.settings import ProbeSettings

FILE: Final = "probe.yaml"
_DOCS: Final = "docs/proof.md"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    probe: tuple[ProbeSettings, ...] = ()


def load(home: Home) -> tuple[ProbeSettings, ...]:
    """The engines of a home; none without a file. Raises `ConfigurationError` that says what is wrong with it."""
    return settings_file.read(home.path / FILE, _Document, _DOCS).probe


def checked(where: str, document: Any) -> tuple[ProbeSettings, ...]:
    """The engines that plain data declares. Raises `ConfigurationError` that names the first field that is wrong."""
    return settings_file.checked(where, document, _Document, _DOCS).probe


def engine(settings: ProbeSettings) -> Engine:
    """The endpoint. Raises `ConfigurationError` when its key is not set."""
    key = None if settings.key_env is None else os.environ.get(settings.key_env)
    if settings.key_env is not None and not key:
        raise ConfigurationError(f"key_env: the environment variable {settings.key_env} is not set")
    return Engine(settings.url, opener(), key=key)
