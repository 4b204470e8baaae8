"""List the spool: segments that are not known yet, and files that do not belong there.

Nothing is opened, and no link is followed. A folder or file that cannot be inspected is named and stops no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.safe_read import file_kind
from logprobe.collectors.spool.segments import TEMPORARY, SegmentPath, is_temporary
from logprobe.monitor.plain_text import is_text, printable

_WRITER_DEPTH: Final = 2  # <spool>/<run>/<writer>/: nothing of ours lies deeper
STALE_SECONDS: Final = 3600.0  # a segment takes milliseconds to write; a temporary file this old has lost its writer


@dataclass(frozen=True, slots=True)
class Found:
    """A segment in the spool. `modified`: seconds since the epoch."""

    where: SegmentPath
    nbytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at the spool; segments oldest first, those of one writer in the order of their numbers."""

    segments: list[Found] = field(default_factory=list)
    foreign: list[tuple[Path, SegmentError]] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)  # temporary files of killed writers
    refused: list[tuple[Path, OSError]] = field(default_factory=list)


def scan(
    spool: Path,
    *,
    now: float,
    known: Callable[[str], bool] = lambda _: False,
    wanted: Callable[[Path], bool] = lambda _: True,
) -> Listing:
    """Return what lies in the spool.

    Args:
        spool: the folder of all runs.
        now: seconds since the epoch.
        known: whether a file, by its path below the spool, has been read already; it is not inspected again.
        wanted: whether to look into a folder.
    """
    listing = Listing()
    for entry, depth in _walk(spool, 0, wanted, listing):
        place = os.path.relpath(entry.path, spool)
        if not known(place):
            _sort_in(entry, depth, now, listing)
    listing.segments.sort(key=lambda found: (found.modified, found.where.segment_id))
    return listing


def _walk(
    folder: Path, depth: int, wanted: Callable[[Path], bool], listing: Listing
) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Files of writers and of the levels above, each with its depth; a folder that vanishes meanwhile is empty."""
    if not wanted(folder):
        return
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        listing.refused.append((folder, error))
        return
    for entry in found:
        if depth < _WRITER_DEPTH and is_text(entry.name) and _is_folder(entry):
            yield from _walk(Path(entry.path), depth + 1, wanted, listing)
        else:
            yield entry, depth


def _sort_in(entry: os.DirEntry[str], depth: int, now: float, listing: Listing) -> None:
    """Find out what an entry is. Hidden files are left alone, unless they are a killed writer's."""
    if entry.name.startswith(".") and not entry.name.endswith(TEMPORARY):
        return
    path = Path(entry.path)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # renamed or removed since it was listed
    except OSError as error:
        listing.refused.append((path, error))
        return
    if path.name.startswith("."):
        if is_temporary(path) and now - status.st_mtime > STALE_SECONDS:
            listing.stale.append(path)
        return
    try:
        where = _parse(path, depth, status.st_mode)
    except SegmentError as error:
        listing.foreign.append((path, error))
    else:
        listing.segments.append(Found(where, status.st_size, status.st_mtime))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # it will say why when it is inspected


def _parse(path: Path, depth: int, mode: int) -> SegmentPath:
    if not is_text(path.name):
        raise SegmentError("foreign", f"{printable(str(path))}: its name is not UTF-8; remove it from the spool")
    if (kind := file_kind(mode)) is not None:
        raise SegmentError("foreign", f"{path}: {kind}, not a regular file; remove it from the spool")
    if depth != _WRITER_DEPTH:
        raise SegmentError("foreign", f"{path}: segments belong in spool/<run>/<writer>; remove it from the spool")
    return SegmentPath.parse(path)
