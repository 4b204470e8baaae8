"""A node's connection to the service: TLS always, the token read from its file at every call."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.relay import protocol

_SMALL: Final = 1 << 20  # bytes of a file with a token or a certificate
_OTHERS: Final = stat.S_IRWXO
_CALL_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, and with what. `ca`: PEM file of the authority to trust; None: those that gRPC knows. `token`: file
    with the token."""

    address: str
    token: Path
    ca: Path | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` when the address is not one with TLS."""
        host, _, port = self.address.removeprefix(protocol.SCHEME).rpartition(":")
        if not self.address.startswith(protocol.SCHEME) or not host or not port.isdigit():
            raise ConfigurationError(
                f"{self.address!r} is not an address of a service: write {protocol.SCHEME}HOST:PORT; without TLS "
                "nothing is sent"
            )


class Connection:
    """Calls to one service. Not thread-safe: each thread has its own."""

    def __init__(self, target: Target) -> None:
        """Opens nothing yet."""
        self._target = target
        self._client: Any = None

    def upload(self, seconds: float) -> tuple[Any, Any]:
        """A writer of `protocol.CHUNKS` and a reader of the answer; the call ends after `seconds`.

        Raises `ServiceUnavailableError` or `ConfigurationError`.
        """
        descriptor = flight.FlightDescriptor.for_path(protocol.UPLOAD, str(protocol.PROTOCOL))
        try:
            writer, answers = self._open().do_put(descriptor, protocol.CHUNKS, self._options(seconds))
        except pa.ArrowException as error:
            raise self.failed(error) from None
        return writer, answers

    def ask(self, action: str, document: Mapping[str, Any], seconds: float = _CALL_SECONDS) -> Mapping[str, Any]:
        """The answer to one `protocol` action; the call ends after `seconds`.

        Raises `ServiceUnavailableError` or `ConfigurationError`.
        """
        call = flight.Action(action, json.dumps(document).encode())
        try:
            (answer,) = list(self._open().do_action(call, self._options(seconds)))
            document = json.loads(answer.body.to_pybytes())
        except ConfigurationError:  # a ValueError
            raise
        except (pa.ArrowException, ValueError) as error:
            raise self.failed(error) from None
        if not isinstance(document, dict):
            raise ServiceUnavailableError(f"{self._target.address}: the answer is no document")
        return document

    def failed(self, error: Exception) -> ServiceUnavailableError:
        """What a call failed with, as one line. The next call opens a new connection."""
        self.close()
        return ServiceUnavailableError(f"{self._target.address}: {_one_line(error)}")

    def close(self) -> None:
        """Closes it; the next call opens it again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> Any:
        if self._client is None:
            ca = self._target.ca
            roots = {} if ca is None else {"tls_root_certs": content(ca)}
            options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
            self._client = flight.FlightClient(self._target.address, generic_options=options, **roots)
        return self._client

    def _options(self, seconds: float) -> Any:
        """The token is read again each time: it may have been replaced."""
        token = content(self._target.token, secret=True).strip()
        return flight.FlightCallOptions(timeout=seconds, headers=[(b"authorization", b"Bearer " + token)])


def _one_line(error: Exception) -> str:
    text = str(error).partition(". gRPC client debug context:")[0].partition(". Client context:")[0]
    return " ".join(text.split())[:500] or type(error).__name__


def content(file: Path, *, secret: bool = False) -> bytes:
    """What a small file holds, with `secret` one that only its user and group may read. Raises `ConfigurationError`."""
    try:
        with file.open("rb") as opened:
            if secret and file.stat().st_mode & _OTHERS:
                raise ConfigurationError(f"{file} holds a token, and others may read it; run: chmod 600 {file}")
            content = opened.read(_SMALL)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read ({error.strerror or error})") from error
    if not content.strip():
        raise ConfigurationError(f"{file} is empty")
    return content
