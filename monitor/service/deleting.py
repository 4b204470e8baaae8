"""Deletion of runs on users' requests, with later removal of remaining data, as a part of the service.

See `store.tombstone` for the order of removal. Deleting a run during its recording requires force. The newest sign of
the run in the store, in the spool or from a shipping node decides. A closed collector has ended. An open one counts
until it has been silent for long. An import is not a collector and counts by the time of its records.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict

from logprobe.collectors.errors import ConfigurationError, SegmentError, StoreError
from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir
from logprobe.monitor import queries
from logprobe.monitor.exporters.loggers import wandb_id
from logprobe.monitor.home import Home
from logprobe.monitor.liveness import ago, lost_after
from logprobe.monitor.plain_text import file_name
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.store.store import Store
from logprobe.monitor.store.tombstone import Rest, Tombstones

DELETE: Final = "run.delete"
IMPORTS: Final = "import-"  # begins the names of writers that are none: what they read is older than they are
_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 60.0  # a job that began before a deletion has stored its results by then
_ANSWER_SECONDS: Final = 120.0  # of a service that is busy
_TRAINING: Final = frozenset({"training", "statistics", "step"})
_LAST: Final = 3  # health segments of a writer to look for its end in


class Deleted(TypedDict):
    """Counts of the removed data of a run. `rows`: counts by table."""

    run: str
    deleted_at: str
    rows: dict[str, int]
    files: int


def part(store: Store, _: threading.Event) -> Part:
    """Return the part of the service that offers these actions and runs the sweeps."""
    return Part(jobs=[Job("deletions", _SECONDS, Sweeper(store).run_once)], actions=actions.offered(_ACTIONS, store))


def delete(home: Home, document: Mapping[str, Any]) -> Deleted:
    """Delete the run of ``{"run", "author", "force"}``, through the service or, without one, as owner of the data
    directory.

    Raises `ConfigurationError` for an invalid request, and `HomeBusyError` or `StoreError` if the data directory is
    unavailable.
    """
    deleted: Deleted = actions.perform(_ACTIONS, home, DELETE, document, seconds=_ANSWER_SECONDS)
    return deleted


def waits(home: Home, run: str) -> bool:
    """Return whether segments of a run are in the spool."""
    return any(run_dir(home.path, run).glob("*/*"))


def listed(home: Home) -> Tombstones:
    """Return the tombstones of a data directory that another process may own. Raises `StoreError`."""
    tombstones = Tombstones(home.path)
    tombstones.load(tidy=False)
    return tombstones


class Sweeper:
    """Sweeper that completes interrupted deletions and removes rows that jobs stored during a deletion."""

    def __init__(self, store: Store) -> None:
        """Set up the sweeper without touching files."""
        self._store = store
        self._until: dict[str, float] = {}  # run → monotonic time until which jobs may store something of it

    def run_once(self) -> dict[str, object]:
        """Sweep once. Return the number of deleted runs, and in `left` the reason for remaining files. Raises
        `StoreError`.
        """
        store = self._store
        runs = [tombstone.run for tombstone in store.archive.tombstones.all()]
        now = store.time.monotonic()
        for run in runs:
            self._until.setdefault(run, now + _QUIET_SECONDS)
        rest = Rest(partial(_others, store), partial(forget, store))
        left = store.archive.finish_deletions(rest)
        for run in runs:
            if self._until[run] >= now and run not in left:
                store.archive.delete(run, "", rest)
        return {"deleted_runs": len(runs), "left": [f"{run}: {why}" for run, why in left.items()]}


def _delete(store: Store, document: Mapping[str, Any], now: datetime) -> Deleted:
    """Delete a run: ``{"run", "author", "force"}``."""
    run, author = actions.run_of(document), actions.text(document, "author")
    if run not in store.archive.tombstones:
        if not _is_there(store, run):
            raise ConfigurationError(f"no run {run!r} in this home; `logprobe runs` lists them")
        if document.get("force") is not True:
            refuse_recorded(store, store.home, run, now)
    rows: dict[str, int] = {}
    rest = Rest(partial(_others, store), lambda run: rows.update(forget(store, run)))
    try:
        tombstone, files = store.archive.delete(run, author, rest)
    except OSError as error:
        raise StoreError(f"{run!r} is deleted, and not all of its files could be removed ({error}); the service tries "
                         "again") from error  # fmt: skip
    words = f"rows: {sum(rows.values()):,} in {len(rows)} tables; files: {files:,}"
    with store.transaction() as cursor:
        actions.note(store, cursor, now, author=author, action="run deleted", key=run, runs=run, words=words)
    return {"run": run, "deleted_at": tombstone.deleted_at, "rows": rows, "files": files}


_ACTIONS: Final[actions.Actions] = {DELETE: ("permanently delete a run", _delete)}


def forget(store: Store, run: str) -> dict[str, int]:
    """Delete the rows of a run from every table. Return their numbers by table. Raises `StoreError`."""
    with store.transaction() as cursor:
        counts = store.said.forget(cursor, run)
        if counts:
            store.rewritten.note([run])
    return counts


def _is_there(store: Store, run: str) -> bool:
    sql = " UNION ALL ".join(
        f'(SELECT 1 FROM "{name}" WHERE run = $run LIMIT 1)'  # noqa: S608 - our own names
        for name in queries.deletion_tables(store)["table_name"].to_pylist()
    )
    places = (run_dir(store.home.path, run), store.home.raw / run_dir(store.home.path, run).name)
    return bool(store.query(sql, {"run": run}).num_rows or any(place.exists() for place in places))


def _others(store: Store, run: str) -> list[Path]:
    """Return the files and folders of a run outside spool and archive."""
    home, name = store.home.path, run_dir(store.home.path, run).name
    told = [home / "directives" / f"{name}{end}" for end in (".json", ".stop")]
    pushed = (home / "pushed" / "wandb" / "wandb").glob(f"*run-*-{wandb_id(run)}")
    answers = (home / "proof").glob("*.json")  # named by what decides them, not by a run: with any run all of them go
    return [home / "readings" / name, store.home.quarantine / file_name(name), *told, *pushed, *answers]


def refuse_recorded(source: queries.Source, home: Home, run: str, now: datetime) -> None:
    """Raise `ConfigurationError` if a run is being recorded."""
    sign = newest_sign(source, home, run, now)
    if sign is not None:
        raise ConfigurationError(
            f"{run} is being recorded ({sign}); end the training first, or pass --force: what it records from then on "
            "is removed too"
        )


def newest_sign(source: queries.Source, home: Home, run: str, now: datetime) -> str | None:
    """Return the sign that a run is being recorded as text, or None without one."""
    rows: list[Mapping[str, Any]] = [row for row in queries.app_runs(source).to_pylist() if row["run"] == run]
    (row,) = rows or [{"writers": []}]
    since = now - lost_after(row.get("step_seconds"))
    found = {
        each["name"]: Sign(each["last_seen"], bool(each["closed"]), bool(each["trains"])) for each in row["writers"]
    }
    for name, sign in _spooled(home, run).items():
        found[name] = sign if name not in found else found[name].with_news(sign)
    newest = max([*_collectors(found, since), *_imported(row, since), *_shipped(source, run, now)], default=None)
    return None if newest is None else f"{newest[1]} {ago(now, newest[0])}"


@dataclass(frozen=True, slots=True)
class Sign:
    """State of one collector: last sighting, closing flag, and flag for training records."""

    seen: datetime
    closed: bool
    trains: bool

    def with_news(self, other: Sign) -> Sign:
        """Return the combination of both signs."""
        return Sign(max(self.seen, other.seen), self.closed or other.closed, self.trains or other.trains)


def _collectors(signs: Mapping[str, Sign], since: datetime) -> list[tuple[datetime, str]]:
    """Return the collectors that have not closed. If trainers are known, engines are ignored, since engines are often
    killed.
    """
    own = {name: sign for name, sign in signs.items() if not name.startswith(IMPORTS)}
    deciding = {name: sign for name, sign in own.items() if sign.trains} or own
    present = {name: sign for name, sign in deciding.items() if not sign.closed and sign.seen >= since}
    return [(sign.seen, f"collector {name} was seen") for name, sign in present.items()]


def _imported(row: Mapping[str, Any], since: datetime) -> list[tuple[datetime, str]]:
    newest = row.get("last_record_at")
    alone = all(writer["name"].startswith(IMPORTS) for writer in row["writers"])
    return [(newest, "the newest record was made")] if alone and newest is not None and newest >= since else []


def _spooled(home: Home, run: str) -> dict[str, Sign]:
    """Read the signs of each writer of a run from the spool."""
    signs: dict[str, Sign] = {}
    for folder in run_dir(home.path, run).glob("*/"):
        files = sorted(folder.glob("[!.]*.arrow"))
        if files:
            kinds = {path.name.split(".")[1] for path in files}
            seen = datetime.fromtimestamp(max(map(_modified, files)), UTC)
            signs[folder.name] = Sign(seen, _is_closed(files), bool(kinds & _TRAINING))
    return signs


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # merged meanwhile


def _is_closed(files: Sequence[Path]) -> bool:
    """Return whether the last record of a writer reports its end."""
    for path in [path for path in files if ".health." in path.name][-_LAST:]:
        with suppress(SegmentError, OSError):
            if "closed" in read_segment(SegmentPath.parse(path)).table["event"].to_pylist():
                return True
    return False


def _shipped(source: queries.Source, run: str, now: datetime) -> list[tuple[datetime, str]]:
    """Return the nodes that still have records of the run."""
    nodes = [row for row in queries.nodes_of(source, run=run, now=now).to_pylist() if row["segments"] != 0]
    recent = [row for row in nodes if now - row["seen_at"] <= lost_after(None)]
    return [(row["seen_at"], f"node {row['node']} had records to send") for row in recent]
