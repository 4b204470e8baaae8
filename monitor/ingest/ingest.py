"""Spool → store, exactly once.

A segment counts when its row is in the ledger (`segments`), and that row is committed together with everything the
segment brings. In order: read and verify, write its raw tokens to Parquet (durably), commit one transaction, set the
spool file aside. Killed before the commit, nothing has happened but a Parquet file noted as pending, removed at the
next start; killed after it, the segment is found again, recognised by its id, and set aside. The id lies in the
content: a copy under another name is recognised as well.

A file set aside keeps its place, hidden, until a checkpoint of the store holds what it brought: a write-ahead log that
is torn, cut or lost loses nothing, because the next start brings back what the store does not know.

Nothing in the spool is fatal: what cannot be trusted goes to quarantine, rows that do not fit together are left out and
counted in `health_records`. What cannot be read for a reason that is not in the file (EIO, ESTALE, EMFILE, no right to
read) waits in the spool and is tried again with back-off, and holds up no other run. When the disk is full the spool
keeps everything, and the next run tries again.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import below
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor import queries
from logprobe.monitor.deletion.places import remove as erase_place
from logprobe.monitor.deletion.tombstones import Latecomers
from logprobe.monitor.ingest.batch import Batch, NewestTimes, Part, assemble, sound_parts, write_batch
from logprobe.monitor.ingest.delays import Delays
from logprobe.monitor.ingest.quarantine import forget_the_lost, quarantine
from logprobe.monitor.ingest.spool_scan import Foreign, SpoolContent, Waiting, scan
from logprobe.monitor.live.store import live_of
from logprobe.monitor.plain_text import printable
from logprobe.monitor.store.raw_files import settle_pending
from logprobe.monitor.store.store import Store

T = TypeVar("T")

BATCH_BYTES: Final = 64 << 20  # of segments read and committed together; two batches are in memory at a time
BATCH_SEGMENTS: Final = 2048
GROUP_BYTES: Final = 1 << 20  # of segments of a kind that one thread reads and reduces together
LOGGER: Final = logging.getLogger("logprobe.ingest")
_READERS: Final = 4
_DEPTH: Final = 3  # <spool>/<run>/<writer>/<segment>
_ASIDE: Final = ".ingested"  # ends the hidden name of a segment that waits for a checkpoint

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
    """What one run did."""

    segments: int = 0
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    duplicates: int = 0  # found again after a kill, or under another name; removed, not counted
    quarantined: int = 0
    late: int = 0  # of runs that were deleted; removed, not counted
    bad_rows: int = 0  # left out of good segments
    remaining: int = 0  # segments still waiting, because of a limit or because they arrived meanwhile
    stuck: int = 0  # files and folders that cannot be read now; they wait for the end of a pause
    lag_seconds: float | None = None  # age of the oldest segment when the run began; None: none was waiting
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)  # what could not be moved or removed; tried again next time


class Ingester:
    """Brings segments of a home's spool into its store. One per home, used by one thread at a time."""

    def __init__(self, store: Store, *, batch_bytes: int = BATCH_BYTES) -> None:
        """Looks at nothing but the quarantine yet."""
        self._store = store
        self._batch_bytes = batch_bytes
        self.delays = Delays()
        self._late = Latecomers(store)
        self._newest = NewestTimes(store)
        self._live = live_of(store)
        forget_the_lost(store)
        self._begun = False
        self._unlisted = [store.home.spool]  # folders in which earlier services may have set segments aside

    def run_once(self, *, max_bytes: int | None = None, beat: Callable[[], None] = lambda: None) -> IngestReport:
        """Ingests what lies in the spool now; with `max_bytes`, only the oldest segments until these reach it.

        `beat` is called after every batch.

        Raises:
            StoreError: the store or the disk refused, or ``raw/`` is not the store's. What was committed stays; the
                rest waits in the spool.
        """
        started = time.perf_counter()
        self._store.raw.require()
        self._begin()
        self._look_for_aside()
        now = time.time()
        content = scan(self._store.home, now=now, wanted=self.delays.is_due)
        self._note_refused(content)
        ready = [item for item in content.segments if self.delays.is_due(item.where.path)]
        report = IngestReport(remaining=len(ready))
        if content.segments:
            report.lag_seconds = max(0.0, now - content.segments[0].modified)
        self._tidy(content, report)
        new = self._without_known(self._without_deleted(ready, report), report)
        unseen = {item.where.segment_id for item in new}
        with ThreadPoolExecutor(_READERS, thread_name_prefix="logprobe-ingest") as pool:
            for batch in _read_ahead(pool, _batches(_first_bytes(new, max_bytes), self._batch_bytes)):
                parts = self._without_copies(list(self._parts(batch, report)), unseen, report)
                if parts:
                    self._commit(parts, report)
                report.remaining -= len(batch)
                beat()
        self._late.note()
        self._store.checkpoint_when_due()
        report.stuck = len(self.delays)
        report.seconds = time.perf_counter() - started
        return report

    def _begin(self) -> None:
        """Ends what a killed service had begun with raw files, once; folders that cannot be listed are then left to the
        next start."""
        home, raw = self._store.home, self._store.raw
        if self._begun:
            raw.unlisted = [path for path in raw.unlisted if below(home.path / path, 1)[1]]
            return
        registered = set(self._store.query("SELECT path FROM raw_files")["path"].to_pylist())
        raw.unknown, raw.unlisted = settle_pending(home, registered)
        self._store.note_incomplete_steps()
        for problem in raw.problems():
            LOGGER.warning("%s", problem)
        self._begun = True

    def _look_for_aside(self) -> None:
        """Brings back what earlier services set aside; a folder that cannot be listed is looked at again in the next
        round."""
        folders, self._unlisted = self._unlisted, []
        for folder in folders:
            paths, unlisted = below(folder, _DEPTH - len(folder.relative_to(self._store.home.spool).parts))
            self._bring_back(path for path in paths if path.name.startswith(".") and path.name.endswith(_ASIDE))
            self._unlisted += unlisted

    def _bring_back(self, aside: Iterable[Path]) -> None:
        """Of the segments set aside, those that the store does not know are ingested again; the others wait for a
        checkpoint again."""
        places = {path: path.with_name(path.name.removesuffix(_ASIDE)[1:]) for path in aside}
        ids = {path: f"{place.parent.parent.name}/{place.parent.name}/{place.name}" for path, place in places.items()}
        if not places:
            return
        in_ledger = self._in_ledger(list(ids.values()))
        self._store.retire([self._store.home.relative(path) for path in places if ids[path] in in_ledger], read=False)
        for path, place in places.items():
            if ids[path] not in in_ledger:
                with suppress(OSError):  # it is looked at again at the next start
                    path.rename(place)

    def _note_refused(self, content: SpoolContent) -> None:
        """What cannot even be looked at waits; what is in the spool no more is forgotten, and so is a folder that can
        be read again."""
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
            if self._late.refused(foreign.run, None):
                self._erase(foreign, report)
            else:
                self._set_aside(foreign.path, foreign.run, foreign.error, report)
        self._remove(content.stale, report)
        for folder in content.abandoned:
            with suppress(OSError):  # it is in use again
                folder.rmdir()

    def _erase(self, foreign: Foreign, report: IngestReport) -> None:
        try:
            erase_place(foreign.path)
        except OSError as failure:
            self._cannot(foreign.path, foreign.run, f"cannot remove {foreign.path}: {failure}", report)

    def _without_deleted(self, waiting: Sequence[Waiting], report: IngestReport) -> list[Waiting]:
        """Removes segments of deleted runs, and returns the others."""
        if not self._late.tombstones.all():  # as almost everywhere
            return list(waiting)
        kept = []
        for item in waiting:
            if self._late.refused(item.where.run, item.where.writer):
                report.remaining -= 1
                self._remove_late(item.where, item.where.writer, report)
            else:
                kept.append(item)
        return kept

    def _remove_late(self, where: SegmentPath, writer: str, report: IngestReport) -> None:
        if self._remove([where.path], report):
            report.late += 1
            self._late.count(where.run, writer)

    def _without_known(self, waiting: Sequence[Waiting], report: IngestReport) -> list[Waiting]:
        """Sets segments aside that are in the ledger already, and returns the others."""
        in_ledger = self._in_ledger([item.where.segment_id for item in waiting])
        report.remaining -= len(in_ledger)
        report.duplicates += self._put_aside(
            {item.where.path: item.nbytes for item in waiting if item.where.segment_id in in_ledger}, report
        )
        return [item for item in waiting if item.where.segment_id not in in_ledger]

    def _without_copies(self, parts: Sequence[Part], unseen: set[str], report: IngestReport) -> list[Part]:
        """Sets copies aside, whatever their files are called, of what is in the ledger or comes before them, and
        returns the others.

        `unseen`: what is known not to be in the ledger; the parts' are taken out of it.
        """
        ids = {part.segment.segment_id for part in parts}
        in_ledger = self._in_ledger(list(ids - unseen))
        unseen -= ids
        new: list[Part] = []
        for part in parts:
            if self._late.refused(part.run, part.segment.writer):  # a copy below another writer's name
                self._remove_late(part.segment.where, part.segment.writer, report)
            elif part.segment.segment_id in in_ledger:
                report.duplicates += self._put_aside({part.segment.where.path: part.segment.nbytes}, report)
            elif doubt := self._late.doubt(part.run, part.segment.writer, part.rows.table):
                self._set_aside(part.segment.where.path, part.run, doubt, report)
            else:
                in_ledger.add(part.segment.segment_id)
                new.append(part)
        return new

    def _in_ledger(self, segment_ids: list[str]) -> set[str]:
        if not segment_ids:
            return set()
        return set(queries.known_segments(self._store, segment_ids=segment_ids)["segment_id"].to_pylist())

    def _parts(self, batch: Sequence[_Reading], report: IngestReport) -> Iterator[Part]:
        """What has been read; bad segments go to quarantine, vanished ones are another process's doing, the others
        wait."""
        for reading in batch:
            path, run, part = reading.where.path, reading.where.run, reading.result()
            if isinstance(part, SegmentError) and (part.reason != "truncated" or self._is_settled(reading)):
                self._set_aside(path, run, part, report)
            elif isinstance(part, Exception):
                self.delays.put_off(path, run, part)
            elif part is not None:
                yield part

    def _is_settled(self, reading: _Reading) -> bool:
        """Whether a file that is too short has had the time to become longer."""
        age = time.time() - reading.modified
        return age > SETTLE_SECONDS or self.delays.seconds(reading.where.path) > SETTLE_SECONDS

    def _commit(self, parts: Sequence[Part], report: IngestReport) -> None:
        """Commits a batch; when something in it cannot be stored, finds out what by parting it."""
        try:
            batch = assemble(parts)
            write_batch(self._store, self._live, batch, self._late.tombstones, self._newest)
        except RunDeletedError:  # this very moment: the next run removes what is of it
            return
        except Exception as error:
            if _concerns_all(error):
                raise
            for some in _parted(parts, by_run=isinstance(error.__cause__, OSError)):
                self._commit(some, report) if len(some) < len(parts) else self._refuse(some, error, report)
        else:
            _count(batch, report)
            self._put_aside({part.segment.where.path: part.segment.nbytes for part in parts}, report)

    def _refuse(self, parts: Sequence[Part], error: Exception, report: IngestReport) -> None:
        """What cannot be stored: quarantine, if that is its content's fault, else it waits."""
        for where in (part.segment.where for part in parts):
            if _is_content_error(error):
                refusal = SegmentError("unreadable", f"{where.path}: its content cannot be stored ({error})")
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

    def _put_aside(self, sizes: Mapping[Path, int], report: IngestReport) -> int:
        """Hides files until a checkpoint holds what they brought; → how many of them. `sizes`: in bytes."""
        hidden = {}
        for path in sizes:
            aside = path.with_name(f".{path.name}{_ASIDE}")
            try:
                with suppress(FileNotFoundError):
                    path.rename(aside)
                hidden[path] = self._store.home.relative(aside)
            except OSError as failure:
                self._cannot(path, None, f"cannot remove {path}: {failure}", report)
        self.delays.forget(hidden)
        self._store.retire(hidden.values(), nbytes=sum(sizes.values()), read=False)
        return len(hidden)

    def _remove(self, paths: Iterable[Path], report: IngestReport) -> int:
        """Removes files that are dealt with; → how many of them."""
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
    """A segment that is being read in another thread, with others of its kind."""

    where: SegmentPath
    modified: float  # seconds since the epoch
    group: Future[list[Part | Exception | None]]
    place: int  # in the group

    def result(self) -> Part | Exception | None:
        """Waits for it. A `SegmentError` says that its content is wrong, any other error only that it cannot be read
        now; None: it is gone."""
        return self.group.result()[self.place]


