"""Reads for services and people on other machines, over TLS: queries go on to the service of this home, everything else is refused."""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder.settings import TOKEN_VARIABLE
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.relay.connections import Connections
from logprobe.monitor.relay.listening import Listener, Settings, Tls
from logprobe.monitor.relay.observations import Observations
from logprobe.monitor.service.callers import host_of
from logprobe.monitor.service.flight import Request, encode, finite, refused, remote_error, required_token

_METHODS: Final = {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION}
_STATUS: Final = "status"


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
        self._token = required_token(environment)

    def _server(self, tls: Tls, port: int) -> ReaderServer:
        return ReaderServer(
            FlightReader(self._settings.home),
            self._observations,
            self._connections,
            url=self._settings.url(port),
            tls=tls,
            token=self._token,
        )


class _Token(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call through without the token, and none but reads. Who called is known only to the audit's `nobody known`."""

    def __init__(self, token: str, observations: Observations) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()
        self._observations = observations

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> None:
        given: Any = headers.get("authorization", [""])[0]
        given = given if isinstance(given, bytes) else str(given).encode()
        if not hmac.compare_digest(given, self._expected):
            # gRPC tells a middleware no address.
            self._observations.refused("nobody known", "call", "", "a token that is missing or wrong")
            raise flight.FlightUnauthenticatedError(
                f"the token is missing or wrong; it is the {TOKEN_VARIABLE} of the service"
            )
        if info.method not in _METHODS:
            self._observations.refused("a reader", "call", "", f"{info.method.name}: only reads are answered")
            raise flight.FlightUnauthorizedError("only reads are answered here")


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
        token: str,
    ) -> None:
        """`service`: that answers."""
        super().__init__(
            url,
            tls_certificates=[(tls.certificate, tls.key)],
            middleware={"authorization": _Token(token, observations)},
        )
        self._service = service
        self._observations = observations
        self._connections = connections

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """One read."""
        self._connections.used(context.peer())
        try:
            asked = replace(Request.from_ticket(ticket), behalf=host_of(context.peer()))
            rows = self._service.stream(asked.ticket())
        except LogprobeError as error:
            raise refused(error) from error
        return flight.GeneratorStream(rows.schema, _passed_on(context, rows))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """``status``."""
        self._connections.used(context.peer())
        if action.type != _STATUS:
            self._observations.refused("a reader", "action", context.peer(), repr(action.type))
            raise flight.FlightUnauthorizedError("only reads are answered here")
        try:
            return iter([encode(finite(self._service.status()))])
        except LogprobeError as error:
            raise refused(error) from error

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:  # noqa: ARG002
        """What `do_action` understands."""
        return [(_STATUS, "state of the service, its jobs and its backlog")]


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
