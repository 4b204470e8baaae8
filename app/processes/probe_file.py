"""The section ``probe`` of a home's settings: engines that score a few of their own sequences again while the home is served.

probe:
  - url: http://localhost:8000   # of `vllm serve`
    every: 60                    # seconds; docs/proof.md lists all settings
"""

from __future__ import annotations

import os
from typing import Any, Final

from pydantic import TypeAdapter

from logprobe.alerts.sending.channels.addresses import opener
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.engine import Engine
from logprobe.monitor.proof.live.settings import ProbeSettings

SECTION: Final = "probe"
_KIND: Final = TypeAdapter(tuple[ProbeSettings, ...])


def load(home: Home) -> tuple[ProbeSettings, ...]:
    """The engines of a home. Raises `ConfigurationError` that names file and line."""
    return settings_file.read(home.path, SECTION, _KIND, ())


def checked(where: str, document: Any) -> tuple[ProbeSettings, ...]:
    """The engines that plain data declares. Raises `ConfigurationError` that names what is wrong."""
    return settings_file.checked(document, SECTION, _KIND, where)


def engine(settings: ProbeSettings) -> Engine:
    """The endpoint. Raises `ConfigurationError` when its key is not set."""
    key = None if settings.key_env is None else os.environ.get(settings.key_env)
    if settings.key_env is not None and not key:
        raise ConfigurationError(f"key_env: the environment variable {settings.key_env} is not set")
    return Engine(settings.url, opener(), key=key)
