"""The receiver of relays: verified segments go into the home's spool. See `listening` for the process it is.

Connections that end before anybody says who they are, such as with an old TLS or with none, gRPC refuses by itself: it
tells no code of ours, and writes a line to the standard error stream. They are counted from there.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from logprobe.monitor.limits import RELAY_SEGMENT, RELAY_SPOOL
from logprobe.monitor.relay import tokens
from logprobe.monitor.relay.incoming import Intake
from logprobe.monitor.relay.listening import Listener, Settings, Tls
from logprobe.monitor.relay.server import RelayServer

_SPOOL_EVERY: Final = 5  # looks
_FAILED: Final = re.compile(rb"Handshake failed with (?:fatal )?error [A-Z_]+: error:[0-9A-F]+:([^\n]*)")
_SECONDS: Final = 5.0


class Receiver(Listener):
    """`run` until `stop` is set."""

    subject = "relay"

    def __init__(
        self, settings: Settings, stop: threading.Event, on_port: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_port`: is handed the port once it listens. Raises `ConfigurationError`."""
        super().__init__(settings, stop, on_port)
        self._writers = tokens.Current(self._files.tokens, "relay-token")
        self._intake = Intake(settings.home, most=RELAY_SEGMENT.value, spool_most=RELAY_SPOOL.value)
        self._looks = 0

    def _server(self, tls: Tls, port: int) -> RelayServer:
        settings = self._settings
        return RelayServer(
            settings.home,
            self._intake,
            self._writers,
            self._observations,
            self._connections,
            url=settings.url(port),
            tls=tls,
        )

    def _look(self) -> None:
        if self._looks % _SPOOL_EVERY == 0:
            self._intake.spool_bytes = _size(self._settings.home.spool)
        self._looks += 1


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
