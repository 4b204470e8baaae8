"""Connections that never come to a call: half-open, stuck in their TLS handshake, or without a valid token. They are ended.

gRPC waits for minutes for a handshake and for ever for a first call, and whoever opens a connection needs no token. So what this
process has accepted and nobody has used is looked for among its own descriptors.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from logprobe.monitor.service.callers import host_of

SECONDS: Final = 20.0  # that a connection may do without a call
_EVERY: Final = 5.0
_DESCRIPTORS: Final = Path("/dev/fd")

Peer = tuple[str, int]  # address and port


class Connections:
    """Those to one listening process. `used` is safe from any thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._callers: set[Peer] = set()
        self._since: dict[Peer, float] = {}  # of the others: seen first, on the monotonic clock
        self._next = 0.0

    def used(self, peer: str) -> None:
        """A call over this connection was let through. `peer`: as gRPC has it."""
        port = peer.rpartition(":")[2]
        if port.isdigit():
            with self._lock:
                self._callers.add((_plain(host_of(peer)), int(port)))

    def end_unused(self, port: int) -> int:
        """Looks every few seconds, and ends connections to `port` that have gone without a call for too long; → how many."""
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + _EVERY
        with self._lock:
            callers = set(self._callers)
        peers, ended = set(), 0
        for peer, connection in _accepted(port):
            peers.add(peer)
            if peer not in callers and now - self._since.setdefault(peer, now) > self._seconds:
                with suppress(OSError):  # it has just ended
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        with self._lock:
            self._callers -= callers - peers
            self._since = {peer: since for peer, since in self._since.items() if peer in peers - self._callers}
        return ended


def _accepted(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """The connections of this process to a port of its own, each under a second descriptor for as long as it is looked at."""
    for place in list(_DESCRIPTORS.iterdir()):
        with suppress(OSError):  # it was closed meanwhile, or is no connection
            descriptor = int(place.name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    internet = connection.family in {socket.AF_INET, socket.AF_INET6}
                    if internet and connection.getsockname()[1] == port:
                        host, client_port, *_ = connection.getpeername()
                        yield (_plain(host), client_port), connection


def _plain(host: str) -> str:
    """One spelling per address: gRPC and the kernel have different ones.

    >>> _plain("[::ffff:10.0.0.7]"), _plain("::ffff:10.0.0.7"), _plain("[::1]")
    ('10.0.0.7', '10.0.0.7', '::1')
    """
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
