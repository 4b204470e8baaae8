"""Move segments from the spool into the store, each exactly once.

A segment is committed together with its row in `segments`. Its file stays in place until the archive holds the segment
(see `store.archiving`). A service that was killed therefore finds the segment again, in the spool or in the archive,
and ingests only segments unknown to the store. The id depends on the content, so a copy under another name is
recognised as well.

No file in the spool stops ingest. Untrusted files are quarantined. Inconsistent rows are omitted and counted in
`health_records`. A file whose read fails for an external reason (EIO, ESTALE, EMFILE, missing permission) stays in the
spool. It is retried with back-off and delays no other run. While the disk is full, all files stay in the spool.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import QueryError, RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import remove_tree
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor import queries
from logprobe.monitor.live.batch import Part, sound_parts, write_batch
from logprobe.monitor.live.delays import Delays
from logprobe.monitor.live.memory import Memory, StepKey
from logprobe.monitor.live.newest import Newest
from logprobe.monitor.live.quarantine import forget_the_lost, quarantine
from logprobe.monitor.live.restoring import compute, restore_frozen, restore_sequences
from logprobe.monitor.live.scan import Foreign, SpoolContent, Waiting, scan
from logprobe.monitor.live.tick import Live
from logprobe.monitor.plain_text import printable
from logprobe.monitor.store.archive import MergeReport
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, Merged
from logprobe.monitor.store.archiving import FOLDER
from logprobe.monitor.store.store import Store

T = TypeVar("T")

BATCH_BYTES: Final = 64 << 20  # of segments read and committed together; two batches are in memory at a time
BATCH_SEGMENTS: Final = 2048
GROUP_BYTES: Final = 1 << 20  # of segments of a kind that one thread reads and reduces together
LOGGER: Final = logging.getLogger("logprobe.ingest")
_READERS: Final = min(4, os.cpu_count() or 1)  # more only hand the interpreter to and fro

# What a segment's content can provoke. Everything else (a full disk, no memory) is not the segment's fault.
_CONTENT_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError)
_CONTENT_ERRORS_DUCKDB: Final = (duckdb.DataError, duckdb.IntegrityError)
_FULL: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
)  # of the disk or this process, whatever is written

# A network file system may show a file before it knows its size: a short one is looked at again until it is this old,
# in seconds.
SETTLE_SECONDS: Final = 5.0


@dataclass(slots=True)
class IngestReport:
    """Result of one run of ingest."""

    segments: int = 0
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    duplicates: int = 0  # found again after a kill, or under another name; not counted
    quarantined: int = 0
    late: int = 0  # of runs that were deleted; removed, not counted
    bad_rows: int = 0  # left out of good segments
    remaining: int = 0  # segments still waiting, because of a limit or because they arrived meanwhile
    stuck: int = 0  # files and folders that cannot be read now; they wait for the end of a pause
    lag_seconds: float | None = None  # age of the oldest segment when the run began; None: none was waiting
    problems: list[str] = field(default_factory=list)  # what could not be moved or removed; tried again next time

    def then(self, later: IngestReport) -> IngestReport:
        """Return the report of this run and a later one together."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return replace(later, **sums, lag_seconds=self.lag_seconds)


_SUMS: Final = ("segments", "rows", "tokens", "bytes", "duplicates", "quarantined", "late", "bad_rows")


