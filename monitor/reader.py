"""Reading a home: through its service when one runs, straight from the store's file when none does.

The service holds the DuckDB file read-write, and no other process can open it meanwhile; so while a service runs it is
the only way in. Both ways offer the same read-only `Reader`.

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
    """Read-only access to one home. May be shared between threads."""

    source: str  # "service" | "file"

    @abstractmethod
    def query(
        self, sql: str, params: Parameters = None, *, first: int | None = None, label: str | None = None
    ) -> pa.Table:
        """Return the rows of one read-only statement.

        Args:
            sql: one statement.
            params: a list for ``?``, a mapping for ``$name``.
            first: only so many rows, fewer where those are larger than 16 MiB; the schema's metadata has `queries.MORE`
                when there are others.
            label: by which `stop` knows it.

        Raises `QueryError` when the statement is refused or fails, `ServiceUnavailableError` when the service does not
        answer.
        """

    @abstractmethod
    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of one stored query (of ``monitor/sql``). Raises as `query` does."""

    @abstractmethod
    def status(self) -> Status:
        """Return the service's account of itself: jobs, backlog, unreadable files. Without a service only
        ``running``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection; the reader is of no use afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connect(home: Home | str | PathLike[str]) -> FlightReader:
    """Return a reader through the running service. Raises `ServiceUnavailableError` when none answers."""
    reader = FlightReader(_as_home(home))
    reader.status()
    return reader


def open_reader(home: Home | str | PathLike[str]) -> Reader:
    """Return a reader through the service if one runs, else straight from the store's file.

    Raises `ServiceUnavailableError` when a service holds the home but does not answer, `StoreError` when there is
    neither a service nor a store.
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
    """Reads through the service; finds it again after a restart (another port, another token)."""

    source = "service"

    def __init__(self, home: Home) -> None:
        """Connect on first use."""
        self._home = home
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def query(
        self, sql: str, params: Parameters = None, *, first: int | None = None, label: str | None = None
    ) -> pa.Table:
        """See `Reader.query`."""
        return self.ask(Request(sql=sql, params=params, first=first, label=label))

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """See `Reader.read`."""
        return self.ask(Request(name=name, params=params))

    def status(self) -> Status:
        """See `Reader.status`."""
        status: Status = self._act("status", _STATUS_SECONDS)
        return status

    def greet(self) -> None:
        """Raise `ServiceUnavailableError` unless the service answers soon; this costs it nothing."""
        self._call(lambda to: list(to.client.list_actions(to.options(_STATUS_SECONDS))))

    def stop(self, label: str) -> bool:
        """End the queries that run under `label`: a thread that waits for one gets a `QueryError`. Return whether there
        was one."""
        return bool(self.act("stop_query", {"label": label})["stopped"])

    def ingest(self) -> Ingested:
        """Have the service ingest the spool now; return its report once that is visible to readers."""
        ingested: Ingested = self._act("ingest", _INGEST_SECONDS)
        return ingested

    def shutdown(self) -> None:
        """Ask the service to finish the current batch and stop."""
        self._act("shutdown", _STATUS_SECONDS)

    def close(self) -> None:
        """See `Reader.close`."""
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
        """Run `call`; once more on a fresh connection when the service is not where, or who, it was.

        Everything asked of the service is safe to ask twice.
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
        """Say why no service can be asked."""
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
    """Reads the store's file directly. No service may start on the home while it is open."""

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

    def query(
        self,
        sql: str,
        params: Parameters = None,
        *,
        first: int | None = None,
        label: str | None = None,  # noqa: ARG002
    ) -> pa.Table:
        """See `Reader.query`. Only Ctrl-C can stop it, whatever its `label`."""
        stop, given = Stop(), json.loads(encode(params))
        return self._calls.run(lambda: self._sql.answer(sql, given, first=first, stop=stop), stop.set)

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """See `Reader.read`."""
        return self._calls.run(lambda: self._store.read(name, **params), self._store.interrupt)

    def status(self) -> Status:
        """See `Reader.status`."""
        return {"running": False}

    def close(self) -> None:
        """See `Reader.close`."""
        self._store.close()
