"""Which service each run of a node goes to: the one that the relay was given, or the one of its fleet that has the run
now.

Every service of a fleet says where runs are, and which services there are. Both are kept in the node's home, so that a
relay that starts while its own service is away knows whom else to ask. Nothing else is believed: a service counts once
it has answered with a certificate that the node trusts and has taken the node's token for the run; until then, and
while it is away, the run goes to the relay's own service.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.files import replace_file
from logprobe.collectors.relay.protocol import SCHEME

FILE: Final = "fleet.json"  # in the node's home
REST_SECONDS: Final = 15.0  # that segments of a service that is away go to the relay's own one
_SERVICES: Final = 256  # that are asked where a run is; the one that has it is kept for each run
_RUNS: Final = 10_000
_FILE_BYTES: Final = 4 << 20


class Routes:
    """Of one node. Safe from any thread."""

    def __init__(self, home: Path, own: str) -> None:
        """`own`: the address that the relay was given."""
        self.own = own
        self._file = home / FILE
        self._lock = threading.Lock()
        self._services: list[str] = []
        self._said: dict[str, str] = {}  # run → address, where the fleet has it
        self._taken: dict[str, str] = {}  # run → address of the service that has answered about it
        self._resting: dict[str, float] = {}  # address → until, on the monotonic clock
        with suppress(OSError, ValueError, LookupError, TypeError), self._file.open("rb") as file:
            kept = json.loads(file.read(_FILE_BYTES))
            if kept["own"] == own:  # else the relay was given another service since, and goes by that
                self._keep(kept, own)

    def take(self, answer: Mapping[str, Any], address: str) -> None:
        """What a service says of its fleet, if it is in one. `address`: whom it is from. Raises `OSError`."""
        with self._lock:
            before = (list(self._services), dict(self._said))
            self._keep(answer.get("fleet"), address)
            if (self._services, self._said) != before:
                document = {"own": self.own, "services": self._services, "runs": self._said}
                replace_file(self._file, json.dumps(document).encode())

    def _keep(self, fleet: object, address: str) -> None:
        services, runs = fleet_of({"fleet": fleet}, address)
        self._services = services or self._services
        for run, at in runs.items():
            self._said.pop(run, None)
            if at != self.own:
                self._said[run] = at
        while len(self._said) > _RUNS:  # the least recently heard of; the next answer says it again
            del self._said[next(iter(self._said))]

    def said(self, run: str) -> str:
        """The service that has the run, as far as this node was told."""
        return self._said.get(run, self.own)

    def asks(self, address: str, run: str) -> bool:
        """Whether marks and directives of a run are exchanged with a service: with its own, and before that answers
        with the relay's."""
        at = self.said(run)
        return address == at or (address == self.own and self._taken.get(run) != at)

    def of(self, run: str) -> str:
        """Where segments of a run are sent now."""
        at = self.said(run)
        usable = self._taken.get(run) == at and self._resting.get(at, 0.0) <= time.monotonic()
        return at if usable else self.own

    def answered(self, address: str, asked: Iterable[str], runs: Collection[str]) -> None:
        """A service was asked about runs, and knows these."""
        with self._lock:
            self._resting.pop(address, None)
            for run in asked:
                if run in runs and self._said.get(run) == address:
                    self._taken[run] = address
                elif self._taken.get(run) == address:
                    del self._taken[run]

    def denied(self, run: str, address: str) -> None:
        """A service takes no segments of a run."""
        with self._lock:
            if self._taken.get(run) == address:
                del self._taken[run]

    def failed(self, address: str) -> None:
        """A service does not answer."""
        with self._lock:
            self._resting[address] = time.monotonic() + REST_SECONDS

    def elsewhere(self) -> set[str]:
        """Services that have runs of this node, other than the relay's own."""
        with self._lock:
            return set(self._said.values())

    def others(self) -> list[str]:
        """Services of the fleet other than the relay's own."""
        with self._lock:
            return [address for address in self._services if address != self.own]


def fleet_of(answer: Mapping[str, Any], address: str) -> tuple[list[str], dict[str, str]]:
    """The addresses of a fleet's services and of those that have the runs that were asked about, as `address` says;
    empty: it is in no fleet."""
    fleet = answer.get("fleet")
    if not isinstance(fleet, dict):
        return [], {}
    services, runs = fleet.get("services"), fleet.get("runs")
    listed = dict.fromkeys(where for where in services if _is_address(where)) if isinstance(services, list) else {}
    addresses = {run: address if at is None else at for run, at in runs.items()} if isinstance(runs, dict) else {}
    return list(listed)[:_SERVICES], {run: at for run, at in addresses.items() if _is_address(at)}


def _is_address(value: Any) -> bool:
    host, _, port = str(value).removeprefix(SCHEME).rpartition(":")
    return isinstance(value, str) and value.startswith(SCHEME) and bool(host) and port.isdigit()
