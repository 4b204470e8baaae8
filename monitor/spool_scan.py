"""What lies in the spool of a home, and how what does not belong there gets out of the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool import SegmentPath, is_temporary, run_name
from logprobe.monitor.home import Home

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
    """A file in the spool that is no segment."""

    path: Path
    run: str | None
    error: SegmentError


@dataclass(frozen=True, slots=True)
class SpoolContent:
    """One look at the spool; segments oldest first, those of one writer in the order of their numbers."""

    segments: list[Waiting]
    foreign: list[Foreign]
    stale: list[Path]
    abandoned: list[Path]  # folders of writers that have ended


def scan(home: Home, *, now: float) -> SpoolContent:
    """Lists the spool. Hidden files are left alone, unless they are a killed writer's (`STALE_SECONDS` old).

    `now`: seconds since the epoch.
    """
    content = SpoolContent([], [], [], [])
    for entry, depth in _walk(content, home.spool, 0, now):
        _sort_in(content, home, entry, depth, now)
    content.segments.sort(key=lambda waiting: (waiting.modified, waiting.where.segment_id))
    return content


def _walk(content: SpoolContent, folder: Path, depth: int, now: float) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Files of writers and of the levels above, each with its depth; a folder that vanishes meanwhile is empty."""
    try:
        entries = list(os.scandir(folder))
        if depth == _WRITER_DEPTH and not entries and now - folder.stat().st_mtime > ABANDONED_SECONDS:
            content.abandoned.append(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield entry, depth
        elif depth < _WRITER_DEPTH:
            yield from _walk(content, Path(entry.path), depth + 1, now)


def _sort_in(content: SpoolContent, home: Home, entry: os.DirEntry[str], depth: int, now: float) -> None:
    path = Path(entry.path)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # renamed or removed since it was listed
    if path.name.startswith("."):
        if is_temporary(path) and now - status.st_mtime > STALE_SECONDS:
            content.stale.append(path)
        return
    try:
        where = _parse(path, depth)
    except SegmentError as error:
        run = run_name(path.relative_to(home.spool).parts[0]) if depth else None
        content.foreign.append(Foreign(path, run, error))
    else:
        content.segments.append(Waiting(where, status.st_size, status.st_mtime))


def _parse(path: Path, depth: int) -> SegmentPath:
    if depth != _WRITER_DEPTH:
        raise SegmentError("foreign", f"{path}: segments lie in spool/<run>/<writer>; remove it from the spool")
    return SegmentPath.parse(path)
