"""A run on its way from one home to another, as a folder: all its rows, all its files, and checksums of both.

    <home>/leaving/<quoted run>/MANIFEST.json, tables/<table>.arrows, files/<as in the home>

Raw tokens in an object store come along as files: the objects are those of the old home's prefix, and go with its rows.
The package is written and its rows are gone from the store in one transaction, so that a run is in a store or in a
package, and never in two stores. Segments that wait in the spool do not come along: they are forwarded. What other
homes number for themselves is numbered again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import fsync_folder, make_durable, replace_file
from logprobe.collectors.relay.exchange import append_lines
from logprobe.monitor import queries
from logprobe.monitor.deletion import places
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.store.copies import copy_durably
from logprobe.monitor.store.raw_files import (
    FILE,
    MOVED,
    has_its_bytes,
    incomplete_steps,
    notes_of,
    remove_files,
    widened,
)
from logprobe.monitor.store.store import Store

MANIFEST: Final = "MANIFEST.json"
_TABLES: Final = "tables"
_FILES: Final = "files"
_BLOCK: Final = 1 << 20
_MARKS: Final = "versions"
_DIRECTIVES: Final = "directives"
_DELETED: Final = "deleted"
# What collectors here still read or write stays, for them; what waits in the spool is forwarded.
_STAYING: Final = ("spool", "readings")
_KEPT: Final = (_MARKS, _DIRECTIVES, _DELETED)  # come along, and stay as well
_FOLDED: Final = 9223372036854775807  # a revision that stands for "never again"
_FEED: Final = 65_536  # rows
# Rows that name the run by what belongs to it.
_OF_RUN: Final[Mapping[str, str]] = {
    "alert_acknowledgements": "starts_with(episode, $run || '/') AND NOT EXISTS (SELECT 1 FROM alert_states "
    "WHERE starts_with(alert_acknowledgements.episode, run || '/') AND starts_with(run, $run || '/'))",
    "deliveries": "key IN (SELECT key FROM notifications WHERE run = $run)",
}
_COLUMNS: Final = """
SELECT column_name AS name,
       coalesce(starts_with(column_default, 'nextval'), false) OR (table_name, column_name) = ('raw_files', 'location') AS own
FROM duckdb_columns()
WHERE table_name = $table AND database_name = current_database() ORDER BY column_index
"""
_RAW: Final = "SELECT path, location, bytes FROM raw_files WHERE run = $run ORDER BY path"
_DIGEST: Final = (
    "SELECT count(*), coalesce(sum(hash(t)::HUGEINT), 0)::VARCHAR, coalesce(bit_xor(hash(t)), 0)::VARCHAR FROM "
    "({rows}) AS t"
)
_REVISION: Final = "SELECT coalesce(max(last_value), 0) FROM duckdb_sequences() WHERE sequence_name = 'revision'"


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a package says of itself, and ``sha256``, by which others name it. Raises `StoreError`."""
    try:
        content = (folder / MANIFEST).read_bytes()
        return {**json.loads(content), "sha256": hashlib.sha256(content).hexdigest()}
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} is not a whole package of a run ({error}); nothing was changed") from error


