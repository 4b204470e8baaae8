"""Scan the spool of a data directory for segments and for foreign files to remove.

The scan opens no file and follows no link. A folder or file that cannot be inspected is reported and does not stop the
scan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.safe_read import file_kind
from logprobe.collectors.spool.segments import TEMPORARY, SegmentPath, is_temporary, run_name
from logprobe.monitor.home import Home
from logprobe.monitor.plain_text import is_text, printable

_WRITER_DEPTH: Final = 2  # spool/<run>/<writer>/: nothing of ours lies deeper
ABANDONED_SECONDS: Final = 86400.0  # an empty folder this old belongs to a writer that has ended
STALE_SECONDS: Final = 3600.0  # a segment takes milliseconds to write; a temporary file this old has lost its writer


@dataclass(frozen=True, slots=True)
class Waiting:
    """A segment in the spool. `modified`: seconds since the epoch."""

    where: SegmentPath
    nbytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class Foreign:
    """A spool file that is not a segment."""

    path: Path
    run: str | None
    error: SegmentError


@dataclass(frozen=True, slots=True)
class Refused:
    """A file or folder whose inspection failed."""

    path: Path
    run: str | None
    error: OSError


@dataclass(frozen=True, slots=True)
class SpoolContent:
    """Snapshot of the spool with segments oldest first, those of one writer by sequence number."""

    segments: list[Waiting] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)
    abandoned: list[Path] = field(default_factory=list)  # folders of writers that have ended
    refused: list[Refused] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)  # folders that `wanted` refused


def scan(
    home: Home,
    *,
    now: float,
    wanted: Callable[[Path], bool] = lambda _: True,
    known: Callable[[str], bool] = lambda _: False,
) -> SpoolContent:
    """List the spool. Ignore hidden files, except temporary ones older than `STALE_SECONDS`.

    `now`: time of the file system's clock in seconds since the epoch. `wanted`: returns whether to inspect a folder.
    `known`: returns whether the file at a path was ingested already and can be skipped.
    """
    look = _Look(home, now, wanted, SpoolContent())
    for entry, depth in look.walk(home.spool, 0):
        if not known(entry.path):
            look.sort_in(entry, depth)
    look.content.segments.sort(key=lambda waiting: (waiting.modified, waiting.where.segment_id))
    return look.content


@dataclass(frozen=True, slots=True)
class _Look:
    home: Home
    now: float
    wanted: Callable[[Path], bool]
    content: SpoolContent

    def walk(self, folder: Path, depth: int) -> Iterator[tuple[os.DirEntry[str], int]]:
        """Yield the files of writers and of higher levels, each with its depth. A folder deleted during the scan is
        empty."""
        if not self.wanted(folder):
            self.content.skipped.append(folder)
            return
        for entry in self._entries(folder, depth):
            if depth < _WRITER_DEPTH and is_text(entry.name) and _is_folder(entry):
                yield from self.walk(Path(entry.path), depth + 1)
            else:
                yield entry, depth

    def _entries(self, folder: Path, depth: int) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
            if depth == _WRITER_DEPTH and not entries and self.now - folder.stat().st_mtime > ABANDONED_SECONDS:
                self.content.abandoned.append(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.content.refused.append(Refused(folder, _run_of(self.home, folder / "…"), error))
            return []
        return entries

    def sort_in(self, entry: os.DirEntry[str], depth: int) -> None:
        """Classify one entry of the spool."""
        if entry.name.startswith(".") and not entry.name.endswith(TEMPORARY):
            return
        path = Path(entry.path)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # renamed or removed since it was listed
        except OSError as error:
            self.content.refused.append(Refused(path, _run_of(self.home, path), error))
            return
        if path.name.startswith("."):
            if is_temporary(path) and self.now - status.st_mtime > STALE_SECONDS:
                self.content.stale.append(path)
            return
        try:
            where = _parse(path, depth, status.st_mode)
        except SegmentError as error:
            self.content.foreign.append(Foreign(path, _run_of(self.home, path), error))
        else:
            self.content.segments.append(Waiting(where, status.st_size, status.st_mtime))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # it will say why when it is looked at


def _run_of(home: Home, path: Path) -> str | None:
    """Return the run whose folder contains `path`, or None if no valid run folder does."""
    folder, *below = path.relative_to(home.spool).parts
    return run_name(folder) if below and is_text(folder) else None


def _parse(path: Path, depth: int, mode: int) -> SegmentPath:
    if not is_text(path.name):
        raise SegmentError("foreign", f"{printable(str(path))}: its name is not UTF-8; remove it from the spool")
    kind = file_kind(mode)
    if kind is not None:
        raise SegmentError("foreign", f"{path}: {kind}, not a regular file; remove it from the spool")
    if depth != _WRITER_DEPTH:
        raise SegmentError("foreign", f"{path}: segments belong in spool/<run>/<writer>; remove it from the spool")
    return SegmentPath.parse(path)
