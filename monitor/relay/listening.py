"""A Flight server with TLS in a separate process, because it reads what strangers send: what relays and readers connect
to.

It has no access to the store; what the service has to know it is told. A certificate that changes is taken over by
starting the server again: clients connect again, and nothing is lost.

`Readers` answers services and people on other machines: queries go on to the service of this home, everything else is
refused.

Connections that never come to a call (half-open, stuck in their TLS handshake, or without a valid token) are ended.
gRPC waits for minutes for a handshake and for ever for a first call, and opening a connection needs no token. So what
this process has accepted and no one has used is looked for among its own descriptors.

`Observations` are what the service has to know: how far nodes are behind, and who was refused. Bounded, whatever nodes
do.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import resource
import socket
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import ConfigurationError, LogprobeError, QueryError
from logprobe.collectors.plain_text import steerless
from logprobe.collectors.recorder.settings import TOKEN_VARIABLE
from logprobe.collectors.relay.protocol import SCHEME
from logprobe.monitor.home import Home
from logprobe.monitor.limits import RELAY_MEMORY
from logprobe.monitor.reader import FlightReader, connect
from logprobe.monitor.relay import certificate, files, scopes, tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.service_part import NOTE
from logprobe.monitor.relay.tokens import Writer, Writers
from logprobe.monitor.service.callers import host_of
from logprobe.monitor.service.flight import Request, encode, finite, refused, remote_error, required_token, stated_token

LOGGER: Final = logging.getLogger("logprobe.receiver")
_NOTE_SECONDS: Final = 1.0
_SOON: Final = timedelta(days=21)  # before a certificate expires
_METHODS: Final = {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION}
_STATUS: Final = "status"
SECONDS: Final = 20.0  # that a connection may do without a call
_EVERY: Final = 5.0
_DESCRIPTORS: Final = Path("/dev/fd")

Peer = tuple[str, int]  # address and port
NODES: Final = 10_000  # rows of (run, node) kept in memory
_REFUSALS: Final = 512  # kinds of refusals in one report
_OTHERS: Final = ("others", "several calls", "several addresses")
_WORDS: Final = 300
_LOG_SECONDS: Final = 10.0


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
                f"{self.subject}s cannot connect to {self._settings.host}:{port} ({' '.join(str(error).split())}); "
                "choose another "
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
                f"{place.certificate} is missing; make one: logprobe certificate --home {self._settings.home.path} "
                "--host NAME"
            )
        tls = Tls(place.certificate.read_bytes(), files.read_secret(place.key))
        until = certificate.expiry(tls.certificate)
        if until - datetime.now(UTC) < _SOON:
            LOGGER.warning("the certificate ends at %s; renew it with `logprobe certificate`", until.isoformat())
        return tls


def limit_memory(nbytes: int) -> None:
    """Ends this process, and no other, when someone sends more than fits: it is started again, and clients ask
    again."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


class Readers(Listener):
    """`run` until `stop` is set."""

    subject = "reader"

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        on_port: Callable[[int], None] = lambda _: None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`on_port`: is handed the port once it listens. Raises `ConfigurationError` without a token to ask for."""
        super().__init__(settings, stop, on_port)
        self._some = tokens.Current(self._files.readers, "reader-token")
        self._token = stated_token(environment) if self._some().by_name else required_token(environment)

    def _server(self, tls: Tls, port: int) -> ReaderServer:
        return ReaderServer(
            FlightReader(self._settings.home),
            self._observations,
            self._connections,
            url=self._settings.url(port),
            tls=tls,
            token=self._token,
            some=self._some,
        )


class _Reader(flight.ServerMiddleware):  # type: ignore[misc]
    """`who`: whose token it is; None: that of the service, which reads everything."""

    def __init__(self, who: Writer | None) -> None:
        super().__init__()
        self.who = who


class _Token(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call through without a token, and none but reads. The audit does not know who called."""

    def __init__(self, token: str | None, some: Callable[[], Writers], observations: Observations) -> None:
        super().__init__()
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._some = some
        self._observations = observations

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Reader:
        given: Any = headers.get("authorization", [""])[0]
        given = given if isinstance(given, bytes) else str(given).encode()
        reads_all = self._expected is not None and hmac.compare_digest(given, self._expected)
        text = given.decode("utf-8", "replace").removeprefix("Bearer ")
        who = None if reads_all else self._some().find(text, datetime.now(UTC))
        if who is None and not reads_all:
            # gRPC tells a middleware no address.
            self._observations.refused("nobody known", "call", "", "a token that is missing or wrong")
            raise flight.FlightUnauthenticatedError(
                f"the token is missing or wrong; it is the {TOKEN_VARIABLE} of the service, or one of `logprobe "
                "reader-token`"
            )
        if info.method not in _METHODS:
            self._observations.refused("a reader", "call", "", f"{info.method.name}: only reads are answered")
            raise flight.FlightUnauthorizedError("only reads are answered here")
        return _Reader(who)


class ReaderServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens as soon as it is made; `port` says where; `shutdown()` ends it.

    do_get     as the service's own endpoint has it (see `logprobe.monitor.service.flight`), passed on as it comes
    do_action  ``status``
    """

    def __init__(
        self,
        service: FlightReader,
        observations: Observations,
        connections: Connections,
        *,
        url: str,
        tls: Tls,
        token: str | None,
        some: Callable[[], Writers],
    ) -> None:
        """`service`: that answers; `token`: that reads everything; `some`: those who read some runs."""
        super().__init__(
            url,
            tls_certificates=[(tls.certificate, tls.key)],
            middleware={"authorization": _Token(token, some, observations)},
        )
        self._service = service
        self._observations = observations
        self._connections = connections

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """One read."""
        self._connections.used(context.peer())
        try:
            asked = replace(Request.from_ticket(ticket), behalf=host_of(context.peer()))
            if (who := _who(context)) is not None:
                return self._some_rows(context, asked, who)
            rows = self._service.stream(asked.ticket())
        except LogprobeError as error:
            raise refused(error) from error
        return flight.GeneratorStream(rows.schema, _passed_on(context, rows))

    def _some_rows(self, context: flight.ServerCallContext, asked: Request, who: Writer) -> flight.RecordBatchStream:
        try:
            narrowed = scopes.narrowed(asked, who.covers)
        except QueryError as error:
            self._observations.refused(who.name, "read", context.peer(), str(error))
            raise
        return flight.RecordBatchStream(scopes.filtered(self._service.ask(narrowed), who.covers))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """``status``; for readers of some runs, only that there is one: it names others."""
        self._connections.used(context.peer())
        if action.type != _STATUS:
            self._observations.refused("a reader", "action", context.peer(), repr(action.type))
            raise flight.FlightUnauthorizedError("only reads are answered here")
        try:
            status = self._service.status()
            return iter([encode(finite(status if _who(context) is None else {"running": True}))])
        except LogprobeError as error:
            raise refused(error) from error

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:  # noqa: ARG002
        """What `do_action` understands."""
        return [(_STATUS, "state of the service, its jobs and its backlog")]


def _who(context: flight.ServerCallContext) -> Writer | None:
    writer: Writer | None = context.get_middleware("authorization").who
    return writer


def _passed_on(context: flight.ServerCallContext, rows: flight.FlightStreamReader) -> Iterator[pa.RecordBatch]:
    """Batch by batch, so that this process holds one of them at a time."""
    try:
        while not context.is_cancelled():  # else the reader went away
            yield rows.read_chunk().data
    except StopIteration:
        return
    except flight.FlightError as error:
        raise refused(remote_error(error)) from error
    finally:
        rows.cancel()


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
