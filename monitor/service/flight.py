"""Arrow Flight endpoint of the service: read-only queries and actions for one data directory.

    do_get     ticket  {"sql": …, "params": …} or {"name": …, "params": {…}}   → record batches
                       with "sql": at most "first" rows
    do_action  "status" → one JSON document;  "ingest" → runs an ingest tick now, one JSON document;  "shutdown";
               and the actions of the service's parts, which take a JSON object as their body

Every call carries ``authorization: Bearer <token>``. The token is in the data directory's ``service.json`` (mode 0600),
so every user who can read that file has access. Errors are sent as JSON in Flight's ``extra_info`` with class and
message. The client raises the same one-line error as the server.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import (
    ConfigurationError,
    LogprobeError,
    QueryError,
    ServiceUnavailableError,
    StoreError,
)
from logprobe.monitor.service.action import Action
from logprobe.monitor.service.status import Status

Parameters = Mapping[str, Any] | Sequence[Any] | None

# Rows per message: small enough that a slow reader holds little memory in the service, large enough to be efficient.
_BATCH_ROWS: Final = 65_536

# What may cross the wire by name; anything else arrives as the base class.
_ERRORS: Final[dict[str, type[LogprobeError]]] = {
    error.__name__: error for error in (ConfigurationError, QueryError, StoreError, ServiceUnavailableError)
}


class Endpoint(Protocol):
    """Interface of the service for the server. Many threads call it concurrently."""

    def query(self, request: Request, gone: Callable[[], bool]) -> pa.Table:
        """Return the rows of one client's statement. `gone`: function that returns whether the client stopped
        waiting.
        """

    def read(self, name: str, params: Mapping[str, Any]) -> pa.Table:
        """Return the rows of one stored query."""

    def status(self) -> Status:
        """Return the state of the service."""

    def ingest(self) -> Mapping[str, object]:
        """Ingest now and return the report `Ingested`."""

    def shutdown(self) -> None:
        """Request the shutdown and return immediately."""


@dataclass(frozen=True, slots=True)
class Request:
    """One read in a Flight ticket: either a user's SQL or the name of a stored query.

    For SQL, `first` limits the rows.
    """

    sql: str | None = None
    name: str | None = None
    params: Parameters = None
    first: int | None = None

    def ticket(self) -> flight.Ticket:
        """Return the ticket of the request. Raises `QueryError` for a parameter that JSON cannot represent."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return flight.Ticket(encode({key: value for key, value in fields.items() if value is not None}))

    @classmethod
    def from_ticket(cls, ticket: flight.Ticket) -> Request:
        """Read a request from a ticket. Raises `QueryError` for an invalid ticket."""
        try:
            fields = json.loads(ticket.ticket)
            request = cls(**{name: fields.get(name) for name in cls.__slots__})
        except (ValueError, AttributeError) as error:
            raise QueryError('not a request; send {"sql": …} or {"name": …, "params": {…}} as JSON') from error
        if (request.sql is None) == (request.name is None):
            raise QueryError("a request needs a statement; pass either `sql` or `name`")
        if request.name is not None and not isinstance(request.params, Mapping | None):
            raise QueryError("`params` of a stored query is not a JSON object; pass named parameters")
        if request.first is not None and (not isinstance(request.first, int) or request.first < 1):
            raise QueryError("`first` is not a number of rows; pass a whole number")
        return request


def _plain(value: Any) -> Any:
    """Convert values that JSON lacks: times to ISO 8601 and numpy scalars to numbers."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be a query parameter; pass numbers, strings or times")


def encode(document: Any) -> bytes:
    """Return JSON bytes. Raises `QueryError` for values that JSON cannot represent."""
    try:
        return json.dumps(document, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise QueryError(str(error)) from error


def finite(document: Any) -> Any:
    """Return the document with None for NaN and infinities, which JSON lacks."""
    if isinstance(document, Mapping):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document


def remote_error(error: flight.FlightError) -> LogprobeError:
    """Return the logprobe error inside the server's `error`, or one that quotes `error`."""
    try:
        fields = json.loads(error.extra_info)
        return _ERRORS.get(fields["class"], LogprobeError)(fields["message"])
    except (ValueError, KeyError, TypeError):
        return LogprobeError(f"the service failed: {str(error).splitlines()[0]}")


def refused(error: LogprobeError) -> flight.FlightServerError:
    """Return `error` in the form that `remote_error` decodes at the client."""
    info = json.dumps({"class": type(error).__name__, "message": str(error)})
    return flight.FlightServerError(str(error), extra_info=info.encode())


class _BearerToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Middleware that rejects calls without the token of the data directory."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("wrong or missing token; send the one in the home's service.json")


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server of an `Endpoint`, which listens on `port` from its creation until `shutdown()`."""

    def __init__(
        self, endpoint: Endpoint, *, host: str, port: int, token: str, actions: Mapping[str, Action] | None = None
    ) -> None:
        """Set up the server. `actions`: actions in addition to those of every service."""
        super().__init__(f"grpc://{host}:{port}", middleware={"authorization": _BearerToken(token)})
        self._endpoint = endpoint
        self._actions = {
            "status": Action("state of the service, its jobs and its backlog", lambda _: endpoint.status()),
            "ingest": Action("ingest the spool now", lambda _: endpoint.ingest()),
            "shutdown": Action("finish the current batch and stop", self._shutdown),
            **(actions or {}),
        }

    def _shutdown(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        self._endpoint.shutdown()
        return {}

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a read request."""
        try:
            request = Request.from_ticket(ticket)
            if request.sql is not None:
                table = self._endpoint.query(request, context.is_cancelled)
            else:
                params = request.params if isinstance(request.params, Mapping) else {}
                table = self._endpoint.read(str(request.name), params)
        except LogprobeError as error:
            raise refused(error) from error
        return flight.GeneratorStream(table.schema, _batches(context, table))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:  # noqa: ARG002
        """Perform an action."""
        registered = self._actions.get(action.type)
        if registered is None:
            raise refused(QueryError(f"no action {action.type!r}; choose one of: {', '.join(self._actions)}"))
        try:
            document = registered.run(_body(action))
        except LogprobeError as error:
            raise refused(error) from error
        return iter([encode(finite(document))])

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the actions that `do_action` understands."""
        return [(name, action.words) for name, action in self._actions.items()]


def _body(action: flight.Action) -> Mapping[str, Any]:
    """Return the JSON object in the client's request. Raises `QueryError` for anything else."""
    content = action.body.to_pybytes()
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise QueryError(f"the action {action.type!r} got no JSON object; send one")
    return document


def _batches(context: flight.ServerCallContext, table: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        if context.is_cancelled():  # the reader went away
            return
        yield batch
