"""A Flight server with TLS in a process of its own, because it reads what strangers send: what relays and readers connect to.

It has no access to the store; what the service has to know it is told. A certificate that changes is taken over by starting the server
again: clients connect again, and nothing is lost.
"""

from __future__ import annotations

import logging
import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.relay.protocol import SCHEME
from logprobe.monitor.home import Home
from logprobe.monitor.limits import RELAY_MEMORY
from logprobe.monitor.reader import connect
from logprobe.monitor.relay import certificate, files
from logprobe.monitor.relay.connections import SECONDS, Connections
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.observations import Observations
from logprobe.monitor.relay.service_part import NOTE

LOGGER: Final = logging.getLogger("logprobe.receiver")
_NOTE_SECONDS: Final = 1.0
_SOON: Final = timedelta(days=21)  # before a certificate expires


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen. `port` 0: any free one."""

    home: Home
    host: str
    port: int

    def url(self, port: int) -> str:
        """As Flight takes it."""
        return f"{SCHEME}[{self.host}]:{port}" if ":" in self.host else f"{SCHEME}{self.host}:{port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM of certificate and key."""

    certificate: bytes
    key: bytes


class Listener(ABC):
    """`run` until `stop` is set."""

    subject: str  # of what the audit says: relay, reader

    def __init__(
        self, settings: Settings, stop: threading.Event, on_port: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_port`: is handed the port once it listens."""
        self._settings = settings
        self._stop = stop
        self._on_port = on_port
        self._files = RelayFiles.of(settings.home)
        self._observations = Observations()
        self._connections = Connections()

    @abstractmethod
    def _server(self, tls: Tls, port: int) -> flight.FlightServerBase:
        """A server that listens. May raise `OSError` or `pyarrow.ArrowException`."""

    def _look(self) -> None:  # noqa: B027 - not every listener has something to look at
        """Called every second."""

    def run(self) -> None:
        """Raises `ConfigurationError` when it cannot listen."""
        limit_memory(RELAY_MEMORY.value)
        port = self._settings.port
        while not self._stop.is_set():
            shown = self._tls()
            with self._serving(shown, port) as server:
                port = server.port  # also of the next one, when the certificate has changed
                self._on_port(port)
                self._work(shown, port)

    def refused_connection(self, words: str) -> None:
        """A connection ended in its TLS handshake. Safe from any thread."""
        self._observations.refused("nobody known", "connection", "", f"no TLS 1.2 or newer: {words}")

    def _serving(self, tls: Tls, port: int) -> flight.FlightServerBase:
        try:
            return self._server(tls, port)
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"{self.subject}s cannot connect to {self._settings.host}:{port} ({' '.join(str(error).split())}); choose another "
                f"--{self.subject}-port or --{self.subject}-address"
            ) from error

    def _work(self, shown: Tls, port: int) -> None:
        """Until the end, or until the certificate has changed."""
        while not self._stop.wait(_NOTE_SECONDS):
            self._look()
            for _ in range(self._connections.end_unused(port)):
                self._observations.refused("nobody known", "connection", "", f"no valid call within {SECONDS:g} s")
            self._tell()
            with suppress(ConfigurationError):  # half of it is written; the old one still counts
                if self._tls() != shown:
                    LOGGER.info("the certificate has changed; listening again with the new one")
                    return

    def _tell(self) -> None:
        """Tells the service what is new; while there is none, it is kept."""
        news = self._observations.take()
        if not news["nodes"] and not news["refusals"]:
            return
        try:
            with connect(self._settings.home) as reader:
                reader.act(NOTE, {**news, "subject": self.subject})
        except LogprobeError:
            self._observations.give_back(news)

    def _tls(self) -> Tls:
        place = self._files
        if not place.certificate.exists():
            raise ConfigurationError(
                f"{place.certificate} is missing; make one: logprobe certificate --home {self._settings.home.path} --host NAME"
            )
        tls = Tls(place.certificate.read_bytes(), files.read_secret(place.key))
        until = certificate.expiry(tls.certificate)
        if until - datetime.now(UTC) < _SOON:
            LOGGER.warning("the certificate ends at %s; renew it with `logprobe certificate`", until.isoformat())
        return tls


def limit_memory(nbytes: int) -> None:
    """Ends this process, and no other, when somebody sends more than fits: it is started again, and clients ask again."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