class Packer:
    """Makes the package of one run. Raises `StoreError` or `OSError`; the store is as it was until the caller
    commits."""

    def __init__(self, store: Store, run: str, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        make_durable(folder / _TABLES)
        self._store, self._run, self._folder = store, run, folder
        self._files: dict[str, dict[str, Any]] = {}

    def collect_raw(self) -> list[str]:
        """Raw tokens, which never change: what was collected before is not again; → their names, relative to the
        home."""
        raw = self._store.query(_RAW, {"run": self._run}).to_pylist()
        for row in raw:
            if row["path"] not in self._files:
                target = self._target(row["path"])
                if row["location"] is None:
                    _link(self._store.home.path / row["path"], target)
                else:
                    replace_file(target, self._store.objects.read(row["location"], 0, row["bytes"]), mode=0o644)
                    if not has_its_bytes(target):
                        raise StoreError(
                            f"{row['location']}: its bytes do not match the checksum in its name; nothing was moved"
                        )
                self._files[row["path"]] = _sums(target)
        wanted = {row["path"] for row in raw}
        for path in self._files.keys() - wanted:  # merged, or removed, meanwhile
            self._target(path).unlink()
            del self._files[path]
        return [row["path"] for row in raw if row["location"] is None]

    def write(self, cursor: Any, move: str, schema: int) -> str:
        """Inside the transaction that takes the rows out of the store; → the package's SHA-256."""
        home = self._store.home
        own = [*places.places_of(home, self._run), Tombstones(home).path(self._run)]
        for path, _ in [file for place in own for file in places.files_in(place)]:
            if path.relative_to(home.path).parts[0] not in _STAYING and path.is_file() and not path.is_symlink():
                name = home.relative(path)
                copy_durably(path, self._target(name))
                self._files[name] = _sums(self._target(name))
        objects = {path for path in self._files if _is_raw(path)}
        lacking = incomplete_steps(home, self._run, objects)
        if lacking:
            note = f"raw/{places.raw_folder(home, self._run).name}/{FILE}"
            steps = None
            for span in lacking:
                steps = widened(steps, span)
            replace_file(self._target(note), json.dumps(steps).encode())
            self._files[note] = _sums(self._target(note))
        tables = dict(self._written(cursor, table) for table in tables_of(self._store))
        manifest = {
            "format": 1,
            "run": self._run,
            "move": move,
            "schema": schema,
            "tables": {name: sums for name, sums in tables.items() if sums is not None},
            "files": dict(sorted(self._files.items())),
        }
        for place, _, _ in os.walk(self._folder):
            fsync_folder(Path(place))
        replace_file(self._folder / MANIFEST, json.dumps(manifest).encode())
        return str(read_manifest(self._folder)["sha256"])

    def _target(self, name: str) -> Path:
        target = self._folder / _FILES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _written(self, cursor: Any, table: str) -> tuple[str, list[Any] | None]:
        """Writes the rows of a table, and reads them back equal; → their number and checksums."""
        expected = digest(cursor, table, self._run)
        if not expected[0]:
            return table, None
        order_by = [name for name, is_own in _columns(cursor, table) if is_own]
        order = f" ORDER BY {', '.join(map(_quoted, order_by))}" if order_by else ""
        rows = cursor.execute(f'SELECT * FROM "{table}" WHERE {_where(table)}{order}', {"run": self._run})  # noqa: S608
        place = self._folder / _TABLES / f"{table}.arrows"
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with rows.to_arrow_reader(_FEED) as reader, place.open("wb") as file:
            with pa.ipc.new_stream(file, reader.schema, options=options) as writer:
                for batch in reader:
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        with _incoming(cursor, place):
            written = _digest(cursor, f"SELECT {_plain(cursor, table)} FROM incoming")  # noqa: S608 - our own names
        if written != expected:
            raise StoreError(f"rows of {table} cannot be written so that they are read back equal; nothing was moved")
        return table, expected


def tables_of(store: Store) -> list[str]:
    """All that have rows of runs; those first that others are found by."""
    return [*(str(name) for name in queries.deletion_tables(store)["table_name"].to_pylist()), *_OF_RUN]


def digest(cursor: Any, table: str, run: str) -> list[Any]:
    """Number of a run's rows in a table, and two checksums that do not depend on their order, or on what a home numbers
    for itself."""
    return _digest(cursor, f'SELECT {_plain(cursor, table)} FROM "{table}" WHERE {_where(table)}', {"run": run})  # noqa: S608


def stage(home: Home, package: Path, folder: Path) -> dict[str, Any]:
    """Copies a package to `folder` of another home and reads it back; → its manifest. Raises `StoreError`."""
    manifest = read_manifest(package)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        for name, stated in manifest["files"].items():
            target = folder / _FILES / name
            if not (home.path / name).resolve().is_relative_to(home.path) or ".." in Path(name).parts:
                raise StoreError(f"{package}: {name!r} is no file of a home")
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_durably(package / _FILES / name, target)
            if _sums(target) != stated:
                raise StoreError(f"{package / _FILES / name} is not what its manifest says; nothing was changed")
        make_durable(folder / _TABLES)
        for table in manifest["tables"]:
            copy_durably(package / _TABLES / f"{table}.arrows", folder / _TABLES / f"{table}.arrows")
    except OSError as error:
        raise StoreError(f"{package} cannot be copied to {folder} ({error}); nothing was changed") from error
    return manifest


def bring_in(store: Store, cursor: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Puts the rows and files of a staged package where they belong, inside a transaction. Raises `StoreError` unless
    all is as it says."""
    run = str(manifest["run"])
    for table in tables_of(store):
        if digest(cursor, table, run)[0]:
            raise StoreError(f"{store.home.path} has records of {run!r} already (in {table}); nothing was changed")
    for name in manifest["files"]:
        _place(store.home, name, folder / _FILES / name)
    for table in (name for name in tables_of(store) if name in manifest["tables"]):
        _insert(cursor, table, folder / _TABLES / f"{table}.arrows")
    different = [table for table, stated in manifest["tables"].items() if digest(cursor, table, run) != stated]
    if different:
        raise StoreError(
            f"what was stored of {run!r} differs from what was sent, in {', '.join(different)}; nothing was changed"
        )


def note_arriving(home: Home, raw: Iterable[str]) -> None:
    """Says of raw files that they are about to come: should they not, the next start removes them. Raises `OSError`."""
    for note in notes_of(home, raw):
        make_durable((home.path / note).parent)
        (home.path / note).touch()


def clear(home: Home, manifest: Mapping[str, Any]) -> None:
    """Removes the files of a run that are in its package now. Raises `OSError`."""
    remove_files(home, raw_of(manifest))
    for name in manifest["files"]:
        if Path(name).parts[0] not in _KEPT:
            (home.path / name).unlink(missing_ok=True)
    folder = places.raw_folder(home, str(manifest["run"]))
    for note in (FILE, MOVED):
        (folder / note).unlink(missing_ok=True)
    places.remove_empty(folder)


def raw_of(manifest: Mapping[str, Any]) -> list[str]:
    """Raw files of a package, relative to the home."""
    return [name for name in manifest["files"] if _is_raw(name)]


def _insert(cursor: Any, table: str, rows: Path) -> None:
    columns = _columns(cursor, table)
    order_by = [name for name, is_own in columns if is_own]
    if ("revision", False) in columns:
        _advance(cursor, rows)
    order = f" ORDER BY {', '.join(map(_quoted, order_by))}" if order_by else ""
    kept = _plain(cursor, table)
    with _incoming(cursor, rows):
        cursor.execute(f'INSERT INTO "{table}" ({kept}) SELECT {kept} FROM incoming{order}')  # noqa: S608 - our own names


def _advance(cursor: Any, rows: Path) -> None:
    """Later revisions of this store must be greater than those that arrive."""
    with _incoming(cursor, rows):
        newest = cursor.execute(
            "SELECT max(revision) FROM incoming WHERE revision < $folded", {"folded": _FOLDED}
        ).fetchall()[0][0]
    ((current,),) = cursor.execute(_REVISION).fetchall()
    if newest is not None and newest > current:
        cursor.execute("SELECT max(nextval('revision')) FROM range($count)", {"count": newest - current}).fetchall()


def _place(home: Home, name: str, source: Path) -> None:
    """Puts a file where it belongs. Raises `StoreError` where another one is, `OSError`."""
    target, kind = home.path / name, Path(name).parts[0]
    make_durable(target.parent)
    if not target.exists():
        _link(source, target)
        fsync_folder(target.parent)
    elif kind == _MARKS:  # lines of a set
        present = set(target.read_text(encoding="utf-8", errors="replace").splitlines())
        append_lines(target, [line for line in source.read_text(encoding="utf-8").splitlines() if line not in present])
    elif kind == _DIRECTIVES:
        copy_durably(source, target)
    elif kind != _DELETED and _sums(target) != _sums(source):
        raise StoreError(f"{target} exists and is another one; inspect it and move it away")


def _columns(cursor: Any, table: str) -> list[tuple[str, bool]]:
    """Names of a table's columns, and whether what it holds is each home's own: a number that it gives, where it has an
    object."""
    return list(cursor.execute(_COLUMNS, {"table": table}).fetchall())


def _plain(cursor: Any, table: str) -> str:
    """The columns that are the same in every home."""
    return ", ".join(_quoted(name) for name, own in _columns(cursor, table) if not own)


def _where(table: str) -> str:
    return _OF_RUN.get(table, "run = $run")


def _digest(cursor: Any, rows: str, params: Mapping[str, Any] | None = None) -> list[Any]:
    return list(cursor.execute(_DIGEST.format(rows=rows), params).fetchall()[0])


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextmanager
def _incoming(cursor: Any, rows: Path) -> Iterator[None]:
    """The rows of a file as the table ``incoming``, which can be read once."""
    with rows.open("rb") as file, pa.ipc.open_stream(file) as reader:
        cursor.register("incoming", reader)
        yield
        cursor.unregister("incoming")


def _is_raw(path: str) -> bool:
    return path.startswith("raw/") and path.endswith(".parquet")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError as error:
        raise StoreError(f"{source} is gone; run: logprobe check. Nothing was moved") from error
    except OSError:
        copy_durably(source, target)


def _sums(path: Path) -> dict[str, Any]:
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
            size += len(block)
    return {"bytes": size, "sha256": hasher.hexdigest()}
