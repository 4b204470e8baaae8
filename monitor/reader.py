"""Reader of a data directory, through its running service or else directly from the store's file.

A running service holds the DuckDB file read-write, so no other process can open it. Both ways offer the same read-only
`Reader`.

    with open_reader(home) as reader:
        table = reader.query("SELECT run, count(*) AS sequences FROM sequences GROUP BY run")
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.errors import ServiceUnavailableError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.interruptible import Interruptible, Stop
from logprobe.monitor.service.flight import Parameters, Request, encode, remote_error
from logprobe.monitor.service.status import Ingested, Status

T = TypeVar("T")

# A proxy configured for the internet must not see, or break, calls to this machine.
_DIRECTLY: Final = [("grpc.enable_http_proxy", 0)]
# It ended, ended in the middle of the call, or another one listens there now.
_GONE: Final = (
    flight.FlightUnavailableError,
    flight.FlightCancelledError,
    flight.FlightUnauthenticatedError,
    pa.ArrowNotImplementedError,  # of a server that knows no such call: after a kill, another program may have got the port
)
_QUERY_SECONDS: Final = 60.0
_STATUS_SECONDS: Final = 10.0
_INGEST_SECONDS: Final = 3600.0  # a backlog of hours may have gathered while no service ran


class Reader(ABC):
    """Read-only access to one data directory. May be shared between threads."""

    source: str  # "service" | "file"

    @abstractmethod
    def query(self, sql: str, params: Parameters = None, *, first: int | None = None) -> pa.Table:
        """Return the rows of one read-only statement.

        Args:
            sql: single read-only statement.
            params: list for ``?``, or mapping for ``$name``.
            first: maximum number of rows, reduced to 16 MiB of data. The schema's metadata has `queries.MORE` if rows
                were omitted.

        Raises `QueryError` if the statement is refused or fails, and `ServiceUnavailableError` if the service does not
        answer.
        """

    @abstractmethod
    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of one stored query (of ``monitor/sql``). Raises as `query` does."""

    @abstractmethod
    def status(self) -> Status:
        """Return the status of the service with jobs, backlog and unreadable files, or only ``running`` without a
        service.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection. The reader is unusable afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connect(home: Home | str | PathLike[str]) -> FlightReader:
    """Return a reader through the running service. Raises `ServiceUnavailableError` if none answers."""
    reader = FlightReader(_as_home(home))
    reader.status()
    return reader


def open_reader(home: Home | str | PathLike[str]) -> Reader:
    """Return a reader through the running service, or else directly on the store's file.

    Raises `ServiceUnavailableError` if a service holds the data directory but does not answer, and `StoreError` without
    a service and a store.
    """
    place = _as_home(home)
    try:
        return connect(place)
    except ServiceUnavailableError:
        if place.owner() is not None:
            raise
    return FileReader(place)


def _as_home(home: Home | str | PathLike[str]) -> Home:
    return home if isinstance(home, Home) else Home(home)


class FlightReader(Reader):
    """Reader through the service, which finds the service again after a restart (another port and token)."""

    source = "service"

    def __init__(self, home: Home) -> None:
        """Connect on first use."""
        self._home = home
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def query(self, sql: str, params: Parameters = None, *, first: int | None = None) -> pa.Table:
        """Return the rows of a statement (see `Reader.query`)."""
        return self.ask(Request(sql=sql, params=params, first=first))

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of a stored query (see `Reader.read`)."""
        return self.ask(Request(name=name, params=params))

    def status(self) -> Status:
        """Return the status of the service (see `Reader.status`)."""
        status: Status = self._act("status", _STATUS_SECONDS)
        return status

    def greet(self) -> None:
        """Raise `ServiceUnavailableError` unless the service answers soon. The request is cheap for the service."""
        self._call(lambda to: list(to.client.list_actions(to.options(_STATUS_SECONDS))))

    def ingest(self) -> Ingested:
        """Make the service ingest the spool now. Return its report once readers can see the result."""
        ingested: Ingested = self._act("ingest", _INGEST_SECONDS)
        return ingested

    def shutdown(self) -> None:
        """Request the service to finish the current batch and stop."""
        self._act("shutdown", _STATUS_SECONDS)

    def close(self) -> None:
        """Close the connection (see `Reader.close`)."""
        with self._lock:
            if self._connection is not None:
                self._connection.client.close()
                self._connection = None

    def ask(self, request: Request) -> pa.Table:
        """Return the rows of one request. Raises as `query` does."""
        ticket = request.ticket()
        return self._call(lambda to: to.client.do_get(ticket, to.options(_QUERY_SECONDS)).read_all())

    def act(self, action: str, document: Mapping[str, Any], *, seconds: float | None = None) -> Any:
        """Perform an action of a service's part (see `logprobe.monitor.service.jobs`). Retry once after a broken
        connection.

        `seconds`: time limit, or None for the usual one.

        Raises the action's errors, and `QueryError` for an unknown action.
        """
        return self._act(action, seconds or _STATUS_SECONDS, encode(document))

    def _act(self, action: str, seconds: float, body: bytes = b"") -> Any:
        def call(to: _Connection) -> Any:
            results = list(to.client.do_action(flight.Action(action, body), to.options(seconds)))
            return json.loads(results[0].body.to_pybytes())

        return self._call(call)

    def _call(self, call: Callable[[_Connection], T]) -> T:
        """Run `call`. Retry once on a fresh connection if the service has moved or restarted.

        All requests to the service are idempotent.
        """
        connection = self._connect()
        try:
            return call(connection)
        except _GONE:
            connection = self._connect(instead_of=connection)
        except flight.FlightError as error:
            raise self._translated(error) from None
        try:
            return call(connection)
        except (*_GONE, flight.FlightError) as error:
            raise self._translated(error) from None

    def _connect(self, *, instead_of: _Connection | None = None) -> _Connection:
        with self._lock:
            if self._connection is None or self._connection is instead_of:
                info = self._home.service_info()
                if info is None:
                    raise ServiceUnavailableError(self._absent())
                client = flight.FlightClient((info.host, info.port), generic_options=_DIRECTLY)
                self._connection = _Connection(client, info.token)
            return self._connection

    def _absent(self) -> str:
        """Return the reason why no service is reachable."""
        where = self._home.path
        file = self._home.service_file
        if self._home.owner() is not None and file.exists() and not os.access(file, os.R_OK):
            return f"a service of another user is running for {where}; run this as that user"
        return f"no service is running for {where}; {self._remedy}"

    @property
    def _remedy(self) -> str:
        return f"start one with: logprobe up --home {self._home.path}"

    def _translated(self, error: Exception) -> Exception:
        where = self._home.path
        if isinstance(error, _GONE):
            return ServiceUnavailableError(f"the service of {where} is not responding; {self._remedy}")
        if isinstance(error, flight.FlightTimedOutError):
            return ServiceUnavailableError(f"the service of {where} took too long to answer; ask for fewer rows")
        return remote_error(error)


