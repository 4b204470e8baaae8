"""The store, which owns the DuckDB file of a data directory. Other code never gets a connection.

Writes go through `Store.transaction`, one at a time. Reads run concurrently on a snapshot, including users' statements
(`sql.Desk`).

On a fatal error such as a full disk, DuckDB invalidates its whole instance. Committed data survives. The store then
reopens the file and raises `StoreError` for the lost transaction, so that its caller can retry later.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import duckdb
import pyarrow as pa
from duckdb.func import PythonUDFType

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import QueryError, StoreDamagedError, StoreError
from logprobe.collectors.files import is_gone
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store import raw_places, schema, views
from logprobe.monitor.store.budgets import GIB, MIB, store_memory
from logprobe.monitor.store.courtesy import Courtesy
from logprobe.monitor.store.kept import Kept
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.raw_damage import SAME_BYTES, Damaged, said_of
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_rows, write_empty_files
from logprobe.monitor.store.readers import Readers
from logprobe.monitor.store.said import Said
from logprobe.monitor.store.schema import rollback
from logprobe.monitor.store.sql_files import statement

if TYPE_CHECKING:
    from logprobe.monitor.store.archiving import Archiving

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any] | None

# DuckDB 1.5 can read the file too, at no cost; the default of DuckDB 2 shuts it out. On the disk it may spill 8 GiB
# instead of 90 % of what is free.
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "storage_compatibility_version": "v1.5.0",
    "checkpoint_threshold": "128MiB",
    "max_temp_directory_size": f"{8 * GIB // MIB}MiB",
}
# In the middle of a result DuckDB's errors arrive as Arrow's.
_FAILURES: Final = (duckdb.Error, pa.ArrowException, OSError, MemoryError)

_READ_ATTEMPTS: Final = 5
_SPOOL_ATTEMPTS: Final = 100  # until the archive knows what the index has: some milliseconds, more on a busy machine
_SPOOL_PAUSE: Final = 0.01
_WATCH_SECONDS: Final = 0.1
_LOCKED_SECONDS: Final = 20.0
LOCKED: Final = "set lock"  # what DuckDB says of a file that another process has open
_DAMAGE: Final = (
    "replaying WAL",
    "Corrupt",
    "not a valid DuckDB database",
)  # what DuckDB says then, whatever the class

# DuckDB would rather have relations asked for Arrow. Those plan a statement twice, which takes longer than all that
# most of ours do.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)


class Store:
    """All reads and writes of one store. Safe to share between threads, each of which gets its own cursors."""

    def __init__(self, home: Home, *, read_only: bool, time: Time = TIME) -> None:
        """Create a closed store. Callers use `Store.open`."""
        self.time = time  # of all that is done with the store
        self.home = home
        self.read_only = read_only
        self._memory = store_memory()
        self._writing = threading.RLock()  # one writer at a time: DuckDB would make the second one fail, not wait
        self._state = threading.Lock()
        self._local = threading.local()
        self.courtesy = Courtesy()
        self.written = 0  # transactions that have ended, but for those that say that they are no news
        self.recorded = 0  # of those, the ones that may have changed what is known of segments, sequences and steps
        self.kept = Kept(self, lambda: self.written)
        self.kept_records = Kept(self, lambda: self.recorded)
        self.rewritten = Rewritten()
        self._generation = 0
        self._cursors: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
        self._readers = Readers()
        self.damaged = Damaged(home)
        if not read_only:
            self.archive = self._archiving()
        self.said = Said(home, schema.VERSION, time)
        self._parsed: dict[tuple[str, str], duckdb.Statement] = {}
        self._closed = False
        self._connection: duckdb.DuckDBPyConnection | None = self._connect(first=True)

    def _archiving(self) -> Archiving:
        from logprobe.monitor.store.archiving import Archiving  # noqa: PLC0415 - a reader does without it

        return Archiving(self, self.home, self._readers, self.time)

    @classmethod
    def open(cls, home: Home, *, read_only: bool = False, time: Time = TIME) -> Self:
        """Open the store of a data directory. Create it unless `read_only`.

        Args:
            home: data directory, whose lock the caller holds.
            read_only: true to create and change nothing. No service may be running.
            time: clocks, except for waits on threads or processes, which use the machine's clock.

        Raises:
            StoreError: the file is missing (`read_only`), in use, damaged, or has another schema; or (`read_only`) its
                views are those of other code.
        """
        return cls(home, read_only=read_only, time=time)

    @contextmanager
    def transaction(self, *, news: bool = True, records: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor inside one transaction. Commit at the end of the block, or roll back if the block raises.

        The process has one transaction at a time, without nesting. Errors of DuckDB become `StoreError` after a
        rollback. `news`: true if it writes tables that jobs read, see `kept`. `records`: false if it changes nothing
        that is known of segments, sequences and steps, see `kept_records`.
        """
        if getattr(self._local, "writing", False):
            raise StoreError("this thread already has an open transaction; use its cursor")
        with self._writing:
            cursor = self._cursor("writer")
            self._local.writing = True
            try:
                cursor.execute("BEGIN TRANSACTION")
                yield cursor
                self.said.keep()
                cursor.execute("COMMIT")
            except duckdb.Error as error:
                self._abandon(cursor)
                raise StoreError(
                    f"{self.home.database}: write failed and was rolled back ({one_line(error)}); retry it"
                ) from error
            except BaseException:
                self._abandon(cursor)
                raise
            finally:
                self.said.drop()
                self._local.writing = False
                self.written += news  # last: what is asked for before is asked for again
                self.recorded += news and records
        self._rest()

    def query(self, sql: str, params: Parameters = None) -> pa.Table:
        """Return the rows of an internal statement on one snapshot. Users' statements go to `sql.Desk`.

        Args:
            sql: one read-only statement.
            params: sequence for ``?``, or mapping for ``$name``.

        Raises:
            QueryError: the statement failed. The message is one line.
            StoreError: the store is unusable.
        """
        return self.read_watched(sql, lambda cursor: _fetch(cursor, sql, params))

    def read_watched(
        self,
        sql: str,
        work: Callable[[duckdb.DuckDBPyConnection], T],
        ended: Callable[[], str | None] | None = None,
    ) -> T:
        """Run `work`, which executes `sql`, with a separate cursor in a read-only transaction.

        Interrupt it once `ended`, called ten times a second by another thread, returns a reason. Raises as `query`
        does, and `QueryError` with that reason.
        """
        if not raw_places.reads_tokens(sql):
            return self._read(work, ended)
        self.bring_tokens()

        def with_files(cursor: duckdb.DuckDBPyConnection) -> T:
            views.place_files(cursor, self.home)
            return work(cursor)

        return self._read(with_files, ended)

    def is_short_of_memory(self) -> bool:
        """Return whether running statements hold half of DuckDB's memory in data that cannot be spilled.

        A transaction might then find no memory. For `sql.Desk`.
        """
        held = "SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory() WHERE tag = 'ALLOCATOR'"
        try:
            return int(self._cursor("watcher").execute(held).fetchall()[0][0]) > self._memory // 2
        except (duckdb.Error, StoreError):
            return False  # the store is closed, or opened again: the statement hears of it

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of the stored statement ``sql/<name>.sql``. Raises as `query` does.

        `params` fill its ``$name`` places. A statement may join the Arrow table `incoming`. A statement that reads raw
        tokens of a run receives the list of their files, unless `params` has it. A statement that names
        ``spooled_training`` and ``spooled_rollout`` receives the unmerged rows of the spool there. For any other, these
        rows are merged first.
        """
        sql = statement(name)
        wanted = raw_places.wanted(sql, params)

        attempt, known = 0, set[Path]()
        spooled: Mapping[str, pa.Table] = {}

        def work(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
            files = raw_places.files_of(cursor, self.home, wanted, params, self.damaged) if wanted else {}
            given = {**params, **files}
            if spooled and not self.read_only and attempt < _SPOOL_ATTEMPTS:
                self._require_spooled(cursor, params["run"], spooled, known)
            with _registered(cursor, incoming, **spooled):
                if wanted and not spooled:  # as a stream: raw tokens may be many
                    return _fetch(cursor, sql, given)
                return cursor.execute(self._statement(cursor, name), given or None).to_arrow_table()

        while True:
            if wanted:
                spooled = self._spooled(sql, params["run"])
            try:
                return self._read(work)
            except _SpoolError:
                attempt += 1

    def _require_spooled(
        self, cursor: duckdb.DuckDBPyConnection, run: str, spooled: Mapping[str, pa.Table], known: set[Path]
    ) -> None:
        """Raise `_SpoolError` if rows are missing in `spooled` of a segment that ingest has committed since.

        `known`: segments that the archive knew at an earlier attempt, so that `spooled` could have them; extended here.
        They cannot be read and are left out, as are those whose file is gone.
        """
        waiting = cursor.execute(self._statement(cursor, "archive_waiting"), {"run": run}).fetchall()
        has = {segment for table in spooled.values() for segment in table["segment_id"].unique().to_pylist()}
        missing = [
            path for place, segment in waiting if segment not in has and not is_gone(path := self.home.path / place)
        ]
        new = [path for path in missing if path not in known]
        known.update(path for path in new if self.archive.waits(str(path)))
        if new:
            time.sleep(_SPOOL_PAUSE)
            raise _SpoolError(f"{new[0]} was ingested just now; retry the statement")

    def lists(self, kind: str, names: Sequence[str], keys: pa.Table) -> pa.Table:
        """Return token lists of records, see `token_lists.lists`."""
        from logprobe.monitor.store.token_lists import lists  # noqa: PLC0415 - a reader does without it

        return lists(self, kind, names, keys)

    def execute(
        self,
        cursor: duckdb.DuckDBPyConnection,
        name: str,
        incoming: pa.Table | None = None,
        /,
        *,
        table: str = "",
        **params: Any,
    ) -> None:
        """Run the stored statement ``sql/<name>.sql`` inside a `transaction`.

        Parameters are those of `read`. `table`: value of ``{table}`` in the statement.
        """
        with _registered(cursor, incoming):
            cursor.execute(self._statement(cursor, name, table), params or None)
        self.said.note(name, params, incoming)

    def read_within(
        self, cursor: duckdb.DuckDBPyConnection, name: str, incoming: pa.Table | None = None, /, **params: Any
    ) -> pa.Table:
        """Return the rows of a stored statement inside a `transaction`, including its writes. Parameters as for
        `read`."""
        with _registered(cursor, incoming):
            return cursor.execute(self._statement(cursor, name), params or None).to_arrow_table()

    def _statement(self, cursor: duckdb.DuckDBPyConnection, name: str, table: str = "") -> duckdb.Statement:
        """Return a stored statement. Parse it at the first use."""
        parsed = self._parsed.get((name, table))
        if parsed is None:
            (parsed,) = cursor.extract_statements(statement(name).replace("{table}", table))
            self._parsed[name, table] = parsed
        return parsed

    @contextmanager
    def holding_files(self) -> Iterator[None]:
        """Delay the removal of raw files until the end of the block."""
        with self._readers.reading():
            yield

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Block writes of other threads during the block, so that file and log can be copied."""
        with self._writing:
            before = getattr(self._local, "standing", False)
            self._local.standing = True
            try:
                yield
            finally:
                self._local.standing = before
        self.courtesy.rest()

    def bring_tokens(self, run: str | None = None) -> None:
        """Merge all tokens of a run, or of all runs, into files that statements read.

        Raises `StoreError`, or `QueryError` if the store is read-only and a killed service left tokens in the spool.
        """
        if not self.read_only:
            self.archive.bring_all() if run is None else self.archive.bring(run)
            return
        waiting = queries.archive_waiting(self, run=run)["raw_file"].to_pylist()
        if count := sum((self.home.path / place).exists() for place in waiting):
            raise QueryError(
                f"tokens of {count:,} segments are still in the spool of {self.home.path}; merge them with: "
                "logprobe up --once"
            )

    def _spooled(self, sql: str, run: str) -> dict[str, pa.Table]:
        """Return the unmerged rows that a statement reads, by parameter name. If it names none, merge them."""
        if not raw_places.reads_spool(sql):
            self.bring_tokens(run)
            return {}
        if self.read_only:
            self.bring_tokens(run)
            rows = {kind: empty_rows(kind) for kind in RAW_KINDS}
        else:
            rows = self.archive.spooled(run)
        return {f"spooled_{kind}": table for kind, table in rows.items()}

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the database file. Return False if DuckDB refuses because of concurrent reads.

        Raises `StoreError`.
        """
        with self._writing:
            cursor = self._cursor("writer")
            try:
                cursor.execute("CHECKPOINT")
            except duckdb.TransactionException:
                return False
            except duckdb.Error as error:
                self._recover(cursor)
                raise StoreError(
                    f"{self.home.database}: checkpoint failed ({one_line(error)}); check disk space"
                ) from error
            return True

    def interrupt(self) -> None:
        """Interrupt all running reads, which then raise `QueryError`. No other thread may be writing."""
        for cursor in list(self._cursors):
            cursor.interrupt()

    def close(self) -> None:
        """Close the file. Running reads fail, and committed data is safe."""
        if not self.read_only:
            if len(self.archive):
                with suppress(StoreError, QueryError):  # the next start finds what waits, and goes on
                    self.archive.bring_all()
            self.archive.close()
        with self._writing, self._state:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, work: Callable[[duckdb.DuckDBPyConnection], T], ended: Callable[[], str | None] | None = None) -> T:
        """Run `work` in a read-only transaction. Retry on `_MovedError`."""
        try:
            with self._readers.reading():
                for _ in range(_READ_ATTEMPTS - 1):
                    with suppress(_MovedError):
                        return self._attempt(work, ended)
                return self._attempt(work, ended)
        finally:
            self._rest()

    def _rest(self) -> None:
        """Pause for other threads, unless this thread writes or blocks writers."""
        if not getattr(self._local, "writing", False) and not getattr(self._local, "standing", False):
            self.courtesy.rest()

    def _attempt(self, work: Callable[[duckdb.DuckDBPyConnection], T], ended: Callable[[], str | None] | None) -> T:
        cursor = self._cursor("reader")
        with _ended_by(cursor, ended) as why:
            try:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                return work(cursor)
            except _FAILURES as error:
                if why:
                    raise QueryError(why[0]) from None
                gone = isinstance(error, duckdb.IOException | OSError) and "No such file" in str(error)
                if self._recover(cursor) or gone:
                    raise _MovedError(one_line(error)) from None
                raise QueryError(said_of(error, self.home.raw, self.damaged)) from None
            finally:
                rollback(cursor)

    def _cursor(self, role: str) -> duckdb.DuckDBPyConnection:
        """Return this thread's cursor for `role`. A separate reader keeps reads out of an open transaction."""
        with self._state:
            kept: tuple[int, duckdb.DuckDBPyConnection] | None = getattr(self._local, role, None)
            if kept is not None and kept[0] == self._generation:
                return kept[1]
            cursor = self._new_cursor()
            setattr(self._local, role, (self._generation, cursor))
            return cursor

    def _new_cursor(self) -> duckdb.DuckDBPyConnection:
        if self._closed:
            raise StoreError(f"{self.home.database} is closed; open the store again")
        if self._connection is None:  # an earlier attempt to reopen it has failed
            self._connection = self._connect(first=False)
        cursor = self._connection.cursor()
        views.place(cursor, self.home)
        self._cursors.add(cursor)
        return cursor

    def _abandon(self, cursor: duckdb.DuckDBPyConnection) -> None:
        rollback(cursor)
        self._recover(cursor)

    def _recover(self, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Reopen the file if a fatal error has invalidated the instance. Return whether `cursor` became unusable."""
        with self._state:
            if cursor not in self._cursors:
                return True  # another thread has been faster
            if _usable(cursor):
                return False
            self._close()
            with suppress(StoreError):  # the next use tries again, and says why it cannot
                self._connection = self._connect(first=False)
            return True

    def _connect(self, *, first: bool) -> duckdb.DuckDBPyConnection:
        connection = self._connect_file()
        try:
            self._prepare(connection, first=first)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_file(self) -> duckdb.DuckDBPyConnection:
        path = self.home.database
        if self.read_only and not path.exists():
            raise StoreError(f"{path} does not exist; start `logprobe up` or run `logprobe up --once` first")
        try:
            if not self.read_only:
                self.home.make()
                write_empty_files(self.home)
            return self._once_unlocked()
        except (duckdb.Error, OSError) as error:
            message = one_line(error)
            if any(phrase in message for phrase in _DAMAGE):
                raise StoreDamagedError(
                    f"{path} or its log is damaged ({message}). Move it and "
                    f"{path.name}.wal away and start again; the service rebuilds it from the archive"
                ) from error
            raise StoreError(
                f"cannot open {path}: {message}; close other programs that use it, or check its permissions"
            ) from error

    def _once_unlocked(self) -> duckdb.DuckDBPyConnection:
        """Return the opened file. Wait for a command that reads it at the moment."""
        deadline = time.monotonic() + (0.0 if self.read_only else _LOCKED_SECONDS)
        while True:
            try:
                return duckdb.connect(
                    str(self.home.database),
                    read_only=self.read_only,
                    config=_SETTINGS | {"memory_limit": f"{self._memory // MIB}MiB"},
                )
            except duckdb.IOException as error:
                if LOCKED not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_WATCH_SECONDS)

    def _prepare(self, connection: duckdb.DuckDBPyConnection, *, first: bool) -> None:
        try:
            _register_comparison(connection, self.home, self.damaged)
            if self.read_only:
                schema.check(connection, self.home)
                if not views.are_current(connection):
                    raise StoreError(
                        f"{self.home.database} was last served by other code, which a reader cannot update. Start its "
                        f"service once: logprobe up --home {self.home.path}"
                    )
            elif first:  # later, on a full disk, nothing needs to be written
                schema.create(connection, self.home, self.said)
                views.place(connection, self.home)
                views.create(connection)
            _confine(connection, self.home)
        except duckdb.Error as error:
            raise StoreError(
                f"cannot prepare {self.home.database} ({one_line(error)}); check disk space and start again"
            ) from error

    def _close(self) -> None:
        """Close all cursors, since the instance and its file are released only with the last one."""
        self._generation += 1
        for cursor in (*self._cursors, self._connection):
            if cursor is not None:
                with suppress(duckdb.Error):  # in use by another thread, which will find out by itself
                    cursor.close()
        self._cursors.clear()
        self._connection = None


class Rewritten:
    """Runs whose records were changed outside a tick, so that their memory is stale."""

    def __init__(self) -> None:
        self._runs: set[str] = set()

    def note(self, runs: Iterable[str]) -> None:
        """Add changed runs within the transaction that changes them."""
        self._runs.update(runs)

    def take(self) -> set[str]:
        """Return and remove the added runs, while no thread writes."""
        runs, self._runs = self._runs, set()
        return runs


class _MovedError(QueryError):
    """Transient failure of a read that can be retried: the store was reopened, or somebody removed a raw file."""


class _SpoolError(QueryError):
    """Failure of a read because of a segment that was ingested during it."""


@contextmanager
def _ended_by(cursor: duckdb.DuckDBPyConnection, ended: Callable[[], str | None] | None) -> Iterator[list[str]]:
    """Interrupt the statement on `cursor` once `ended` returns a reason. The yielded list then contains the reason."""
    why: list[str] = []
    if ended is None:
        yield why
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            reason = why[0] if why else ended()
            if reason is not None:  # again and again: a statement that has not begun does not hear the first time
                why[:] = [reason]
                cursor.interrupt()

    watcher = threading.Thread(target=watch, name="logprobe-deadline", daemon=True)
    watcher.start()
    try:
        yield why
    finally:
        done.set()
        watcher.join()  # the next statement on this cursor must not be the one that is interrupted


@contextmanager
def _registered(cursor: duckdb.DuckDBPyConnection, incoming: pa.Table | None, **others: pa.Table) -> Iterator[None]:
    tables = others if incoming is None else {"incoming": incoming, **others}
    for name, table in tables.items():
        cursor.register(name, table)
    yield
    for name in tables:
        cursor.unregister(name)  # not after a failure: it would hide the reason behind "transaction is aborted"


def _fetch(cursor: duckdb.DuckDBPyConnection, sql: str, params: Parameters) -> pa.Table:
    relation = cursor.sql(sql, params=params) if params else cursor.sql(sql)
    with relation.to_arrow_reader() as reader:  # an open result would keep the cursor from being used again
        return reader.read_all()


def _register_comparison(connection: duckdb.DuckDBPyConnection, home: Home, damaged: Damaged) -> None:
    """Make statements fail on corrupt raw files.

    The views of raw records check each file that a statement needs.
    """

    def same_bytes(files: pa.ChunkedArray) -> pa.Array:
        for file in files.unique().to_pylist():
            if file.startswith(f"{home.raw}/") and (fault := damaged.fault(Path(file))):
                raise ValueError(f"{file}: {fault}")
        return pa.repeat(True, len(files))

    # DuckDB asks a function without side effects about files that a statement does not need.
    connection.create_function(
        SAME_BYTES, same_bytes, ["VARCHAR"], "BOOLEAN", type=PythonUDFType.ARROW, side_effects=True
    )


def _confine(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Confine SQL to files in ``archive/``, without Python variables and settings."""
    # DuckDB compares a pattern with the folders as text, so a home with "[" in its path needs its pattern's spelling,
    # too.
    folders = sorted({str(home.raw), raw_places.escape_glob(str(home.raw)), str(home.raw.resolve())})
    allowed = ", ".join(map(raw_places.literal, folders))
    for setting in (
        "GLOBAL TimeZone = 'UTC'",
        f"allowed_directories = [{allowed}]",
        "python_enable_replacements = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _usable(cursor: duckdb.DuckDBPyConnection) -> bool:
    try:
        cursor.execute("SELECT 1").fetchall()
    except duckdb.FatalException:
        return False
    except duckdb.Error as error:
        return "invalidated" not in str(error)
    return True
