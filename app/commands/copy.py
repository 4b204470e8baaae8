"""`logprobe store copy FOLDER`: copy a data directory without its index, also while its service runs.

The copy is a data directory. The first start of a service there creates the index. The JSON form: ``{"folder",
"files", "bytes"}``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.app.text.numbers import data_size
from logprobe.app.text.terminal import progress
from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor.home import Home

_PARTS: Final = ("spool", "archive", "archive.id", "deleted", "journal.jsonl")
_SETTINGS: Final = "[!.]*.yaml"


class Copied(TypedDict):
    """Number and size of the copied files."""

    folder: str
    files: int
    bytes: int


def run(arguments: Arguments) -> int:
    """Copy the data directory into a new folder."""
    done = copy(Home(home_path(arguments)), Path(arguments.folder))
    words = f"{done['folder']}: {done['files']:,} files, {data_size(done['bytes'])}\n"
    tables.show(done, lambda: words, as_json=arguments.json)
    return 0


def copy(home: Home, folder: Path) -> Copied:
    """Copy a data directory. The folder appears once the copy is complete.

    Raises `ConfigurationError` if the folder exists. Raises `StoreError` if it cannot be written or nothing is stored.
    """
    if folder.exists():
        raise ConfigurationError(f"{folder} exists. Choose a new folder.")
    if not home.raw.is_dir():
        raise StoreError(f"{home.path} has no archive yet. Ingest first: logprobe up --once")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True, mode=0o700)
        done = _copied(home.path, partial)
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"{folder} cannot be written ({error.strerror or error}). Make room and retry.") from error
    return {"folder": str(folder), "files": done["files"], "bytes": done["bytes"]}


def _copied(home: Path, target: Path) -> dict[str, int]:
    """Copy until a scan finds no new file. A file that replaces deleted ones is created before their deletion."""
    seen: set[Path] = set()
    files = size = 0
    while new := [path for path in _files(home) if path not in seen]:
        with progress("copying files", len(new)) as done:
            for number, path in enumerate(new, 1):
                copied = _copy(path, target / path.relative_to(home))
                files, size = files + (copied is not None), size + (copied or 0)
                done(number)
        seen.update(new)
    return {"files": files, "bytes": size}


def _copy(path: Path, to: Path) -> int | None:
    """Copy a file and return its size, or None if the file was deleted."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(path, to)
    except FileNotFoundError:
        return None
    with to.open("rb") as file:
        os.fsync(file.fileno())
    return to.stat().st_size


def _files(home: Path) -> Iterator[Path]:
    """List the files of a data directory except its index, tokens and secrets."""
    for name in _PARTS:
        place = home / name
        if place.is_dir():
            yield from sorted(path for path in place.rglob("*") if path.is_file())
        elif place.exists():
            yield place
    yield from sorted(path for path in home.glob(_SETTINGS) if path.is_file())
