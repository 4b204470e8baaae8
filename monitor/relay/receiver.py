"""The receiver of relays, a Flight server with TLS: verified segments go into the home's spool.

It is a separate process, because it reads what strangers send. It has no access to the store; what the service has to
know it is told. A certificate that changes is taken over by starting the server again: relays connect again, and
nothing is lost.

Connections that end before anybody says who they are, such as with an old TLS or with none, gRPC refuses by itself: it
tells no code of ours, and writes a line to the standard error stream. They are counted from there.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.relay.protocol import SCHEME
from logprobe.monitor.home import Home
from logprobe.monitor.limits import RELAY_MEMORY, RELAY_SEGMENT, RELAY_SPOOL
from logprobe.monitor.reader import connect
from logprobe.monitor.relay import certificate, files, tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.incoming import Intake
from logprobe.monitor.relay.listening import LOGGER, SECONDS, Connections, Observations
from logprobe.monitor.relay.server import RelayServer, Tls
from logprobe.monitor.relay.service_part import NOTE

_SPOOL_EVERY: Final = 5  # looks
_LOOK_SECONDS: Final = 1.0
_SOON: Final = timedelta(days=21)  # before a certificate expires
_FAILED: Final = re.compile(rb"Handshake failed with (?:fatal )?error [A-Z_]+: error:[0-9A-F]+:([^\n]*)")
_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen. `port` 0: any free one."""

    home: Home
    host: str
    port: int

    def url(self, port: int) -> str:
        """As Flight takes it."""
        return f"{SCHEME}[{self.host}]:{port}" if ":" in self.host else f"{SCHEME}{self.host}:{port}"


class Receiver:
    """`run` until `stop` is set."""

    def __init__(
        self, settings: Settings, stop: threading.Event, on_port: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_port`: is handed the port once it listens. Raises `ConfigurationError`."""
        self._settings = settings
        self._stop = stop
        self._on_port = on_port
        self._files = RelayFiles.of(settings.home)
        self._observations = Observations()
        self._connections = Connections()
        self._writers = tokens.Current(self._files.tokens)
        self._intake = Intake(settings.home, most=RELAY_SEGMENT.value, spool_most=RELAY_SPOOL.value)
        self._looks = 0

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

    def _serving(self, tls: Tls, port: int) -> RelayServer:
        settings = self._settings
        try:
            return RelayServer(
                settings.home,
                self._intake,
                self._writers,
                self._observations,
                self._connections,
                url=settings.url(port),
                tls=tls,
            )
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"relays cannot connect to {settings.host}:{port} ({' '.join(str(error).split())}); choose another "
                "--relay-port or --relay-address"
            ) from error

    def _work(self, shown: Tls, port: int) -> None:
        """Until the end, or until the certificate has changed."""
        while not self._stop.wait(_LOOK_SECONDS):
            if self._looks % _SPOOL_EVERY == 0:
                self._intake.spool_bytes = _size(self._settings.home.spool)
            self._looks += 1
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
                reader.act(NOTE, news)
        except LogprobeError:
            self._observations.give_back(news)

    def _tls(self) -> Tls:
        place = self._files
        if not place.certificate.exists():
            raise ConfigurationError(
                f"{place.certificate} is missing; make one: logprobe certificate --home {self._settings.home.path} "
                "--host NAME"
            )
        tls = Tls(place.certificate.read_bytes(), files.read_secret(place.key))
        until = certificate.expiry(tls.certificate)
        if until - datetime.now(UTC) < _SOON:
            LOGGER.warning("the certificate ends at %s; renew it with `logprobe certificate`", until.isoformat())
        return tls


def limit_memory(nbytes: int) -> None:
    """Ends this process, and no other, when someone sends more than fits: it is started again, and relays ask again."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


@contextmanager
def handshakes_counted(refused: Callable[[str], None]) -> Iterator[None]:
    """Inside the block `refused` is called, from another thread, with the reason of each failed handshake.

    Everything else that is written to the standard error stream of this process passes on to where it went before.
    """
    sys.stderr.flush()
    before = os.dup(sys.stderr.fileno())
    reading, writing = os.pipe()
    os.dup2(writing, sys.stderr.fileno())
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, before, refused), name="logprobe-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, sys.stderr.fileno())  # the pipe's last end: the thread reads what is left and ends
        thread.join(_SECONDS)


def _pass_on(reading: int, to: int, refused: Callable[[str], None]) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            match = _FAILED.search(line)
            if match is None:
                os.write(to, line)
            else:
                refused(match[1].decode("utf-8", "replace").strip(" :"))
    os.close(to)