class _Connection:
    """One Flight client and its credentials. Flight clients may be shared between threads."""

    def __init__(self, client: flight.FlightClient, token: str) -> None:
        self.client = client
        self._headers = [(b"authorization", f"Bearer {token}".encode())]

    def options(self, seconds: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)


class FileReader(Reader):
    """Reader of the store's file. An open reader prevents the start of a service on the data directory."""

    source = "file"

    def __init__(self, home: Home) -> None:
        # They load DuckDB, which readers through a service do without.
        from logprobe.monitor.store.sql import Desk, Limits  # noqa: PLC0415
        from logprobe.monitor.store.store import Store  # noqa: PLC0415

        if not home.database.exists():
            raise StoreError(
                f"{home.path}: nothing is stored here yet; ingest the records with: "
                f"logprobe up --once --home {home.path}"
            )
        self._store = Store.open(home, read_only=True)
        self._calls = Interruptible()
        # The user who waits can press Ctrl-C, and holds the rows in a process of their own.
        self._sql = Desk(self._store, Limits(seconds=None, rows=None))

    def query(self, sql: str, params: Parameters = None, *, first: int | None = None) -> pa.Table:
        """Return the rows of a statement (see `Reader.query`). Ctrl-C stops it."""
        stop, given = Stop(), json.loads(encode(params))
        return self._calls.run(lambda: self._sql.answer(sql, given, first=first, gone=stop.is_set), stop.set)

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of a stored query (see `Reader.read`)."""
        return self._calls.run(lambda: self._store.read(name, **params), self._store.interrupt)

    def status(self) -> Status:
        """Return the status without a service (see `Reader.status`)."""
        return {"running": False}

    def close(self) -> None:
        """Close the file (see `Reader.close`)."""
        self._store.close()
