"""A backup: the store, settings and tombstones of a home as they are at one moment, and with them, if asked for, the
raw tokens.

<folder>/BACKUP.json            the home, the moment, the store's identity and schema
<folder>/logprobe.duckdb         the store
<folder>/*.yaml, deleted/, raw/
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypedDict

import duckdb

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError, StoreError
from logprobe.collectors.files import fsync_folder
from logprobe.monitor.home import Home, utc_now
from logprobe.monitor.reader import connect
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.schema import VERSION, check_version
from logprobe.monitor.store.store import Store

MANIFEST: Final = "BACKUP.json"
BACKUP: Final = "home.backup"
_ANSWER_SECONDS: Final = 3600.0
_FOLDERS: Final = ("deleted",)
_TURN: Final = threading.Lock()  # one at a time: two would share what lies beside the folder

Pause = Callable[[], AbstractContextManager[Any]]  # of what changes files, or the store


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers."""
    return Part(actions=actions.offered(_ACTIONS, store))


class Manifest(TypedDict):
    """What a backup is of. `store`: when the store was made; `schema`: version of its tables."""

    home: str
    made_at: str
    store: str
    schema: int


class Made(Manifest):
    """A backup that was made: where, and how much it holds."""

    folder: str
    files: int
    bytes: int


def backup(home: Home, folder: Path, *, raw: bool) -> Made:
    """Makes a backup in a new folder, through the service if one runs.

    Raises `ConfigurationError` when the folder exists, `StoreError` when it cannot be written.
    """
    document = {"to": str(folder.absolute()), "raw": raw}
    try:
        with connect(home) as reader:
            made: Made = reader.act(BACKUP, document, seconds=_ANSWER_SECONDS)
            return made
    except ServiceUnavailableError:
        if home.owner() is not None:
            raise
    if not home.database.exists():
        raise StoreError(f"{home.path}: nothing is stored here yet")
    with home.lock():  # nobody writes: the files are as they are
        return _make(home, folder, nullcontext, nullcontext, raw=raw)


def _act(store: Store, document: Mapping[str, Any], _: datetime) -> Made:
    """``{"to", "raw"}``."""
    folder, raw = Path(actions.text(document, "to")), document.get("raw") is True
    with _TURN:
        return _make(store.home, folder, store.holding_files, store.standing_still, raw=raw)


_ACTIONS: Final[actions.Actions] = {BACKUP: ("copy the store and the settings to a folder", _act)}


def check_backup(folder: Path) -> None:
    """Raise `ConfigurationError` if the folder is no backup, `StoreError` if its store has another schema."""
    try:
        schema = int(json.loads((folder / MANIFEST).read_text())["schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{folder} has no {MANIFEST}, or it cannot be read; pass a folder that `logprobe store copy` made"
        ) from error
    check_version(schema, str(folder / "logprobe.duckdb"))


def _make(home: Home, folder: Path, holding: Pause, still: Pause, *, raw: bool) -> Made:
    """Makes it beside `folder`, which is there once all of it is: what a kill leaves is not taken for a backup."""
    partial = folder.with_name(f".{folder.name}.partial")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; choose a folder that does not")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, mode=0o700)
        with holding(), still():
            sizes = [_copy(path, partial / path.relative_to(home.path)) for path in _files(home)]
        store = _proven(partial)
        manifest: Manifest = {"home": str(home.path), "made_at": utc_now(), "store": store, "schema": VERSION}
        with holding():
            sizes += _copy_raw(home, partial) if raw else []
        (partial / MANIFEST).write_text(json.dumps(manifest))
        partial.rename(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(
            f"{folder} cannot be written ({error.strerror}); make room, or choose another folder"
        ) from error
    return {"folder": str(folder), **manifest, "files": len(sizes), "bytes": sum(sizes)}


def _files(home: Home) -> Iterator[Path]:
    yield home.database
    log = home.database.with_name(f"{home.database.name}.wal")
    if log.exists():
        yield log
    yield from sorted(path for path in home.path.glob("[!.]*.yaml") if path.is_file())  # editors leave links there
    for name in _FOLDERS:
        yield from sorted(path for path in (home.path / name).rglob("*") if path.is_file())


def _copy_raw(home: Home, folder: Path) -> list[int]:
    """Raw files never change: those on the same disk are linked, not copied; → their sizes."""
    sizes = []
    for path in sorted(path for path in home.raw.glob("*/*/*.parquet") if path.is_file()):
        target = folder / "raw" / path.relative_to(home.raw)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
            sizes.append(target.stat().st_size)
        except FileNotFoundError:
            continue  # merged or removed meanwhile
        except OSError:
            sizes.append(_copy(path, target))
    for path in home.raw.glob("*/!*.json"):
        _copy(path, folder / "raw" / path.relative_to(home.raw))
    return sizes


def _copy(source: Path, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target.stat().st_size


def _proven(folder: Path) -> str:
    """Opens the copy; → when its store was made: a backup that cannot be read is none. Its log becomes a part of it, so
    that one rename restores it. Raises `StoreError`."""
    try:
        with duckdb.connect(str(folder / "logprobe.duckdb")) as connection:
            connection.execute("CHECKPOINT")
            (made,) = connection.execute("SELECT epoch_us(min(applied_at)) FROM schema_versions").fetchall()[0]
            return f"{made:x}"
    except duckdb.Error as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(
            f"the copy of the store cannot be read ({error}); make room there for it and its log, or run: logprobe "
            "check"
        ) from error
