"""Runs of other homes and services: a home's folder, or a service's endpoint ``grpc+tls://HOST:PORT``. Read only.

A service on another machine listens there with `logprobe up --reader-port`, or without TLS, as ``grpc://``, with
`--service-address --service-port`; either way it asks for its ``LOGPROBE_TOKEN``.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.recorder.settings import TOKEN_VARIABLE
from logprobe.collectors.relay.arguments import service as node_service
from logprobe.collectors.relay.connection import content
from logprobe.collectors.relay.protocol import SCHEME as _TLS
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import DIRECTLY, FlightReader, Reader, open_reader

_PLAIN: Final = "grpc://"
_WRITE: Final = f"{_TLS}HOST:PORT"
_LOOK_SECONDS: Final = 5.0
_OTHER_NAME: Final = {62, 64}  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class RemoteService:
    """A service of which only the address is known. `path`: its address, as messages name it.

    `ca`: PEM file of the authorities to trust, of which there may be several; None: what the environment says, or those
    that gRPC knows.
    """

    path: str
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ca: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.path)
        try:
            complete = bool(parts.hostname and parts.port)
        except ValueError:
            complete = False
        if not complete or not self.path.startswith((_TLS, _PLAIN)) or parts.path or parts.username:
            raise ConfigurationError(f"{self.path!r} is not the address of a service; write {_WRITE}")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.path.startswith(_TLS)

    def service_info(self) -> ServiceInfo:
        """Where it listens, and the token to show. Raises `ConfigurationError` without one."""
        token = self.environment.get(TOKEN_VARIABLE)
        if not token:
            raise ConfigurationError(f"{self.path} asks for a token: set {TOKEN_VARIABLE} to that of its service")
        parts = urlsplit(self.path)
        return ServiceInfo(host=str(parts.hostname), port=int(parts.port or 0), token=token, pid=0, started="")

    def roots(self) -> bytes | None:
        """Certificates of the authorities to trust, read again for each connection. Raises `ConfigurationError`."""
        file = _trusted_file(self)
        return content(Path(file).expanduser()) if file else None


class RemoteReader(FlightReader):
    """Reads through a service on another machine, and says why a connection with TLS fails."""

    def __init__(self, service: RemoteService) -> None:
        """Connects on first use."""
        super().__init__(service)
        self._service = service

    def _client_of(self, info: ServiceInfo) -> flight.FlightClient:
        if not self._service.tls:
            return super()._client_of(info)
        roots = self._service.roots()
        trusted = {} if roots is None else {"tls_root_certs": roots}
        # No connection is shared with a client that trusts other authorities.
        options = [*DIRECTLY, ("grpc.use_local_subchannel_pool", 1)]
        return flight.FlightClient(self._service.path, generic_options=options, **trusted)

    @property
    def _remedy(self) -> str:
        return f"check its address and {TOKEN_VARIABLE}"

    def _unavailable(self, error: flight.FlightError) -> str:
        if isinstance(error, flight.FlightUnauthenticatedError):
            return f"the service of {self._service.path} refuses the token; set {TOKEN_VARIABLE} to that of its service"
        problem = tls_problem(self._service)
        if problem:
            return f"no connection to {self._service.path}: {problem}"
        return super()._unavailable(error)


def tls_problem(service: RemoteService) -> str:
    """What is wrong between a service's TLS and ours, from one more handshake; empty: nothing, or no one listens there.

    gRPC's own words name neither the name that is missing in a certificate nor the file that it was checked with.
    """
    info = service.service_info()
    try:
        context = _context(service)
    except (ssl.SSLError, ValueError):
        return f"{_trusted_file(service)} holds no certificate in PEM"
    try:
        with (
            socket.create_connection((info.host, info.port), timeout=_LOOK_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=info.host),
        ):
            return "" if service.tls else f"it listens with TLS; write {_TLS}{info.address}"
    except ssl.SSLCertVerificationError as error:
        return _distrusted(error, info.host, service)
    except ssl.SSLEOFError:  # it ends just now
        return ""
    except ssl.SSLError as error:
        words = str(error.reason or "").lower().replace("_", " ")
        return f"no TLS 1.2 or newer is spoken there ({words}); `logprobe up --reader-port` does" if service.tls else ""
    except OSError:
        return ""


def _context(service: RemoteService) -> ssl.SSLContext:
    roots = service.roots() if service.tls else None
    context = ssl.create_default_context(cadata=None if roots is None else roots.decode("ascii", "replace"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # gRPC does not ask for it either
    context.set_alpn_protocols(["h2"])
    if not service.tls:  # whether TLS is spoken is all that is looked at
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _trusted_file(service: RemoteService) -> Path | str | None:
    return service.ca or node_service(service.environment).ca or None


def _distrusted(error: ssl.SSLCertVerificationError, host: str, service: RemoteService) -> str:
    if error.verify_code in _OTHER_NAME:
        return f"its certificate is not for {host!r}; there: logprobe certificate --host {host}"
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; there: logprobe certificate --host NAME"
    file = _trusted_file(service)
    trusted = f"an authority in {file}" if file else "a known authority"
    return (
        f"its certificate is not signed by {trusted} ({error.verify_message}); pass --ca FILE with the ca.pem of its "
        "home"
    )


def is_service(where: str) -> bool:
    """Whether a place is the address of a service, not a folder."""
    return "://" in where


def reader_at(where: str, ca: Path | None = None) -> Reader:
    """A reader of a place; `ca`: see `RemoteService`. Raises `ConfigurationError`, `StoreError` or
    `ServiceUnavailableError`."""
    return RemoteReader(RemoteService(where, ca=ca)) if is_service(where) else open_reader(where)


def name_at(where: str, run: str) -> str:
    """What a run of another place is called, see `split`.

    >>> name_at("/data/b", "r"), name_at("grpc+tls://host:7070", "r")
    ('/data/b:r', 'grpc+tls://host:7070/r')
    """
    return f"{where}/{run}" if is_service(where) else f"{where}:{run}"


def split(name: str) -> tuple[str, str] | None:
    """Place and run of such a name; None: it names a run of the home at hand. Raises `ConfigurationError`.

    >>> split("grpc+tls://host:7070/team/r"), split("r:1")
    (('grpc+tls://host:7070', 'team/r'), None)
    """
    if name.startswith((_TLS, _PLAIN)):
        scheme, _, rest = name.partition("://")
        address, slash, run = rest.partition("/")
        if not slash or not run:
            raise ConfigurationError(f"{name!r} names no run; write {_WRITE}/RUN")
        return f"{scheme}://{address}", run
    folder, colon, run = name.rpartition(":")
    return (folder, run) if colon and os.path.isdir(folder) else None  # noqa: PTH112 - "" is no folder


class Briefly:
    """A place of which only the connection to its service is kept: an open store would keep its service from starting.

    May be shared between threads.
    """

    def __init__(self, where: str, ca: Path | None = None) -> None:
        """Opens nothing yet."""
        self._home = None if is_service(where) else Home(where)
        self._service = FlightReader(self._home) if self._home else RemoteReader(RemoteService(where, ca=ca))

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """The rows of one stored query. Raises as `open_reader` and `Reader.read` do."""
        try:
            if self._home is not None:  # one that hangs is not waited for as long as a statement may take
                self._service.greet()
            return self._service.read(name, **params)
        except ServiceUnavailableError:
            if self._home is None or self._home.owner() is not None:
                raise
        with open_reader(self._home) as reader:
            return reader.read(name, **params)


def checked(places: list[str], home: Home | None, ca: Path | None = None) -> list[str]:
    """Places as they were given, folders as absolute paths, each once and none of them `home`. Raises
    `ConfigurationError`."""
    paths: dict[str, None] = {}
    for where in places:
        if is_service(where):
            service = RemoteService(where, ca=ca)
            if service.tls:
                service.roots()  # a file that cannot be read has to show now
            paths[service.path] = None
            continue
        other = Home(where)
        if not other.path.is_dir():
            raise ConfigurationError(f"{where} is not a folder; --also takes a home or {_WRITE}")
        if home is None or other.path != home.path:
            paths[str(other.path)] = None
    return list(paths)
