"""Where runs of a fleet are, for relays: every service says it of every run, as the table says, so that nodes
need no settings for it.

A process that receives from relays knows its fleet by ``LOGPROBE_FLEET``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypedDict

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.files import stamp_of
from logprobe.monitor.fleet.moved import MovedRuns
from logprobe.monitor.fleet.others import VARIABLE
from logprobe.monitor.fleet.table import FILE, TABLE, Fleet, Row
from logprobe.monitor.home import Home

LOGGER: Final = logging.getLogger("logprobe.receiver")
_LOOK_SECONDS: Final = 0.5


class Said(TypedDict):
    """What relays are told: addresses of all services, and of those that have the runs that were asked about; None: it
    is here."""

    services: list[str]
    runs: dict[str, str | None]


class Whereabouts:
    """As one service of a fleet knows them, at most half a second ago. Safe from any thread."""

    def __init__(self, home: Home, environment: Mapping[str, str]) -> None:
        """Touches nothing."""
        folder = environment.get(VARIABLE)
        self._home = home
        self._folder = Path(folder).expanduser() if folder else None
        self._moved = MovedRuns(home)
        self._lock = threading.Lock()
        self._seen: object = None
        self._next = 0.0  # look, on the monotonic clock: the folder may be on another machine
        self._addresses: Mapping[str, str | None] = {}
        self._own: str | None = None  # the service's name in the fleet
        self._rows: Mapping[str, Row] = {}

    def of(self, runs: Iterable[str]) -> Said | None:
        """What is known of some runs; None: this service is in no fleet."""
        with self._lock:
            if not self._look():
                return None
            services = {run: self._rows[run].service for run in runs if run in self._rows}
            return {
                "services": [address for address in self._addresses.values() if address],
                "runs": {
                    run: None if name == self._own else self._addresses[name]
                    for run, name in services.items()
                    if name == self._own or self._addresses.get(name)
                },
            }

    def elsewhere(self, run: str) -> str | None:
        """Why nothing of a run is taken here: another service has it, and it was never here, so that nothing is
        forwarded. None: it is taken."""
        with self._lock:
            row = self._rows.get(run) if self._look() else None
            if row is None or row.service == self._own:
                return None
        try:
            if self._moved.find(run) is not None:
                return None
        except StoreError:  # it may be one that is forwarded; ingest stores nothing of it until that is known
            return None
        where = self._addresses.get(row.service) or "which has no address in fleet.yaml"
        return f"run {run!r} belongs to service {row.service!r}, {where}"

    def _look(self) -> bool:
        """Whether this service is in a fleet whose table could be read."""
        if self._folder is None or time.monotonic() < self._next:
            return self._own is not None
        self._next = time.monotonic() + _LOOK_SECONDS
        stamps = [stamp_of(self._folder / name) for name in (FILE, TABLE)]
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._read(self._folder)
            except (ConfigurationError, OSError) as error:  # what was known before still counts
                LOGGER.warning("relays are not told where runs of the fleet are: %s", error)
        return self._own is not None

    def _read(self, folder: Path) -> None:
        fleet = Fleet(folder)
        own_names = [
            name
            for name, service in fleet.services.items()
            if Path(service.home).expanduser().resolve() == self._home.path.resolve()
        ]
        if not own_names:
            raise ConfigurationError(f"{folder / FILE} has no service whose home is {self._home.path}")
        self._rows = fleet.rows()
        self._addresses = {name: service.address for name, service in fleet.services.items()}
        self._own = own_names[0]
