"""The engines of `probe` as a part of the service: one job looks at each in turn, and has it score a few of its
sequences again.

probe:
  - url: http://localhost:8000   # of `vllm serve`
    every: 60                    # seconds; docs/proof.md lists all settings
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import TypeAdapter

from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending.channels.addresses import opener
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.engine import Engine
from logprobe.monitor.proof.live.look import ProbeSettings
from logprobe.monitor.proof.live.prober import Prober
from logprobe.monitor.service.jobs import Job, Part, Progress
from logprobe.monitor.store.store import Store

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


SECONDS: Final = 0.5  # a result is to be recorded before the rules judge its step


def probe_part(store: Store, stopping: threading.Event) -> Part:
    """Raises `ConfigurationError` when the home's `probe` is wrong.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """
    entries = Reloaded(store.home.path, SECTION, lambda: load(store.home))
    probers = _Probers(store, stopping)

    def work() -> Progress:
        return {**probers.tick(entries.current()), **entries.report()}

    return Part(jobs=[Job("probe", SECONDS, work)], close=probers.close)


class _Probers:
    """A prober per entry, for as long as the file has it."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        self._store, self._stopping = store, stopping
        self._probers: dict[ProbeSettings, Prober] = {}

    def tick(self, entries: Sequence[ProbeSettings]) -> Progress:
        """One tick of each."""
        self._follow(entries)
        return {"engines": [prober.tick() for prober in self._probers.values()]}

    def close(self) -> None:
        """Records what is held."""
        self._follow(())

    def _follow(self, entries: Sequence[ProbeSettings]) -> None:
        for gone in self._probers.keys() - set(entries):
            with suppress(LogprobeError, OSError):  # a full disk: its price is lost, and the others are closed
                self._probers.pop(gone).close()
        for entry in entries:
            if entry not in self._probers:
                self._probers[entry] = Prober(self._store, entry, engine(entry), self._stopping)
