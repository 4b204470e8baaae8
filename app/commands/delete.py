"""`logprobe store delete RUN`: delete all data of a run permanently, or list the deleted runs without RUN.

The JSON form: ``{"run", "deleted_at", "rows": {table: number}, "files"}``. Without RUN: a list of ``{"run",
"deleted_at", "author"}``.
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
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service import deleting

_LISTED: Final = ("run", "deleted_at", "author")


def run(arguments: Arguments) -> int:
    """Delete a run, or list the deleted runs."""
    home = Home(home_path(arguments))
    if arguments.name is None:
        return _list(home, json=arguments.json)
    document = {"run": arguments.name, "author": login(), "force": arguments.force}
    if deleting.listed(home).find(arguments.name) is None:
        _look(home, arguments.name, force=arguments.force)
    if not arguments.yes:
        _confirm(home, arguments.name)
    done = _delete(home, document)
    tables.show(done, lambda: words(done), as_json=arguments.json)
    return 0


def words(done: deleting.Deleted) -> Iterator[str]:
    """Yield sentences about the removed and the remaining data."""
    rows = done["rows"]
    yield f"{done['run']} is deleted"
    yield f"rows     {sum(rows.values()):,}"
    yield from (f"         {count:,} in {table}" for table, count in rows.items())
    yield f"files    {done['files']:,}"
    yield "not reached: spools of other nodes, exports, notifications, other dashboards, backups (docs/operating.md)"


def _list(home: Home, *, json: bool) -> int:
    tombstones = sorted(deleting.listed(home).all(), key=lambda tombstone: tombstone.deleted_at)
    rows = [{name: getattr(tombstone, name) for name in _LISTED} for tombstone in tombstones]
    if json:
        print(tables.dump(rows))
    elif rows:
        print(tables.fitted(list(_LISTED), [list(row.values()) for row in rows]))
    else:
        print("no run was deleted from this home", file=sys.stderr)
    return 0


def _look(home: Home, name: str, *, force: bool) -> None:
    """Raise `ConfigurationError` for a run that is unknown or being recorded, before the user confirms.

    The service repeats this check.
    """
    with open_reader(home) as reader:
        if not deleting.waits(home, name):
            require_run(name, queries.app_runs(reader)["run"].to_pylist())
        if not force:
            deleting.refuse_recorded(reader, home, name, datetime.now(UTC))


def _delete(home: Home, document: Mapping[str, Any]) -> deleting.Deleted:
    """Delete the run and report the outcome. Raises `ServiceUnavailableError` if the service does not answer."""
    try:
        return deleting.delete(home, document)
    except ServiceUnavailableError as error:
        tombstone = deleting.listed(home).find(str(document["run"]))
        outcome = (
            f"{document['run']} is not deleted yet, and the service may still do it"
            if tombstone is None
            else f"{document['run']} is being deleted, as {tombstone.author} asked at {tombstone.deleted_at}, and the "
            "service finishes it"
        )
        raise ServiceUnavailableError(
            f"no answer from the service of {home.path}: {outcome}; look for it with `logprobe store delete`"
        ) from error


def _confirm(home: Home, name: str) -> None:
    """Raise `ConfigurationError` unless the user types the run's name."""
    if not sys.stdin.isatty():
        raise ConfigurationError("not a terminal: pass --yes to delete without confirmation")
    print(f"Everything that {home.path} holds of {harmless(name)} is deleted for good.", file=sys.stderr)
    print("Type the run's name to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().rstrip("\n") != name:
        raise ConfigurationError("the answer is not the run's name, and nothing was deleted; retry, or pass --yes")
