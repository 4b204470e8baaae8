"""Spool → store, exactly once.

A segment counts when its row stands in the ledger (`segments`), and that row is committed together with everything the segment
brings. In order: read and verify, write its raw tokens to Parquet (durably), commit one transaction, remove the spool file. Killed
before the commit, nothing has happened but an orphaned Parquet file, removed at the next start; killed after it, the segment is
found again, recognised by its id, and removed.

Nothing in the spool is fatal: what cannot be trusted goes to quarantine, rows that do not fit together are left out and counted
in `health_records`. When the disk is full the spool keeps everything, and the next run tries again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.collectors.spool import SegmentPath
from logprobe.monitor.batch import Batch, Part, assemble, read_part, write_batch
from logprobe.monitor.quarantine import quarantine
from logprobe.monitor.raw_files import find_orphans, remove_files
from logprobe.monitor.spool_scan import SpoolContent, Waiting, scan
from logprobe.monitor.store import Store

BATCH_BYTES: Final = 64 << 20  # of segments read and committed together; two batches are in memory at a time
BATCH_SEGMENTS: Final = 2048
_READERS: Final = 4

# What a segment's content can provoke. Everything else (a full disk, no memory) is not the segment's fault.
_CONTENT_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError)
_CONTENT_ERRORS_DUCKDB: Final = (duckdb.DataError, duckdb.IntegrityError)


@dataclass(slots=True)
class IngestReport:
    """What one run did."""

    segments: int = 0
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    duplicates: int = 0  # found again after a kill; removed, not counted
    quarantined: int = 0
    bad_rows: int = 0  # left out of good segments
    remaining: int = 0  # segments still waiting, because of a limit or because they arrived meanwhile
    lag_seconds: float | None = None  # age of the oldest segment when the run began; None: none was waiting
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)  # what could not be moved or removed; tried again next time


class Ingester:
    """Brings segments of a home's spool into its store. One per home, used by one thread at a time."""

    def __init__(self, store: Store, *, batch_bytes: int = BATCH_BYTES) -> None:
        """Removes raw files that an earlier, killed service has written but not committed."""
        self._store = store
        self._batch_bytes = batch_bytes
        known = set(store.query("SELECT path FROM raw_files")["path"].to_pylist())
        remove_files(store.home, find_orphans(store.home, known))

    def run_once(self, *, max_bytes: int | None = None) -> IngestReport:
        """Ingests what lies in the spool now; with `max_bytes`, only the oldest segments until these reach it.

        Raises:
            StoreError: the store or the disk refused. What was committed stays; the rest waits in the spool.
        """
        started = time.perf_counter()
        now = time.time()
        content = scan(self._store.home, now=now)
        report = IngestReport(remaining=len(content.segments))
        if content.segments:
            report.lag_seconds = max(0.0, now - content.segments[0].modified)
        self._tidy(content, report)
        new = self._without_known(content.segments, report)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="logprobe-ingest") as pool:
            for batch in _read_ahead(pool, _batches(_first_bytes(new, max_bytes), self._batch_bytes)):
                parts = list(self._parts(batch, report))
                if parts:
                    self._commit(parts, report)
                report.remaining -= len(batch)
        report.seconds = time.perf_counter() - started
        return report

    def _tidy(self, content: SpoolContent, report: IngestReport) -> None:
        for foreign in content.foreign:
            self._set_aside(foreign.path, foreign.run, foreign.error, report)
        self._remove(content.stale, report)
        for folder in content.abandoned:
            with suppress(OSError):  # it is in use again
                folder.rmdir()

    def _without_known(self, waiting: Sequence[Waiting], report: IngestReport) -> list[Waiting]:
        """Removes segments that stand in the ledger already, and returns the others."""
        if not waiting:  # as at most ticks
            return []
        ids = [item.where.segment_id for item in waiting]
        known = set(self._store.read("known_segments", segment_ids=ids)["segment_id"].to_pylist())
        report.duplicates += len(known)
        report.remaining -= len(known)
        self._remove([item.where.path for item in waiting if item.where.segment_id in known], report)
        return [item for item in waiting if item.where.segment_id not in known]

    def _parts(self, batch: Sequence[_Reading], report: IngestReport) -> Iterator[Part]:
        """What has been read; bad segments go to quarantine, vanished ones are somebody else's doing."""
        for reading in batch:
            part = reading.result.result()
            if isinstance(part, SegmentError):
                self._set_aside(reading.where.path, reading.where.run, part, report)
            elif part is not None:
                yield part

    def _commit(self, parts: Sequence[Part], report: IngestReport) -> None:
        """Commits a batch; when something in it cannot be stored, finds out what by halving."""
        try:
            batch = assemble(parts)
            write_batch(self._store, batch)
        except (StoreError, *_CONTENT_ERRORS) as error:
            if not _is_content_error(error):
                raise
            if len(parts) > 1:
                middle = len(parts) // 2
                self._commit(parts[:middle], report)
                self._commit(parts[middle:], report)
                return
            where = parts[0].segment.where
            refusal = SegmentError("unreadable", f"{where.path}: its content cannot be stored ({error})")
            self._set_aside(where.path, where.run, refusal, report)
        else:
            _count(batch, report)
            self._remove([part.segment.where.path for part in parts], report)

    def _set_aside(self, path: Path, run: str | None, error: SegmentError, report: IngestReport) -> None:
        try:
            report.quarantined += quarantine(self._store, path, run, error)
        except OSError as failure:
            report.problems.append(f"cannot move {path} to quarantine: {failure}")

    def _remove(self, paths: Iterable[Path], report: IngestReport) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as failure:
                report.problems.append(f"cannot remove {path}: {failure}")


@dataclass(frozen=True, slots=True)
class _Reading:
    """A segment that is being read in another thread."""

    where: SegmentPath
    result: Future[Part | SegmentError | None]


def _read_ahead(pool: Executor, batches: Iterable[Sequence[Waiting]]) -> Iterator[list[_Reading]]:
    """Batches being read; the next one is already under way while one is committed."""
    previous: list[_Reading] | None = None
    for batch in batches:
        current = [_Reading(item.where, pool.submit(_read, item)) for item in batch]
        if previous is not None:
            yield previous
        previous = current
    if previous is not None:
        yield previous


def _read(waiting: Waiting) -> Part | SegmentError | None:
    path = waiting.where.path
    try:
        return read_part(waiting.where)
    except FileNotFoundError:
        return None
    except SegmentError as error:
        return error
    except OSError as error:
        return SegmentError("unreadable", f"{path}: cannot be read ({error})")
    except _CONTENT_ERRORS as error:
        return SegmentError("unreadable", f"{path}: cannot be decoded ({error})")


def _is_content_error(error: Exception) -> bool:
    return not isinstance(error, StoreError) or isinstance(error.__cause__, _CONTENT_ERRORS_DUCKDB)


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
