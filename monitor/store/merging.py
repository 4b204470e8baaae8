"""Merge the segments of each run once a minute.

Segments stay in the spool until then, so a start reads them like new ones. One file per run, kind and minute costs a
fifth of one file per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor.store.archive import FILE_BYTES, Archive, MergeReport

SECONDS: Final = 60.0  # that the first segment of a run waits at most
_PAUSE: Final = 5.0  # before a run that could not be merged is tried again
Refused = tuple[SegmentPath, SegmentError]


@dataclass(slots=True)
class _Waiting:
    since: float  # on the monotonic clock
    places: dict[Path, SegmentPath] = field(default_factory=dict)
    nbytes: int = 0


class Merger:
    """Segments that were taken in and wait for the archive. Used by the archive's thread."""

    def __init__(
        self, archive: Archive, *, read: Callable[[SegmentPath], Segment] = read_segment, time: Time = TIME
    ) -> None:
        """`read`: returns a segment with its rows."""
        self._archive = archive
        self._read = read
        self._time = time
        self._runs: dict[str, _Waiting] = {}

    def add(self, segments: Iterable[Segment]) -> None:
        """Note segments whose rows are in the index. Their tables are not kept."""
        for segment in segments:
            waiting = self._runs.setdefault(segment.where.run, _Waiting(self._time.monotonic()))
            waiting.places[segment.where.path] = segment.where
            waiting.nbytes += segment.nbytes

    def __contains__(self, where: object) -> bool:
        """Tell whether the file at a place was taken in and waits, so that it need not be read again."""
        if not isinstance(where, SegmentPath):
            return False
        waiting = self._runs.get(where.run)
        return waiting is not None and where.path in waiting.places

    def __len__(self) -> int:
        return sum(len(waiting.places) for waiting in self._runs.values())

    def run_once(self, *, everything: bool = False) -> tuple[MergeReport, list[Refused]]:
        """Merge the runs that are due, or everything.

        What cannot be merged now stays, is named in the report and tried again. A segment that cannot be trusted any
        more is returned with its reason and is not tried again.
        """
        total, refused = MergeReport(), list[Refused]()
        now = self._time.monotonic()
        for run in [run for run, some in self._runs.items() if everything or _is_due(some, now)]:
            report = MergeReport()
            for some in self._read_again(run, report, refused):
                report.add(self._archive.merge(some))
            if report.waiting:
                self._runs[run].since = now - SECONDS + _PAUSE
            else:
                del self._runs[run]
            total.add(report)
        return total, refused

    def _read_again(self, run: str, report: MergeReport, refused: list[Refused]) -> Iterator[list[Segment]]:
        """Read the segments of a run, a file's worth at a time."""
        some, nbytes = list[Segment](), 0
        places = self._runs[run].places
        for path, place in list(places.items()):
            try:
                segment = self._read(place)
            except (FileNotFoundError, SegmentError) as error:
                del places[path]
                if isinstance(error, SegmentError):  # one that is gone was merged before
                    refused.append((place, error))
            except OSError as error:
                report.waiting[str(path)] = str(error)
            else:
                some.append(segment)
                nbytes += segment.nbytes
                if nbytes >= FILE_BYTES:
                    yield some
                    some, nbytes = [], 0
        yield some


def _is_due(waiting: _Waiting, now: float) -> bool:
    return now - waiting.since >= SECONDS or waiting.nbytes >= FILE_BYTES
