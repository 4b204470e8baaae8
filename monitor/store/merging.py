"""Merge the segments of each run once a minute.

Segments stay in the spool until then, so a start reads them like new ones. One file per run, kind and minute costs a
fifth of one file per segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor.store.archive import FILE_BYTES, Archive, MergeReport

SECONDS: Final = 60.0  # that the first segment of a run waits at most
_PAUSE: Final = 5.0  # before a run that could not be merged is tried again
Refused = tuple[SegmentPath, SegmentError]


class TakenIn(Protocol):
    """A segment that was taken in: a `Segment`, or what a look at the spool says of it."""

    @property
    def where(self) -> SegmentPath:
        """Its place."""

    @property
    def nbytes(self) -> int:
        """Its size."""


@dataclass(slots=True)
class _Waiting:
    since: float  # on the monotonic clock
    places: dict[str, tuple[SegmentPath, int]] = field(default_factory=dict)  # path → place and bytes

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.places.values())


class Merger:
    """Segments that were taken in and wait for the archive. One thread merges; others may add and ask."""

    def __init__(
        self, archive: Archive, *, read: Callable[[SegmentPath], Segment] = read_segment, time: Time = TIME
    ) -> None:
        """`read`: returns a segment with its rows."""
        self._archive = archive
        self._read = read
        self._time = time
        self._runs: dict[str, _Waiting] = {}
        self._paths: set[str] = set()  # of all runs
        self._lock = threading.Lock()

    def add(self, segments: Iterable[TakenIn]) -> None:
        """Note segments whose rows are in the index. Their tables are not kept."""
        with self._lock:
            for segment in segments:
                waiting = self._runs.setdefault(segment.where.run, _Waiting(self._time.monotonic()))
                waiting.places[str(segment.where.path)] = (segment.where, segment.nbytes)
                self._paths.add(str(segment.where.path))

    def __contains__(self, where: object) -> bool:
        """Tell whether the file at a place was taken in and waits, so that it need not be read again."""
        return isinstance(where, SegmentPath) and str(where.path) in self._paths

    def waits(self, path: str) -> bool:
        """Tell the same of the file at a path."""
        return path in self._paths

    def drop(self, run: str) -> None:
        """Forget what waits of a deleted run."""
        with self._lock:
            if (waiting := self._runs.pop(run, None)) is not None:
                self._paths.difference_update(waiting.places)

    def waits_of(self, run: str) -> bool:
        """Tell whether segments of a run wait."""
        return run in self._runs

    def __len__(self) -> int:
        return len(self._paths)

    def run_once(
        self, *, everything: bool = False, runs: Collection[str] | None = None
    ) -> tuple[MergeReport, list[Refused]]:
        """Merge the runs that are due, or everything, or all of some `runs`.

        What cannot be merged now stays, is named in the report and tried again. A segment that cannot be trusted any
        more is returned with its reason and is not tried again.
        """
        total, refused = MergeReport(), list[Refused]()
        now = self._time.monotonic()
        with self._lock:
            due = {run: dict(some.places) for run, some in self._runs.items() if _is_due(run, some, now, runs)}
            if everything:
                due = {run: dict(some.places) for run, some in self._runs.items()}
        for run, places in due.items():
            report = MergeReport()
            for some in self._read_again(places, report, refused):
                report.add(self._archive.merge(some))
            if report.waiting:
                self._settle(run, {str(place.path) for place, _ in refused}, since=now - SECONDS + _PAUSE)
            else:
                self._settle(run, places.keys())
            total.add(report)
        return total, refused

    def _settle(self, run: str, paths: Collection[str], *, since: float | None = None) -> None:
        """Note that the segments at some paths wait no more, and from when on the others count as waiting."""
        with self._lock:
            if (waiting := self._runs.get(run)) is None:
                return  # the run was deleted
            self._paths.difference_update(paths)
            waiting.places = {path: place for path, place in waiting.places.items() if path not in paths}
            waiting.since = self._time.monotonic() if since is None else since
            if not waiting.places:
                del self._runs[run]

    def _read_again(
        self, places: dict[str, tuple[SegmentPath, int]], report: MergeReport, refused: list[Refused]
    ) -> Iterator[list[Segment]]:
        """Read the segments of a run, a file's worth at a time."""
        some, nbytes = list[Segment](), 0
        for path, (place, _) in places.items():
            try:
                segment = self._read(place)
            except FileNotFoundError:
                continue  # it was merged before
            except SegmentError as error:
                refused.append((place, error))
            except OSError as error:
                report.waiting[path] = str(error)
            else:
                some.append(segment)
                nbytes += segment.nbytes
                if nbytes >= FILE_BYTES:
                    yield some
                    some, nbytes = [], 0
        yield some


def _is_due(run: str, waiting: _Waiting, now: float, runs: Collection[str] | None) -> bool:
    if runs is not None:
        return run in runs
    return now - waiting.since >= SECONDS or waiting.nbytes >= FILE_BYTES
