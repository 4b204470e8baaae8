"""`logprobe store delete RUN`: a run and everything that the home holds of it, for good; without RUN, the deleted runs.

The JSON forms: ``{"run", "deleted_at", "rows": {table: number}, "files", "bytes"}``; with ``--release`` ``{"run",
"released_at"}``; without RUN a list of ``{"run", "deleted_at", "author", "released_at", "late", "late_at"}``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.app.surface.arguments import Arguments, home_path, login, require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.deletion import part
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

_LISTED: Final = ("run", "deleted_at", "author", "released_at", "late", "late_at")


def run(arguments: Arguments) -> int:
    """Deletes, releases or lists."""
    home = Home(home_path(arguments))
    if arguments.name is None:
        return _list(home, json=arguments.json)
    document = {"run": arguments.name, "author": login(), "force": arguments.force}
    if arguments.release:
        released = part.release(home, document)
        print(tables.dump(released) if arguments.json else f"{harmless(released['run'])}: the name may be used again")
        return 0
    if Tombstones(home).find(arguments.name) is None:
        _look(home, arguments.name, force=arguments.force)
    if not arguments.yes:
        _confirm(home, arguments.name)
    done = _delete(home, document)
    tables.show(done, lambda: words(done), as_json=arguments.json)
    return 0


def words(done: part.Deleted) -> Iterator[str]:
    """What was removed, and what was not, for people."""
    rows = done["rows"]
    yield f"{done['run']} is deleted"
    yield f"rows     {sum(rows.values()):,}"
    yield from (f"         {count:,} in {table}" for table, count in rows.items())
    yield f"files    {done['files']:,} ({done['bytes']:,} bytes)"
    yield "not reached: spools of other nodes, exports, notifications, other dashboards, backups (docs/operating.md)"


def _list(home: Home, *, json: bool) -> int:
    tombstones = sorted(Tombstones(home).all().values(), key=lambda tombstone: tombstone.deleted_at)
    rows = [{name: getattr(tombstone, name) for name in _LISTED} for tombstone in tombstones]
    if json:
        print(tables.dump(rows))
    elif rows:
        print(tables.fitted(list(_LISTED), [list(row.values()) for row in rows]))
    else:
        print("no run was deleted from this home", file=sys.stderr)
    return 0


def _look(home: Home, name: str, *, force: bool) -> None:
    """Raises `ConfigurationError` when there is no such run, or when it is being recorded, before anybody is asked; the
    service looks again."""
    with open_reader(home) as reader:
        if not part.waits(home, name):
            require_run(name, queries.app_runs(reader)["run"].to_pylist())
        if not force:
            part.refuse_recorded(reader, home, name, datetime.now(UTC))


def _delete(home: Home, document: Mapping[str, Any]) -> part.Deleted:
    """Deletes; when the service does not answer in time, says what is known of it. Raises `ServiceUnavailableError`."""
    try:
        return part.delete(home, document)
    except ServiceUnavailableError as error:
        tombstone = Tombstones(home).find(str(document["run"]))
        begun = tombstone is not None and tombstone.released_at is None
        outcome = (
            f"{document['run']} is being deleted, as {tombstone.author} asked at {tombstone.deleted_at}, and the "
            "service finishes it"
            if begun and tombstone is not None
            else f"{document['run']} is not deleted yet, and the service may still do it"
        )
        raise ServiceUnavailableError(
            f"no answer from the service of {home.path}: {outcome}; `logprobe store delete` lists deleted runs"
        ) from error


def _confirm(home: Home, name: str) -> None:
    """Raises `ConfigurationError` unless someone types the run's name."""
    if not sys.stdin.isatty():
        raise ConfigurationError("not a terminal: pass --yes to delete without confirmation")
    print(f"Everything that {home.path} holds of {harmless(name)} is deleted for good.", file=sys.stderr)
    print("Type the run's name to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().rstrip("\n") != name:
        raise ConfigurationError("that is not the run's name; nothing was deleted")
