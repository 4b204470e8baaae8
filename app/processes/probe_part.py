"""The engines of `probe` as a part of the service: one job looks at each in turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from logprobe.alerts.reloading import Reloaded
from logprobe.app.processes import probe_file
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.proof.live.prober import Prober
from logprobe.monitor.proof.live.settings import ProbeSettings
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.part import Part
from logprobe.monitor.store.store import Store

SECONDS: Final = 0.5  # a result is to be recorded before the rules judge its step


def probe_part(store: Store, stopping: threading.Event) -> Part:
    """Raises `ConfigurationError` when the home's `probe` is wrong.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """
    entries = Reloaded(store.home.path, probe_file.SECTION, lambda: probe_file.load(store.home))
    probers = _Probers(store, stopping)

    def work() -> dict[str, Any]:
        return {**probers.tick(entries.current()), **entries.report()}

    return Part(jobs=[Job("probe", SECONDS, work)], close=probers.close)


class _Probers:
    """A prober per entry, for as long as the file has it."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        self._store, self._stopping = store, stopping
        self._probers: dict[ProbeSettings, Prober] = {}

    def tick(self, entries: Sequence[ProbeSettings]) -> dict[str, Any]:
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
                self._probers[entry] = Prober(self._store, entry, probe_file.engine(entry), self._stopping)
