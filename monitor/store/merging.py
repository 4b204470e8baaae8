"""Merge the segments of each run once a minute, or earlier if they fill a file.

Until then, segments stay in the spool, so a restarted service reads them like new ones. One file per run, kind and
minute costs a fifth of one file per segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final, Protocol

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor.store.archive import FILE_BYTES, Archive, MergeReport, cut

_FILES: Final = 2  # whose segments are in memory at a time
Refused = tuple[SegmentPath, SegmentError]


class TakenIn(Protocol):
    """Interface of an ingested segment: a `Segment`, or its entry in a listing of the spool."""

    @property
    def where(self) -> SegmentPath:
        """Place of the segment."""

    @property
    def nbytes(self) -> int:
        """Size of the segment in bytes."""


@dataclass(frozen=True, slots=True)
class _InSpool:
    """A segment that must be read again."""

    where: SegmentPath
    nbytes: int


class Merger:
    """Ingested segments that are not merged yet. One thread merges; other threads may add and query."""

    def __init__(
        self,
        archive: Archive,
        *,
        read: Callable[[SegmentPath], Segment] = read_segment,
        kept_bytes: int = 2 * FILE_BYTES,
    ) -> None:
        """Set up the merging. `read`: returns a segment with its rows. `kept_bytes`: total size of segments kept in
        memory."""
        self._archive = archive
        self._read = read
        self._kept_bytes = kept_bytes
        self._runs: dict[str, dict[str, TakenIn]] = {}  # run → path → segment
        self._paths: set[str] = set()  # of all runs
        self._kept = 0  # bytes that are in memory
        self._lock = threading.Lock()

    def add(self, segments: Iterable[TakenIn]) -> None:
        """Add segments whose rows are in the index. Keep in memory those within the limit."""
        with self._lock:
            for segment in segments:
                path = str(segment.where.path)
                if path in self._paths:
                    continue
                keeps = isinstance(segment, Segment) and self._kept + segment.nbytes <= self._kept_bytes
                self._kept += segment.nbytes if keeps else 0
                some = self._runs.setdefault(segment.where.run, {})
                some[path] = segment if keeps else _InSpool(segment.where, segment.nbytes)
                self._paths.add(path)

    def waits(self, path: str) -> bool:
        """Return whether the file at a path was ingested and is not merged yet."""
        return path in self._paths

    def drop(self, run: str) -> None:
        """Drop the segments of a deleted run."""
        self._settle(run, list(self._runs.get(run, ())))

    def kept(self, where: SegmentPath) -> Segment | None:
        """Return a segment that is not merged yet and is in memory, or None."""
        with self._lock:
            one = self._runs.get(where.run, {}).get(str(where.path))
        return one if isinstance(one, Segment) else None

    def waits_of(self, run: str) -> bool:
        """Return whether a run has unmerged segments."""
        return run in self._runs

    def segments(self, run: str, kinds: Collection[str]) -> list[Segment] | None:
        """Return the unmerged segments of a run, of some kinds.

        Returns None if they would fill a file, or if one of them cannot be read.
        """
        with self._lock:
            waiting = [one for one in self._runs.get(run, {}).values() if one.where.kind in kinds]
        if sum(one.nbytes for one in waiting) > FILE_BYTES:
            return None
        try:
            return [one if isinstance(one, Segment) else self._read(one.where) for one in waiting]
        except (SegmentError, OSError):
            return None

    def __len__(self) -> int:
        return len(self._paths)

    def run_once(self, *, runs: Collection[str] | None = None, full: bool = False) -> tuple[MergeReport, list[Refused]]:
        """Merge all segments, or those of some `runs`. `full`: only groups that fill at least half a file.

        A failing segment stays pending, is named in the report and is retried. A corrupt one is returned with its
        reason and is not retried.
        """
        report, refused = MergeReport(), list[Refused]()
        with self._lock:
            waiting = [one for run, some in self._runs.items() if runs is None or run in runs for one in some.values()]
        for _, group in groupby(sorted(waiting, key=_file), key=_owner):
            some = list(group)
            if not full or sum(one.nbytes for one in some) >= FILE_BYTES // 2:
                parts = list(cut(some, _size))
                for first in range(0, len(parts), _FILES):
                    self._merge([*chain.from_iterable(parts[first : first + _FILES])], report, refused)
        return report, refused

    def _merge(self, part: Sequence[TakenIn], report: MergeReport, refused: list[Refused]) -> None:
        """Merge segments of one run and kind, and record the results in `report` and `refused`."""
        done, segments = list[str](), list[Segment]()
        for one in part:
            path = str(one.where.path)
            try:
                segments.append(one if isinstance(one, Segment) else self._read(one.where))
            except FileNotFoundError:  # it was merged before
                done.append(path)
            except SegmentError as error:
                refused.append((one.where, error))
                done.append(path)
            except OSError as error:
                report.waiting[path] = str(error)
        merged = self._archive.merge(segments)
        if not merged.waiting:
            done += [str(segment.where.path) for segment in segments]
        self._settle(part[0].where.run, done)
        report.add(merged)

    def _settle(self, run: str, paths: Collection[str]) -> None:
        """Remove the segments at some paths from the pending ones."""
        with self._lock:
            waiting = self._runs.get(run, {})  # none: the run was deleted
            gone = [waiting.pop(path) for path in paths if path in waiting]
            self._kept -= sum(one.nbytes for one in gone if isinstance(one, Segment))
            self._paths.difference_update(str(one.where.path) for one in gone)
            if not waiting:
                self._runs.pop(run, None)


def _owner(one: TakenIn) -> tuple[str, str]:
    return one.where.run, one.where.kind


def _file(one: TakenIn) -> tuple[str, str, str, int]:
    return *_owner(one), one.where.writer, one.where.sequence


def _size(one: TakenIn) -> int:
    return one.nbytes