def _read_ahead(pool: Executor, batches: Iterable[Sequence[Waiting]]) -> Iterator[list[_Reading]]:
    """Batches being read; the next one is already under way while one is committed."""
    previous: list[_Reading] | None = None
    for batch in batches:
        current = _reading(pool, batch)
        if previous is not None:
            yield previous
        previous = current
    if previous is not None:
        yield previous


def _reading(pool: Executor, batch: Sequence[Waiting]) -> list[_Reading]:
    """The segments of a batch, in its order."""
    by_kind = attrgetter("where.kind")
    readings: dict[Path, _Reading] = {}
    for _, of_kind in itertools.groupby(sorted(batch, key=by_kind), key=by_kind):
        for some in _batches(list(of_kind), GROUP_BYTES):
            group = pool.submit(_read, [item.where for item in some])
            for position, item in enumerate(some):
                readings[item.where.path] = _Reading(item.where, item.modified, group, position)
    return [readings[item.where.path] for item in batch]


def _read(places: Sequence[SegmentPath]) -> list[Part | Exception | None]:
    """Segments of one kind; what is wrong with one costs no other anything."""
    segments = [_guarded(where, partial(read_segment, where)) for where in places]
    parts = iter(_parts_of([segment for segment in segments if isinstance(segment, Segment)]))
    return [next(parts) if isinstance(segment, Segment) else segment for segment in segments]


