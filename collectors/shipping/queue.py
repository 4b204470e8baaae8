"""Queue of segments in a node's spool that wait for shipping. A segment that is safe elsewhere is removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors import locks
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import disk_time, make_durable
from logprobe.collectors.spool.segments import SegmentPath, run_name, spool_dir

ABANDONED_SECONDS: Final = 86400.0  # an empty folder this old belongs to a writer that has ended


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting segment. `modified`: seconds since the epoch."""

    where: SegmentPath
    nbytes: int
    modified: float

    @property
    def name(self) -> str:
        """Name under which the segment is shipped, ``RUN/WRITER/FILE``."""
        return self.where.segment_id


@dataclass(slots=True)
class Length:
    """Length of a run's queue. `oldest`: time of the oldest segment. `touched`: time of the last arrival or removal.

    Both are seconds since the epoch.
    """

    segments: int = 0
    nbytes: int = 0
    oldest: float | None = None
    touched: float = 0.0


class SpoolQueue:
    """Queue of one spool. It opens no file and follows no link.

    Attributes:
        unread: message of the first read error in the last scan, or None without errors.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.unread: str | None = None
        self._spool = spool_dir(home)
        self._lengths: dict[str, Length] = {}

    def waiting(self) -> list[Waiting]:
        """Return the waiting segments, oldest first. Segments of one writer are in the order of their numbers."""
        segments: list[Waiting] = []
        unread: list[OSError] = []
        lengths: dict[str, Length] = {}
        for run in _folders(self._spool, unread):
            length = lengths.setdefault(run_name(run.name), Length())
            length.touched = max(length.touched, _modified(run))
            writers = _folders(Path(run.path), unread)
            for writer in writers:
                length.touched = max(length.touched, _modified(writer))
                segments += _segments(Path(writer.path), unread)
            if not writers:
                _remove_abandoned(Path(run.path))
        self.unread = f"the spool cannot be read: {unread[0]}" if unread else None
        segments.sort(key=lambda waiting: (waiting.modified, waiting.name))
        _count(lengths, segments)
        self._lengths = lengths
        return segments

    def now(self) -> float:
        """Return seconds since the epoch by the clock that stamps the spool's files. See `disk_time`."""
        return disk_time(self.home / locks.SHIPPER)

    def lengths(self) -> dict[str, Length]:
        """Return the length of each run's queue at the last `waiting`. Safe from any thread."""
        return dict(self._lengths)

    def forget(self, sent: Iterable[Waiting]) -> None:
        """Remove shipped segments. A segment that cannot be removed is shipped again, without effect."""
        for waiting in sent:
            with suppress(OSError):
                waiting.where.path.unlink(missing_ok=True)

    def set_aside(self, waiting: Waiting) -> Path:
        """Move a segment that cannot be shipped to ``quarantine/``, to unblock the others. Raise `OSError`."""
        target = self.home / "quarantine" / waiting.name
        make_durable(target.parent)
        waiting.where.path.rename(target)
        return target


def _count(lengths: Mapping[str, Length], segments: Iterable[Waiting]) -> None:
    for waiting in segments:  # oldest first
        length = lengths[waiting.where.run]
        length.segments += 1
        length.nbytes += waiting.nbytes
        length.oldest = waiting.modified if length.oldest is None else length.oldest


def _modified(folder: os.DirEntry[str]) -> float:
    with suppress(OSError):
        return folder.stat(follow_symlinks=False).st_mtime
    return 0.0


def _folders(folder: Path, unread: list[OSError]) -> list[os.DirEntry[str]]:
    folders: list[os.DirEntry[str]] = []
    with _noted(unread), os.scandir(folder) as entries:
        folders += [entry for entry in entries if entry.is_dir(follow_symlinks=False) and _is_text(entry.name)]
    return folders


@contextmanager
def _noted(unread: list[OSError]) -> Iterator[None]:
    """Collect errors. A missing file does not count."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        unread.append(error)


def _is_text(name: str) -> bool:
    return name.isprintable() and name.encode("utf-8", "replace").decode() == name


def _segments(folder: Path, unread: list[OSError]) -> list[Waiting]:
    listed: list[os.DirEntry[str]] = []
    with _noted(unread), os.scandir(folder) as entries:
        listed += entries
    if not listed:
        _remove_abandoned(folder)
    segments = []
    for entry in listed:
        with suppress(OSError, SegmentError):  # gone, or no segment: nothing that could be sent
            status = entry.stat(follow_symlinks=False)
            if entry.is_file(follow_symlinks=False):
                segments.append(Waiting(SegmentPath.parse(Path(entry.path)), status.st_size, status.st_mtime))
    return segments


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):  # it is in use again
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            folder.rmdir()
