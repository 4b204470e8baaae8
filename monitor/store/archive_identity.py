"""Ownership of an archive: the folder and the data directory must hold the same id.

    <home>/archive.id, <home>/archive/!home

The mark in the folder is written durably before the id in the data directory. If a data directory has an id but the
folder has no mark, the folder is on another disk.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import DISK, UNFINISHED, Disk, replace_file

MARK: Final = "!home"  # no run is called so: "!" is quoted in the folder of a run
IDENTITY: Final = "archive.id"


def identify(home: Path, folder: Path, *, ours: bool, expected: int, disk: Disk = DISK) -> str:
    """Return the id of a data directory's archive. Create it if it is missing.

    Args:
        home: data directory.
        folder: archive folder.
        ours: true if the folder has a file with an archive name.
        expected: number of files in the index.
        disk: disk operations.

    Raises:
        StoreError: the folder belongs to another data directory, is not mounted, or cannot be read. Nothing was
            changed.
    """
    mark, identity = folder / MARK, home / IDENTITY
    try:
        mine, theirs = _line(identity, disk), _line(mark, disk)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read ({error}); make it readable and start again") from error
    if ours if mine is None else mine != theirs:  # a first start, perhaps cut short, has neither an id nor files
        raise StoreError(
            f"{folder} belongs to another data directory, or is not mounted: {mark} and {identity} differ. Mount the "
            f"archive of this data directory and start again. If its files are lost, move {identity} away"
        )
    if expected and not ours:
        raise StoreError(
            f"{folder}: none of the {expected:,} known files exists; mount the folder and start again. If the files "
            "are lost, delete the store as well"
        )
    wanted = mine or theirs or uuid.uuid4().hex
    try:
        for path in (mark, identity):
            if _line(path, disk) is None:
                _tidy(path, disk)
                replace_file(path, wanted.encode(), disk=disk)
            disk.sync(path.parent)  # a killed process may not have come to it
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({error}); make room, or the folder writable") from error
    return wanted


def require(folder: Path, identity: str, *, disk: Disk = DISK) -> None:
    """Raise `StoreError` unless the folder is still the one that `identify` accepted."""
    try:
        theirs = _line(folder / MARK, disk)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read ({error}); make it readable, and the service continues") from error
    if theirs != identity:
        raise StoreError(
            f"{folder} is no longer the folder that the service has opened: it was unmounted, renamed or removed. Put "
            "it back, and the service continues; records stay in the spool"
        )


def _line(path: Path, disk: Disk) -> str | None:
    try:
        return disk.read(path).decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def _tidy(path: Path, disk: Disk) -> None:
    """Remove temporary files of a start that was killed."""
    for name in disk.names(path.parent):
        if name.startswith(f".{path.name}.") and name.endswith(UNFINISHED):
            disk.unlink(path.with_name(name))
