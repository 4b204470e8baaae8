"""Compares a store with what lies beside it: is every block readable, every raw file there and whole, every complete
file listed?"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypedDict

from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.files import is_gone
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.raw_files import has_checksum, unknown_files
from logprobe.monitor.store.raw_ownership import unlistable
from logprobe.monitor.store.store import Store

CHECK: Final = "home.check"
_ANSWER_SECONDS: Final = 3600.0
_TABLES: Final = (
    "SELECT table_name FROM duckdb_tables() WHERE NOT internal AND database_name = current_database() ORDER BY 1"
)
_LEDGER: Final = {
    "segments name a raw file that is not listed": (
        "SELECT count(*) AS n FROM segments WHERE raw_file IS NOT NULL AND raw_file NOT IN (SELECT path FROM raw_files)"
    ),
    "training sequences belong to no ingested segment": (
        "SELECT count(*) AS n FROM training_sequences WHERE segment_id NOT IN (SELECT segment_id FROM segments)"
    ),
    "rollout sequences belong to no ingested segment": (
        "SELECT count(*) AS n FROM rollout_sequences WHERE segment_id NOT IN (SELECT segment_id FROM segments)"
    ),
}


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers."""
    return Part(actions=actions.offered(_ACTIONS, store))


class Checked(TypedDict):
    """What was compared. `not_compared`: raw files whose bytes may not be those that were written; it is unknown."""

    tables: int
    raw_files: int
    not_compared: int
    problems: list[str]


def check(home: Home) -> Checked:
    """Compares the store with its files, through the service if one runs; changes nothing. Raises as `open_reader`
    does."""
    try:
        with connect(home) as reader:
            checked: Checked = reader.act(CHECK, {}, seconds=_ANSWER_SECONDS)
            return checked
    except ServiceUnavailableError:
        if home.owner() is not None:
            raise
    with Store.open(home, read_only=True) as store:
        return _check(store)


def _check(store: Store) -> Checked:
    tables = store.query(_TABLES)["table_name"].to_pylist()
    with store.holding_files():
        files = queries.raw_files(store).to_pylist()
        problems = [*_unreadable(store, tables), *_ledger(store), *_files(store, files), *store.raw.problems()]
    return {
        "tables": len(tables),
        "raw_files": len(files),
        "not_compared": sum(not has_checksum(file["path"]) for file in files),
        "problems": list(dict.fromkeys(problems)),
    }


_ACTIONS: Final[actions.Actions] = {
    CHECK: ("compare the store with its files", lambda store, _document, _now: _check(store)),
}


def _unreadable(store: Store, tables: list[str]) -> Iterator[str]:
    """DuckDB compares the checksum of every block that it reads."""
    for table in tables:
        try:
            store.query(f'SELECT max(hash(t)) AS h FROM "{table}" AS t')  # noqa: S608 - our own names
        except LogprobeError as error:
            yield f"table {table} cannot be read: {error}"


def _ledger(store: Store) -> Iterator[str]:
    for words, sql in _LEDGER.items():
        number = store.query(sql)["n"][0].as_py()
        if number:
            yield f"{number:,} {words}"


def _files(store: Store, files: list[queries.RawFiles]) -> Iterator[str]:
    for file in files:
        if fault := _on_disk(store, file):
            yield f"{file['path']}: {fault}"
    listed = {file["path"] for file in files}
    unknown, unlisted = unknown_files(store.home, listed)
    yield from (f"{path}: complete, but the store does not list it" for path in unknown)
    yield from map(unlistable, unlisted)


def _on_disk(store: Store, file: Mapping[str, Any]) -> str | None:
    path = store.home.path / file["path"]
    if is_gone(path):
        return "is gone"
    return store.raw.damaged.look_at(file["path"], file["bytes"], file["rows"], whole=True)
