"""What the process that listens for relays knows of those who connect: which connections are used, and what the service
has to be told.

Connections that never come to a call (half-open, stuck in their TLS handshake, or without a valid token) are ended.
gRPC waits for minutes for a handshake and for ever for a first call, and opening a connection needs no token. So what
this process has accepted and no one has used is looked for among its own descriptors.

`Observations` are what the service has to know: how far nodes are behind, and who was refused. Bounded, whatever nodes
do.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.plain_text import steerless
from logprobe.monitor.service.callers import host_of

LOGGER: Final = logging.getLogger("logprobe.receiver")
SECONDS: Final = 20.0  # that a connection may do without a call
_EVERY: Final = 5.0
_DESCRIPTORS: Final = Path("/dev/fd")

Peer = tuple[str, int]  # address and port
NODES: Final = 10_000  # rows of (run, node) kept in memory
_REFUSALS: Final = 512  # kinds of refusals in one report
_OTHERS: Final = ("others", "several calls", "several addresses")
_WORDS: Final = 300
_LOG_SECONDS: Final = 10.0


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
        """Looks every few seconds, and ends connections to `port` that have gone without a call for too long; → how
        many."""
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
    """The connections of this process to its own port, each under a second descriptor for as long as it is looked
    at."""
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


@dataclass(slots=True)
class _Refusal:
    words: str
    since: str  # ISO 8601, UTC
    count: int = 0


class Observations:
    """Safe from any thread. `take` hands over what is new, `give_back` returns what could not be delivered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, str], dict[str, object]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._heard: dict[str, float] = {}  # node → on the monotonic clock
        self._relays: dict[str, list[str]] = {}  # of each node, the two heard last
        self._refusals: dict[tuple[str, str, str], _Refusal] = {}
        self._logged: dict[tuple[str, str, str], float] = {}

    def node(self, run: str, node: str, row: Mapping[str, Any]) -> None:
        """What a node said of its queue of one run."""
        with self._lock:
            key = (run, node)
            if key not in self._nodes and len(self._nodes) >= NODES:
                del self._nodes[next(iter(self._nodes))]
            self._nodes[key] = {"run": run, "node": node, **row}
            self._changed.add(key)
            self._heard[node] = time.monotonic()
            if len(self._heard) > NODES:
                del self._heard[next(iter(self._heard))]

    def is_shared(self, node: str, relay: str) -> bool:
        """Whether two relays call themselves by one name: a restarted one does not come back after its successor."""
        with self._lock:
            before = self._relays.pop(node, [])
            self._relays[node] = [*(other for other in before if other != relay), relay][-2:]
            if len(self._relays) > NODES:
                del self._relays[next(iter(self._relays))]
            return relay in before[:-1]

    def nodes_heard(self, seconds: float) -> int:
        """How many nodes were heard of in the last `seconds`."""
        since = time.monotonic() - seconds
        with self._lock:
            return sum(heard > since for heard in self._heard.values())

    def refused(self, who: str, what: str, peer: str, words: str) -> None:
        """Someone was refused. Equal ones are counted until they are handed over."""
        key = (steerless(who)[:80], what, _address(peer))
        text = steerless(" ".join(words.split()))[:_WORDS]
        with self._lock:
            self._count(key, _Refusal(text, datetime.now(UTC).isoformat(timespec="milliseconds"), 1))
            log = time.monotonic() - self._logged.get(key, -_LOG_SECONDS) >= _LOG_SECONDS
            if log:
                self._logged = {} if len(self._logged) > _REFUSALS else self._logged
                self._logged[key] = time.monotonic()
        if log:
            LOGGER.warning("refused %s from %s at %s: %s", what, key[0], key[2], text)

    def take(self) -> dict[str, object]:
        """What is new, as one document."""
        with self._lock:
            nodes = [self._nodes[key] for key in self._changed if key in self._nodes]
            refusals = [
                {
                    "who": who,
                    "what": what,
                    "peer": peer,
                    "words": refusal.words,
                    "count": refusal.count,
                    "since": refusal.since,
                }
                for (who, what, peer), refusal in self._refusals.items()
            ]
            self._changed, self._refusals = set(), {}
        return {"nodes": nodes, "refusals": refusals}

    def give_back(self, document: Mapping[str, Any]) -> None:
        """It could not be delivered; newer reports of the same nodes stay."""
        with self._lock:
            self._changed.update((row["run"], row["node"]) for row in document["nodes"])
            for refusal in document["refusals"]:
                counted = _Refusal(refusal["words"], refusal["since"], refusal["count"])
                self._count((refusal["who"], refusal["what"], refusal["peer"]), counted)

    def _count(self, key: tuple[str, str, str], new: _Refusal) -> None:
        """What is of a kind too many is counted together with others of that sort."""
        if key not in self._refusals and len(self._refusals) >= _REFUSALS:
            key, new = _OTHERS, replace(new, words=f"more than {_REFUSALS} kinds in one report; the log names them")
        if key in self._refusals:
            self._refusals[key].count += new.count
        else:
            self._refusals[key] = new


def _address(peer: str) -> str:
    """The machine of gRPC's ``ipv4:10.0.0.1:4711``; ports differ with every connection.

    >>> _address("ipv4:10.0.0.1:4711"), _address("")
    ('10.0.0.1', 'unknown')
    """
    return peer.partition(":")[2].rpartition(":")[0] or "unknown"