def _parts_of(segments: Sequence[Segment]) -> Sequence[Part | Exception | None]:
    """Parts of segments of one kind, one by one if they cannot be computed together."""
    if len(segments) > 1:
        with suppress(Exception):  # whatever it is, it comes again with the one whose it is
            return sound_parts(segments)
    return [_guarded(segment.where, partial(_alone, segment)) for segment in segments]


def _alone(segment: Segment) -> Part:
    (part,) = sound_parts([segment])
    return part


def _guarded(where: SegmentPath, work: Callable[[], T]) -> T | Exception | None:
    """What `work` on a segment returns, or why there is nothing, see `_Reading.result`."""
    try:
        return work()
    except FileNotFoundError:
        return None
    except _CONTENT_ERRORS as error:
        return SegmentError("unreadable", f"{where.path}: cannot be decoded ({error})")
    except Exception as error:  # noqa: BLE001 - the boundary of one file: it waits, is reported and tried again
        return error


def _concerns_all(error: Exception) -> bool:
    """Whether the store or its disk refuses, not one segment or one run."""
    cause = error.__cause__
    if isinstance(
        cause, OSError
    ):  # a raw file could not be written: the disk is full, or something is wrong with a run's folder
        return cause.errno in _FULL
    return isinstance(error, StoreError) and not _is_content_error(error)


def _is_content_error(error: Exception) -> bool:
    if isinstance(error.__cause__, OSError):  # a file of the store cannot be read now: the segment is sound
        return False
    return isinstance(error, _CONTENT_ERRORS) or isinstance(error.__cause__, _CONTENT_ERRORS_DUCKDB)


def _parted(parts: Sequence[Part], *, by_run: bool) -> list[Sequence[Part]]:
    """A batch in pieces, of one run each or in halves; one piece when it cannot be parted."""
    if by_run:
        ordered = sorted(parts, key=attrgetter("run"))
        return [list(of_run) for _, of_run in itertools.groupby(ordered, key=attrgetter("run"))]
    middle = len(parts) // 2
    return [some for some in (parts[:middle], parts[middle:]) if some]


def _count(batch: Batch, report: IngestReport) -> None:
    report.segments += len(batch.parts)
    for part in batch.parts:
        report.rows += part.rows.table.num_rows
        report.tokens += part.rows.tokens
        report.bytes += part.segment.nbytes
        report.bad_rows += part.rows.bad_rows


def _first_bytes(segments: Sequence[Waiting], limit: int | None) -> Sequence[Waiting]:
    """The oldest segments, up to and including the one that reaches the limit."""
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
