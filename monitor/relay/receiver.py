"""The receiver: a Flight server with TLS in a process of its own, because it reads what strangers send.

It has no access to the store. Verified segments go into the home's spool; what the service has to know it is told. A certificate that
changes is taken over by starting the server again: relays connect again, and nothing is lost.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.home import Home
from logprobe.monitor.limits import RELAY_MEMORY, RELAY_SEGMENT, RELAY_SPOOL
from logprobe.monitor.reader import connect
from logprobe.monitor.relay import certificate, files, tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.incoming import Intake
from logprobe.monitor.relay.observations import Observations
from logprobe.monitor.relay.server import RelayServer, Tls
from logprobe.monitor.relay.service_part import NOTE
from logprobe.monitor.relay.tokens import Writers

LOGGER: Final = logging.getLogger("logprobe.receiver")
_NOTE_SECONDS: Final = 1.0
_SPOOL_EVERY: Final = 5  # notes
_SOON: Final = timedelta(days=21)  # before a certificate expires


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen. `port` 0: any free one."""

    home: Home
    host: str
    port: int


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
        self._writers = _Writers(self._files.tokens)
        self._writers.current()  # a mistake has to show now
        self._intake = Intake(settings.home, most=RELAY_SEGMENT.value, spool_most=RELAY_SPOOL.value)

    def run(self) -> None:
        """Raises `ConfigurationError` when it cannot listen."""
        limit_memory(RELAY_MEMORY.value)
        port = self._settings.port
        while not self._stop.is_set():
            shown = self._tls()
            with self._serving(shown, port) as server:
                port = server.port  # also of the next one, when the certificate has changed
                self._on_port(port)
                self._work(shown)

    def refused_connection(self, words: str) -> None:
        """A connection ended in its TLS handshake. Safe from any thread."""
        self._observations.refused("nobody known", "connection", "", f"no TLS 1.2 or newer: {words}")

    def _serving(self, tls: Tls, port: int) -> RelayServer:
        host = self._settings.host
        try:
            return RelayServer(
                self._settings.home,
                self._intake,
                self._writers.current,
                self._observations,
                host=host,
                port=port,
                tls=tls,
            )
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"relays cannot be received at {host}:{port} ({' '.join(str(error).split())}); choose another "
                "--relay-port or --relay-address"
            ) from error

    def _work(self, shown: Tls) -> None:
        """Until the end, or until the certificate has changed."""
        turn = 0
        while not self._stop.wait(_NOTE_SECONDS):
            if turn % _SPOOL_EVERY == 0:
                self._intake.spool_bytes = _size(self._settings.home.spool)
            turn += 1
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
                f"{place.certificate} is missing; make one: logprobe certificate --home {self._settings.home.path} --host NAME"
            )
        tls = Tls(place.certificate.read_bytes(), files.read_secret(place.key))
        until = certificate.expiry(tls.certificate)
        if until - datetime.now(UTC) < _SOON:
            LOGGER.warning("the certificate ends at %s; renew it with `logprobe certificate`", until.isoformat())
        return tls


class _Writers:
    """The tokens as the file says now; while it cannot be used, nobody's: a token that was revoked must not count again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._mark: object = self
        self._writers = Writers({})

    def current(self) -> Writers:
        """Looking costs one `stat`."""
        with self._lock:
            mark = _mark(self._path)
            if mark != self._mark:
                first, self._mark = self._mark is self, mark
                self._read(first=first)
            return self._writers

    def _read(self, *, first: bool) -> None:
        try:
            self._writers = tokens.load(self._path)
        except ConfigurationError:
            self._writers = Writers({})
            if first:
                raise
            LOGGER.exception("no token counts until this is fixed")
        if not self._writers.by_name:
            LOGGER.warning("%s has no writers; make a token: logprobe relay-token NAME --run PATTERN", self._path)


def limit_memory(nbytes: int) -> None:
    """Ends this process, and no other, when somebody sends more than fits: it is started again, and relays send again."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total