class Ingester:
    """Ingest of one data directory's spool into its store. One per data directory, used by one thread at a time."""

    def __init__(self, store: Store, *, batch_bytes: int = BATCH_BYTES) -> None:
        """Set up the ingest and check only the quarantine."""
        self._store = store
        self._batch_bytes = batch_bytes
        self.delays = Delays(store.time)
        self._deleted = store.archive.tombstones
        self._live = Live(Memory(store))
        forget_the_lost(store)
        self._begun = False

    @property
    def newest(self) -> Newest:
        """Newest steps of live runs in memory."""
        return self._live.newest

    def run_once(self, *, max_bytes: int | None = None, beat: Callable[[], None] = lambda: None) -> IngestReport:
        """Ingest the segments in the spool, or with `max_bytes` only the oldest up to that size.

        `beat` is called after every batch.

        Raises:
            StoreError: a write failed, or the archive belongs to another data directory. Committed segments stay. The
                others remain in the spool.
        """
        report = IngestReport()
        self._begin(report, beat)
        now = self._store.home.now()
        content = scan(self._store.home, now=now, wanted=self.delays.is_due, known=self._store.archive.waits)
        self._note_refused(content)
        ready = [item for item in content.segments if self.delays.is_due(item.where.path)]
        report.remaining = len(ready)
        if content.segments:
            report.lag_seconds = max(0.0, now - content.segments[0].modified)
        self._tidy(content, report)
        new = self._without_known(self._without_deleted(ready, report), report)
        unseen = {item.where.segment_id for item in new}
        with ThreadPoolExecutor(_READERS + 1, thread_name_prefix="logprobe-ingest") as pool:
            merging: Future[MergeReport] | None = None
            for batch in _read_ahead(pool, _batches(_first_bytes(new, max_bytes), self._batch_bytes)):
                parts = self._without_copies(list(self._parts(batch, report)), unseen, report)
                if parts:
                    self._commit(parts, report)
                report.remaining -= len(batch)
                if report.remaining:
                    merging = self._merge_beside(pool, merging)
                beat()
            if merging is not None:
                merging.result()
        report.stuck = len(self.delays)
        return report

    def _merge_beside(self, pool: Executor, before: Future[MergeReport] | None) -> Future[MergeReport]:
        """Start to merge full files while the next batch is read, unless the previous merge is still running."""
        if before is not None and not before.done():
            return before
        if before is not None:
            before.result()
        return pool.submit(self._store.archive.merge, full=True)

    def _begin(self, report: IngestReport, beat: Callable[[], None]) -> None:
        """Ingest unknown segments of the archive once, then quarantine segments that were damaged after ingest."""
        archive = self._store.archive
        if archive.open() or not self._begun:
            steps = set[StepKey]()
            for file in archive.new_files():
                steps |= self._take_in(file, report)
                beat()
            compute(self._store, self._live, steps)
            archive.note()
            for problem in archive.problems():
                LOGGER.warning("%s", problem)
            self._begun = True
        for where, error in archive.refused():
            archive.lose([self._store.home.relative(where.path)])
            self._set_aside(where.path, where.run, error, report)

    def _take_in(self, file: Merged, report: IngestReport) -> set[StepKey]:
        """Ingest the unknown segments of an archive file and return the steps whose metrics must be computed."""
        unknown = file.segments - self._in_ledger(sorted(file.segments))
        if not unknown and file.kind != FROZEN:
            return set()
        try:
            if file.kind == FROZEN:
                restore_frozen(self._store, file, unknown)
                return set()
            if file.kind == SEQUENCES:
                return restore_sequences(self._store, file, self._store.archive.table(file), unknown)
            segments = [each for each in self._store.archive.segments(file) if each.segment_id in unknown]
        except OSError as error:  # damaged, or it cannot be read now: it is named, and the next start tries again
            report.problems.append(printable(f"{file.path}: {error}"))
            return set()
        parts = [part for part in _parts_of(segments) if isinstance(part, Part)]
        if parts:
            self._commit([replace(part, place=f"{FOLDER}{file.path}") for part in parts], report)
        return set()

    def _note_refused(self, content: SpoolContent) -> None:
        """Schedule retries of paths that cannot be inspected, and forget paths that left the spool or are readable
        again."""
        for refused in content.refused:
            self.delays.put_off(refused.path, refused.run, refused.error)
        paths = {refused.path for refused in content.refused}.union(content.skipped)
        paths.update(item.where.path for item in content.segments)
        paths.update(item.path for item in content.foreign)
        self.delays.keep_only(paths)

    def _tidy(self, content: SpoolContent, report: IngestReport) -> None:
        for foreign in content.foreign:
            if not self.delays.is_due(foreign.path):
                continue
            if foreign.run is not None and foreign.run in self._deleted:
                self._erase(foreign, report)
            else:
                self._set_aside(foreign.path, foreign.run, foreign.error, report)
        self._remove(content.stale, report)
        for folder in content.abandoned:
            with suppress(OSError):  # it is in use again
                folder.rmdir()

    def _erase(self, foreign: Foreign, report: IngestReport) -> None:
        try:
            remove_tree(foreign.path)
        except OSError as failure:
            self._cannot(foreign.path, foreign.run, f"cannot remove {foreign.path}: {failure}", report)

    def _without_deleted(self, waiting: Sequence[Waiting], report: IngestReport) -> list[Waiting]:
        """Remove segments of deleted runs and return the others."""
        if not self._deleted.all():  # as almost everywhere
            return list(waiting)
        late = [item.where.path for item in waiting if item.where.run in self._deleted]
        report.remaining -= len(late)
        report.late += self._remove(late, report)
        return [item for item in waiting if item.where.run not in self._deleted]

    def _without_known(self, waiting: Sequence[Waiting], report: IngestReport) -> list[Waiting]:
        """Schedule merging of segments that the ledger lists, and return the others."""
        in_ledger = self._in_ledger([item.where.segment_id for item in waiting])
        known = [item for item in waiting if item.where.segment_id in in_ledger]
        report.remaining -= len(known)
        report.duplicates += len(known)
        self._store.archive.add(known)
        self.delays.forget([item.where.path for item in known])
        return [item for item in waiting if item.where.segment_id not in in_ledger]

    def _without_copies(self, parts: Sequence[Part], unseen: set[str], report: IngestReport) -> list[Part]:
        """Schedule merging of copies of known or earlier segments, and return the others. File names do not matter.

        `unseen`: ids known to be absent from the ledger. The ids of the returned parts are removed from it.
        """
        ids = {part.segment.segment_id for part in parts}
        in_ledger = self._in_ledger(list(ids - unseen))
        unseen -= ids
        new: list[Part] = []
        for part in parts:
            if part.segment.segment_id in in_ledger:
                report.duplicates += 1
                self._taken_in([part])
            else:
                in_ledger.add(part.segment.segment_id)
                new.append(part)
        return new

    def _in_ledger(self, segment_ids: list[str]) -> set[str]:
        if not segment_ids:
            return set()
        ids = pa.table({"segment_id": segment_ids})
        return set(queries.known_segments(self._store, ids)["segment_id"].to_pylist())

    def _parts(self, batch: Sequence[_Reading], report: IngestReport) -> Iterator[Part]:
        """Yield the segments that were read. Quarantine corrupt ones, skip files that another process removed, and
        schedule retries of the others."""
        for reading in batch:
            path, run, part = reading.where.path, reading.where.run, reading.result()
            if isinstance(part, SegmentError) and (part.reason != "truncated" or self._is_settled(reading)):
                self._set_aside(path, run, part, report)
            elif isinstance(part, Exception):
                self.delays.put_off(path, run, part)
            elif part is not None:
                yield part

    def _is_settled(self, reading: _Reading) -> bool:
        """Return whether a short file is too old to be still growing."""
        age = self._store.home.now() - reading.modified
        return age > SETTLE_SECONDS or self.delays.seconds(reading.where.path) > SETTLE_SECONDS

    def _commit(self, parts: Sequence[Part], report: IngestReport) -> None:
        """Commit a batch. If the store refuses it, split the batch to find the segment at fault."""
        try:
            write_batch(self._store, self._live, parts)
        except RunDeletedError:  # this very moment: the next run removes what is of it
            return
        except Exception as error:
            if _concerns_all(error):
                raise
            for some in _parted(parts):
                self._commit(some, report) if len(some) < len(parts) else self._refuse(some, error, report)
        else:
            _count(parts, report)
            self._taken_in([part for part in parts if part.place is None])

    def _taken_in(self, parts: Sequence[Part]) -> None:
        self._store.archive.add([part.segment for part in parts])
        self.delays.forget([part.segment.where.path for part in parts])

    def _refuse(self, parts: Sequence[Part], error: Exception, report: IngestReport) -> None:
        """Quarantine segments whose content the store refuses, or schedule a retry for any other reason."""
        for where in (part.segment.where for part in parts):
            if _is_content_error(error):
                refusal = SegmentError(
                    "unreadable", f"{where.path}: the store refuses its content ({error}); restore the file or drop it"
                )
                self._set_aside(where.path, where.run, refusal, report)
            else:
                self.delays.put_off(where.path, where.run, error)

    def _set_aside(self, path: Path, run: str | None, error: SegmentError, report: IngestReport) -> None:
        try:
            report.quarantined += quarantine(self._store, path, run, error)
        except OSError as failure:
            self._cannot(path, run, f"cannot move {path} to quarantine: {failure}", report)
        else:
            self.delays.forget([path])

    def _remove(self, paths: Iterable[Path], report: IngestReport) -> int:
        """Remove ingested files and return their number."""
        removed = []
        for path in paths:
            try:
                path.unlink(missing_ok=True)
                removed.append(path)
            except OSError as failure:
                self._cannot(path, None, f"cannot remove {path}: {failure}", report)
        self.delays.forget(removed)
        return len(removed)

    def _cannot(self, path: Path, run: str | None, words: str, report: IngestReport) -> None:
        report.problems.append(printable(words))
        self.delays.put_off(path, run, words)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A segment that another thread reads together with others of its kind."""

    where: SegmentPath
    modified: float  # seconds since the epoch
    group: Future[list[Part | Exception | None]]
    place: int  # in the group

    def result(self) -> Part | Exception | None:
        """Wait for the segment and return its part or its error, or None if its file was removed.

        A `SegmentError` means corrupt content. Any other error means that the file cannot be read now.
        """
        return self.group.result()[self.place]


def _read_ahead(pool: Executor, batches: Iterable[Sequence[Waiting]]) -> Iterator[list[_Reading]]:
    """Yield batches of segments. The next batch is read while the current one is committed."""
    previous: list[_Reading] | None = None
    for batch in batches:
        current = _reading(pool, batch)
        if previous is not None:
            yield previous
        previous = current
    if previous is not None:
        yield previous


def _reading(pool: Executor, batch: Sequence[Waiting]) -> list[_Reading]:
    """Start to read the segments of a batch and return them in its order."""
    by_kind = attrgetter("where.kind")
    readings: dict[Path, _Reading] = {}
    for _, of_kind in itertools.groupby(sorted(batch, key=by_kind), key=by_kind):
        for some in _batches(list(of_kind), GROUP_BYTES):
            group = pool.submit(_read, [item.where for item in some])
            for position, item in enumerate(some):
                readings[item.where.path] = _Reading(item.where, item.modified, group, position)
    return [readings[item.where.path] for item in batch]


def _read(places: Sequence[SegmentPath]) -> list[Part | Exception | None]:
    """Read the segments of one kind. An error of one segment does not affect the others."""
    segments = [_guarded(where, partial(read_segment, where)) for where in places]
    parts = iter(_parts_of([segment for segment in segments if isinstance(segment, Segment)]))
    return [next(parts) if isinstance(segment, Segment) else segment for segment in segments]


def _parts_of(segments: Sequence[Segment]) -> Sequence[Part | Exception | None]:
    """Return the parts of segments of one kind. If they cannot be computed together, compute them one by one."""
    if len(segments) > 1:
        with suppress(Exception):  # whatever it is, it comes again with the one whose it is
            return sound_parts(segments)
    return [_guarded(segment.where, partial(_alone, segment)) for segment in segments]


def _alone(segment: Segment) -> Part:
    (part,) = sound_parts([segment])
    return part


def _guarded(where: SegmentPath, work: Callable[[], T]) -> T | Exception | None:
    """Return the result of `work` on a segment, or the error or None as in `_Reading.result`."""
    try:
        return work()
    except FileNotFoundError:
        return None
    except _CONTENT_ERRORS as error:
        return SegmentError("unreadable", f"{where.path} cannot be decoded ({error}); restore the file or drop it")
    except Exception as error:  # noqa: BLE001 - the boundary of one file: it waits, is reported and tried again
        return error


def _concerns_all(error: Exception) -> bool:
    """Return whether an error concerns the store or its disk instead of one segment or run."""
    return isinstance(error, StoreError) and not _is_content_error(error)


def _is_content_error(error: Exception) -> bool:
    if isinstance(error, QueryError) or isinstance(error.__cause__, OSError):
        return False  # what is stored cannot be read now: that says nothing against the segment
    return isinstance(error, _CONTENT_ERRORS) or isinstance(error.__cause__, _CONTENT_ERRORS_DUCKDB)


def _parted(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Return the two halves of a batch, or the batch itself if it has one segment."""
    middle = len(parts) // 2
    return [some for some in (parts[:middle], parts[middle:]) if some]


def _count(parts: Sequence[Part], report: IngestReport) -> None:
    report.segments += len(parts)
    for part in parts:
        report.rows += part.rows.table.num_rows
        report.tokens += part.rows.tokens
        report.bytes += part.segment.nbytes
        report.bad_rows += part.rows.bad_rows


def _first_bytes(segments: Sequence[Waiting], limit: int | None) -> Sequence[Waiting]:
    """Return the oldest segments, up to and including the one that reaches the limit."""
    if limit is None:
        return segments
    sizes = itertools.accumulate(item.nbytes for item in segments)
    number = sum(1 for _ in itertools.takewhile(lambda size: size < limit, sizes))
    return segments[: number + 1]


def _batches(segments: Sequence[Waiting], limit: int) -> Iterator[list[Waiting]]:
    batch: list[Waiting] = []
    size = 0
    for item in segments:
        if batch and (size + item.nbytes > limit or len(batch) >= BATCH_SEGMENTS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.nbytes
    if batch:
        yield batch
