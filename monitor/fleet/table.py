"""Which service has which run: a folder with `fleet.yaml`, which people write, and `runs.json`, the table, which
commands keep.

    services:
      a: {home: /data/a, address: "grpc+tls://monitor-a:7070"}
      b: {home: /data/b, address: "grpc+tls://monitor-b:7070"}

A run is assigned once. A move is noted in the table before it begins and until it has ended, so that it can be
repeated, or undone, by anybody. Services do not need the table: what has left a home is in that home's own ``moved/``.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import TypeAdapter

from logprobe.collectors.errors import ConfigurationError, LogprobeError, StoreError
from logprobe.collectors.files import replace_file
from logprobe.collectors.locks import FileLock
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor import limits, located, queries
from logprobe.monitor.fleet import handover
from logprobe.monitor.fleet.moved import MovedRuns
from logprobe.monitor.home import Home, utc_now
from logprobe.monitor.reader import open_reader
from logprobe.monitor.settings_file import Settings, checked

FILE: Final = "fleet.yaml"
TABLE: Final = "runs.json"
_LOCK: Final = "runs.lock"
_LOCK_SECONDS: Final = 30.0
_PAUSE: Final = 0.05


class Service(Settings):
    """One service. `home`: as a folder that all machines of the fleet see; `address`: where relays reach it."""

    home: str
    address: str | None = None


class _File(Settings):
    services: dict[str, Service]


@dataclass(frozen=True, slots=True)
class Row:
    """Of one run. `to` and `move`: where it is being moved and the move's id; None: nowhere."""

    service: str
    since: str
    to: str | None = None
    move: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A service, as one look at its home found it. `problem`: why it gets no run; None: it runs and answers.

    `runs`: those with records or waiting segments; None: unknown, the home cannot be read. `moved`: those it has handed
    over.
    """

    problem: str | None
    runs: AbstractSet[str] | None = None
    moved: AbstractSet[str] = frozenset()
    live: int = 0
    waiting: int = 0


class Fleet:
    """Of one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigurationError` without a usable `fleet.yaml`."""
        self.folder = folder
        file = folder / FILE
        text = limits.settings_text(file)
        if text is None:
            raise ConfigurationError(f"{file} does not exist; docs/scaling.md says what is in it")
        table = located.parse(text, str(file))
        self.services: Mapping[str, Service] = checked(table, "fleet", TypeAdapter(_File)).services

    def home(self, name: str) -> Home:
        """Of a service. Raises `ConfigurationError` when there is no such service, or its home cannot be seen from
        here."""
        if name not in self.services:
            raise ConfigurationError(
                f"no service {name!r} in {self.folder / FILE}; there are {', '.join(self.services) or 'none'}"
            )
        home = Home(self.services[name].home)
        if not home.database.exists():
            raise StoreError(f"{home.path}, the home of service {name!r}, has no store that can be seen from here")
        return home

    def rows(self) -> dict[str, Row]:
        """By run. Raises `ConfigurationError` when the table cannot be read: nothing is assigned or moved then."""
        file = self.folder / TABLE
        try:
            document = json.loads(file.read_bytes())
            return {str(run): Row(**row) for run, row in document["runs"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{file} is not a table of runs ({error}); put a copy of it back") from error

    @contextmanager
    def changing(self) -> Iterator[dict[str, Row]]:
        """The rows, for one process at a time; what they are at the end is written durably. Raises `ConfigurationError`
        or `OSError`."""
        lock, deadline = FileLock(self.folder / _LOCK), time.monotonic() + _LOCK_SECONDS
        while not lock.take():
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{self.folder / TABLE} is being changed by another command")
            time.sleep(_PAUSE)
        with lock:
            rows = self.rows()
            before = dict(rows)
            yield rows
            if rows != before:
                document = {"runs": {run: asdict(row) for run, row in sorted(rows.items())}}
                replace_file(self.folder / TABLE, json.dumps(document, indent=1).encode(), mode=0o644)

    def standings(self, live: Callable[[pa.Table], int] = lambda _: 0) -> dict[str, Standing]:
        """Every service as it is now; each home is opened once. `live`: how many of the rows of `app_runs` are live
        runs."""
        return {name: self._look(name, live) for name in self.services}

    def _look(self, name: str, live: Callable[[pa.Table], int]) -> Standing:
        try:
            home = self.home(name)
            with open_reader(home) as reader:
                rows, running = queries.app_runs(reader), bool(reader.status().get("running", True))
            waiting = [run_name(path.parent.parent.name) for path in home.spool.glob("*/*/[!.]*.arrow")]
            moved = MovedRuns(home).all().keys()
        except (LogprobeError, OSError) as error:
            return Standing(str(error))
        runs = {*map(str, rows["run"].to_pylist()), *waiting} - moved
        return Standing(
            None if running else "no service runs here: nothing is ingested", runs, moved, live(rows), len(waiting)
        )

    def holder(self, run: str, standings: Mapping[str, Standing]) -> str | None:
        """The service that has records of a run; None: none of them.

        Raises `ConfigurationError` when several have, or one that cannot be read may have: then it is not known.
        """
        holders = [name for name, standing in standings.items() if standing.runs is not None and run in standing.runs]
        if len(holders) > 1:
            raise ConfigurationError(
                f"run {run!r} has records at {' and at '.join(holders)}: which of them are one run, only you know"
            )
        unread = {name: standing.problem for name, standing in standings.items() if standing.runs is None}
        if not holders and unread:
            reasons = "; ".join(f"{name}: {problem}" for name, problem in unread.items())
            raise ConfigurationError(
                f"which service has run {run!r} is unknown: no table names it, and not every service can be read "
                f"({reasons}); "
                f"bring it back, or take it out of {self.folder / FILE} if its home is lost for good"
            )
        handed = [name for name, standing in standings.items() if run in standing.moved]
        if not holders and handed:
            raise ConfigurationError(
                f"run {run!r} was handed over by {' and '.join(handed)}, and no service has records of it: it was "
                "deleted since, "
                f"or {self.folder / TABLE}, which would say where it is on its way to, was lost"
            )
        return holders[0] if holders else None

    def assign(self, run: str, standings: Mapping[str, Standing]) -> str:
        """The service of a run; a new one gets that with the least load, and it stays. `standings`: of all services.

        Raises `ConfigurationError` when none answers, and as `holder` and `changing` do.
        """
        with self.changing() as rows:
            if run not in rows:
                rows[run] = Row(self.holder(run, standings) or self.least(run, standings, rows), utc_now())
            return rows[run].service

    def least(self, run: str, standings: Mapping[str, Standing], rows: Mapping[str, Row]) -> str:
        """The service with the least load; of several, by the run's name. Runs of the table that no home has yet count,
        too."""
        usable = {name: standing for name, standing in standings.items() if standing.problem is None}
        if not usable:
            raise ConfigurationError(f"no service of {self.folder / FILE} answers; `logprobe fleet` says why")
        loads = {
            name: standing.live
            + sum(row.service == name and assigned not in (standing.runs or ()) for assigned, row in rows.items())
            for name, standing in usable.items()
        }
        return min(loads, key=lambda name: (loads[name], zlib.crc32(f"{run}\0{name}".encode())))

    def move(self, run: str, to: str, author: str) -> dict[str, Any]:
        """Moves a run, or ends a move that was interrupted; → ``{"run", "from", "to", "rows", "files"}``, None where
        nothing was to do.

        Raises `ConfigurationError`, or what one of the two homes raises; the command can then be repeated, or undone.
        """
        self.home(to)
        row = self._begin(run, to)
        if row.move is None:
            return {"run": run, "from": to, "to": to, "rows": None, "files": None}
        source, target = self.home(row.service), self.home(to)
        asked = {"run": run, "move": row.move, "to": to, "home": str(target.path), "author": author}
        packed = handover.perform(source, handover.PACK, asked)
        proven: dict[str, Any] = {"rows": None, "files": None}
        if not packed["settled"]:
            proven = handover.perform(target, handover.UNPACK, {**asked, "package": packed["package"]})
            if proven["sha256"] != packed["sha256"]:
                raise StoreError(
                    f"{to} has proven another package of {run!r} than {row.service} made; both stay as they are"
                )
            handover.perform(source, handover.SETTLE, {**asked, "sha256": proven["sha256"]})
        handover.perform(source, handover.FORWARD, {})
        with self.changing() as rows:
            rows[run] = Row(to, utc_now())
        return {"run": run, "from": row.service, "to": to, "rows": proven["rows"], "files": proven["files"]}

    def _begin(self, run: str, to: str) -> Row:
        """Notes a move, unless it has begun already; without a move: the run is there."""
        noted = self.rows().get(run)
        holder = noted.service if noted else self.holder(run, self.standings())
        if holder is None:
            raise ConfigurationError(
                f"no run {run!r} at any service of {self.folder / FILE}; `logprobe runs` lists them"
            )
        with self.changing() as rows:
            row = rows.setdefault(run, Row(holder, utc_now()))
            if row.to not in {None, to}:
                raise ConfigurationError(
                    f"run {run!r} is being moved from {row.service} to {row.to}; repeat that move, or: logprobe fleet "
                    f"undo {run}"
                )
            if row.to is None and row.service != to:
                rows[run] = replace(row, to=to, move=secrets.token_hex(8))
            return rows[run]

    def undo(self, run: str, author: str) -> str:
        """Takes back a move that was interrupted before the run had arrived; → the service that has it.

        Raises `ConfigurationError` when it has arrived, or none was begun, and what one of the two homes raises.
        """
        row = self.rows().get(run)
        if row is None or row.move is None or row.to is None:
            raise ConfigurationError(f"run {run!r} is not being moved")
        asked = {"run": run, "move": row.move, "author": author}
        if handover.perform(self.home(row.to), handover.REFUSE, asked)["arrived"]:
            raise ConfigurationError(
                f"run {run!r} has arrived at {row.to}: end the move first: logprobe fleet move {run} {row.to}"
            )
        handover.perform(self.home(row.service), handover.TAKE_BACK, asked)
        with self.changing() as rows:
            rows[run] = Row(row.service, utc_now())
        return row.service

    def takeover(self, lost: str, standings: Mapping[str, Standing], author: str) -> Iterator[dict[str, Any]]:
        """Moves every run of a service whose process has ended to the others; → what `move` says of each.

        `standings`: of all services. Raises as `move` does; `ConfigurationError` while it runs, `StoreError` when its
        home cannot be read.
        """
        home = self.home(lost)
        if (owner := home.owner()) is not None:
            raise ConfigurationError(
                f"service {lost!r} runs ({owner}); stop it first, or move single runs: logprobe fleet move"
            )
        there, others = standings[lost].runs, {name: standing for name, standing in standings.items() if name != lost}
        if there is None:
            raise StoreError(f"{home.path}, the home of service {lost!r}: {standings[lost].problem}")
        for run in sorted(there | {run for run, row in self.rows().items() if lost in {row.service, row.to}}):
            yield self._taken_over(run, lost, there, others, author)
        handover.perform(home, handover.FORWARD, {})

    def _taken_over(
        self, run: str, lost: str, there: AbstractSet[str], others: Mapping[str, Standing], author: str
    ) -> dict[str, Any]:
        row = self.rows().get(run)
        if row is not None and row.to is not None:
            done = self.move(run, row.to, author)
            if row.to != lost:
                return done
        elif run in there:
            with self.changing() as rows:
                rows.setdefault(run, Row(lost, utc_now()))
        else:  # assigned, and nothing has come yet
            with self.changing() as rows:
                rows[run] = Row(self.least(run, others, rows), utc_now())
                return {"run": run, "from": lost, "to": rows[run].service, "rows": 0, "files": 0}
        return self.move(run, self.least(run, others, self.rows()), author)
