"""Merge segments into Parquet files, which are authoritative. The store is an index of them.

    <home>/archive/!home                                          id of the home, as in <home>/archive.id
    <home>/archive/<quoted run>/<kind>/<checksum>.parquet

The name of a file is the checksum of its bytes, and its footer lists its segments. One rule protects every record. A
segment leaves the spool, and a file leaves the archive, only if durable and verified files hold the same segments.
After an interrupted operation, the next start may find an extra copy but never a missing one.

An unmounted folder, or one of another data directory, is never changed. A damaged or foreign file stays in place and is
reported.

An `Archive` is used by one thread at a time.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import DISK, UNFINISHED, Disk, Stamp, is_gone, replace_file
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import Segment, SegmentPath, run_dir, run_name, spool_dir
from logprobe.monitor.store.archive_file import (
    TIERS,
    Merged,
    footer,
    merged_of,
    name_of,
    packed,
    parquet,
    parts_of,
    steps_of,
    unpacked,
    with_rows,
)
from logprobe.monitor.store.archive_identity import identify, require
from logprobe.monitor.store.raw_damage import Known
from logprobe.monitor.store.raw_files import NAME

FOLDER: Final = "archive"
FILE_BYTES: Final = 32 << 20  # of segments in one file, and of files that are merged again
SMALL_BYTES: Final = FILE_BYTES // 4  # of a file that is worth merging again
SMALL_FILES: Final = 16  # of a run and kind, that are worth it together
Counts = tuple[int, int]  # rows and tokens of a segment
_TAIL: Final = 1 << 16  # bytes read first for a footer
_ENCODERS: Final = 2  # files that are encoded side by side
_FOOTER_END: Final = 8  # the length of the footer and "PAR1"


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes that the index must record.

    `new`: whole files, highest tier first. A segment in several files must be added once. `gone`: paths of removed,
    damaged or superseded files. `waiting`: run → reason, for runs whose files cannot be read now.
    """

    new: list[Merged]
    gone: list[str]
    waiting: dict[str, str]


@dataclass(slots=True)
class MergeReport:
    """Number of segments removed from the spool after a merge or with their run, and the pending segments."""

    removed: int = 0
    late: dict[str, int] = field(default_factory=dict)  # run → segments
    waiting: dict[str, str] = field(default_factory=dict)  # run and kind → reason; the segments stay in the spool

    def add(self, other: MergeReport) -> None:
        """Add the result of another merge."""
        self.removed += other.removed
        self.late = dict(Counter(self.late) + Counter(other.late))
        self.waiting |= other.waiting


@dataclass(slots=True)
class _Files:
    """Files of one run, and the files that hold each segment."""

    by_path: dict[str, Merged] = field(default_factory=dict)
    holders: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, file: Merged) -> None:
        self.by_path[file.path] = file
        alone = (file.path,)  # one object for all its segments
        for segment in file.segments:
            self.holders[segment] = self.holders[segment] + alone if segment in self.holders else alone

    def drop(self, path: str) -> None:
        for segment in self.by_path.pop(path).segments:
            self.holders[segment] = tuple(other for other in self.holders[segment] if other != path)

    def shared(self, kind: str | None = None) -> list[Merged]:
        """Return files that share segments with others, the smallest first. With a `kind`, only files of that kind
        count."""
        found = set[str]()
        for paths in self.holders.values():
            if len(paths) > 1:
                some = [path for path in paths if kind in {None, self.by_path[path].kind}]
                found.update(some if len(some) > 1 else ())
        return sorted((self.by_path[path] for path in found), key=_least)


@dataclass(frozen=True, slots=True)
class _Content:
    """An unwritten file: its path below the archive, its footer, and its bytes."""

    path: str
    stated: Mapping[str, Any]
    data: memoryview


class Archive:
    """Files of one data directory. Before the first merge, only `open` accesses the disk."""

    def __init__(
        self,
        home: Path,
        *,
        deleted: Callable[[str], bool] = lambda _: False,
        disk: Disk = DISK,
        time: Time = TIME,
        known: Known | None = None,
    ) -> None:
        """Set up the archive.

        `deleted`: returns whether a run was deleted, whose segments are then ignored. `known`: shared facts of its
        files.
        """
        self.folder = home / FOLDER
        self._home = home
        self._deleted = deleted
        self._disk = disk
        self._time = time
        self._identity = ""
        known = known or Known()
        self.left = known.left  # no other file goes because of these
        self._same = known.same
        self._listed: set[str] = set()  # paths that the index knows
        self._gone: set[str] = set()  # of these, those that cannot be read
        self._changed: set[str] = set()  # runs with other files than the index knows, or with copies
        self._durable: set[str] = set()  # paths that the index lists, or that were made or looked at by this process
        self._runs: dict[str, _Files] = {}

    def open(self, listed: Collection[str] = ()) -> dict[str, str]:
        """Compare the files with the index and complete interrupted operations.

        Returns path → reason, for files and folders that cannot be read or repaired now. Raises `StoreError` if the
        folder belongs to another data directory, is not mounted, or cannot be read. The folder is unchanged in that
        case.
        """
        waiting = dict[str, str]()
        there = set(self._paths(waiting))
        ours = any(NAME.fullmatch(path.rpartition("/")[2]) for path in there)
        expected = sum(not self._deleted(_run_of(path)) for path in set(listed))
        if "" in waiting:
            raise StoreError(f"{self.folder} cannot be listed ({waiting['']}); make it readable and start again")
        self._identity = identify(
            self._home, self.folder, ours=ours, expected=0 if waiting else expected, disk=self._disk
        )
        self._listed, self._durable = set(listed), there.intersection(listed)
        self._gone = {path for path in self._listed - there if not waiting.keys() & set(_above(path))}
        for run in sorted({_run_of(path) for path in there - self._durable}):
            try:
                if not self._deleted(run):
                    self._of(run)
            except OSError as error:
                waiting[run_dir(self._home, run).name] = str(error)
        return waiting

    def require(self) -> None:
        """Raise `StoreError` unless the folder still exists."""
        require(self.folder, self._identity, disk=self._disk)

    def lose(self, paths: Iterable[str]) -> None:
        """Record that a user or another process has removed files."""
        for path in paths:
            files = self._runs.get(_run_of(path), _Files())
            if path in files.by_path:
                files.drop(path)
            self._gone.add(path)

    def reexamine(self) -> None:
        """Examine one damaged or foreign file again, and forget those that were removed. One read per call limits the
        cost."""
        for path in [path for path in list(self.left) if is_gone(self.folder / path)]:
            self.left.pop(path, None)
        if self.left:
            path = next(iter(list(self.left)))
            why = self.left.pop(path)
            try:
                self._read(path)
            except SegmentError as error:
                self.left[path] = str(error)  # last in order: the next call reads another
            except OSError:
                self.left[path] = why
            else:  # a person has put the right file back
                self.forget(_run_of(path))
                self.look_at(_run_of(path))

    def can_be_read(self, place: str) -> bool:
        """Return whether a file or folder of the archive can be read now."""
        waiting = dict[str, str]()
        self._names(place, waiting)
        return not waiting

    def look_at(self, run: str) -> None:
        """Schedule a check of the files of a run for the next `changes`."""
        self._changed.add(run)

    def changes(self) -> Changes:
        """Return the changes that the index must record in one transaction. Call `noted` afterwards."""
        new, gone, waiting = list[Merged](), set(self._gone), dict[str, str]()
        for run in sorted(run for run in self._changed if not self._deleted(run)):
            try:
                files = self._of(run)
                copies = self._copies(files)
            except OSError as error:
                waiting[run] = str(error)
                continue
            new += [file for path, file in files.by_path.items() if path not in self._listed and path not in copies]
            gone |= copies
        new.sort(key=lambda file: (-file.tier, file.path))
        return Changes(new, sorted(gone & self._listed), waiting)

    def noted(self, changes: Changes) -> None:
        """Mark changes as recorded in the index."""
        self._listed = self._listed.union(file.path for file in changes.new).difference(changes.gone)
        self._gone.difference_update(changes.gone)

    def sweep(self) -> int:
        """Remove superseded files that the index does not list, and return their number.

        Call this when the readers that began before `noted` have ended. Files that cannot be removed are retried.
        """
        count = 0
        for run in sorted(self._changed):
            with suppress(OSError):
                if not self._deleted(run):
                    files = self._of(run)
                    for path in sorted(self._copies(files) - self._listed):
                        self._disk.unlink(self.folder / path)
                        self._same.pop(str(self.folder / path), None)
                        files.drop(path)
                        count += 1
                    if files.shared() or any(path not in self._listed for path in files.by_path):
                        continue
                self._changed.discard(run)
        return count

    def files(self, run: str) -> list[Merged]:
        """Return the usable files of a run that no other file supersedes, by path. Raises `OSError`."""
        found = self._of(run)
        return [found.by_path[path] for path in sorted(found.by_path.keys() - self._copies(found))]

    def holds(self, run: str, segment: str) -> bool:
        """Return whether a durable, verified file holds a segment. Raises `OSError`."""
        files = self._of(run)
        return any(self._is_whole(files, path) for path in files.holders.get(segment, ()))

    def forget(self, run: str) -> None:
        """Free the memory of a run that has ended."""
        self._runs.pop(run, None)

    def merge(self, segments: Iterable[Segment]) -> MergeReport:
        """Merge segments into files, one per run, kind and `FILE_BYTES`, then remove them from the spool.

        Segments of a deleted run are only removed. An error of one run or kind delays no other. Raises `StoreError` if
        the folder is missing.
        """
        report = MergeReport()
        for (run, kind), group in groupby(sorted(segments, key=_place), key=_owner):
            try:
                if self._deleted(run):
                    removed = self._unlink(group)
                    report.late[run] = report.late.get(run, 0) + removed
                else:
                    self._merge(run, kind, list(group), report)
            except OSError as error:
                report.waiting[f"{run}/{kind}"] = str(error)
        return report

    def put(
        self,
        run: str,
        kind: str,
        table: pa.Table,
        segments: Collection[str],
        counts: Mapping[str, Counts] | None = None,
    ) -> Merged:
        """Write rows durably that replace `segments`.

        `counts`: counts of the segments, if the rows lack them. Raises `RunDeletedError`, `StoreError` if the folder is
        missing, or `OSError`. After an `OSError`, the file may exist.
        """
        return self._place(self._encoded(run, kind, table, segments, counts=counts), self._of(run))

    def counts(self, file: Merged) -> dict[str, Counts]:
        """Return the counts that `put` wrote with a file. Raises as `table`."""
        stated = self._read(file.path)[1]
        return dict(zip(unpacked(file.path.partition("/")[0], stated), map(tuple, stated["counts"]), strict=True))

    def compact(self, run: str) -> int:
        """Merge small files of a run and return their number. The next `sweep` removes them. Raises `OSError`."""
        count = 0
        for kind, some in groupby(sorted(self.files(run), key=_kind), key=_kind):
            if kind not in TIERS:
                small = [file for file in some if file.nbytes < SMALL_BYTES]
                for part in cut(small, lambda file: file.nbytes):
                    if len(part) >= SMALL_FILES:
                        self._rewrite(run, kind, part, self._of(run))
                        count += len(part)
        return count

    def erase(self, run: str) -> int:
        """Remove the files of a deleted run and return their number. Foreign files in its folders stay. Raises
        `OSError`."""
        count = 0
        top = self.folder / run_dir(self._home, run).name
        for kind in self._disk.names(top):
            for name in self._disk.names(top / kind):
                if self._is_ours(run, top / kind / name):
                    self._disk.unlink(top / kind / name)
                    count += 1
            if not self._disk.names(top / kind):
                self._disk.rmdir(top / kind)
        if self._disk.is_folder(top) and not self._disk.names(top):
            self._disk.rmdir(top)
        self._runs.pop(run, None)
        return count

    def table(self, file: Merged) -> pa.Table:
        """Return the rows of a file. Raises `SegmentError` if it is damaged, `OSError` if it cannot be read now."""
        return pq.ParquetFile(pa.BufferReader(self._read(file.path)[0])).read()

    def segments(self, file: Merged) -> list[Segment]:
        """Return the segments of a file of tier 0 as `read_segment` returned them. Raises as `table`."""
        table, schema = self.table(file), SCHEMAS[file.kind]
        rows = table.select(schema.names).cast(schema)
        parts = parts_of(table["segment_id"])
        found = []
        for segment in sorted(file.segments):
            where = SegmentPath.parse(spool_dir(self._home) / segment)
            some = rows.slice(*parts.get(segment, (0, 0)))
            found.append(Segment(where, some, some.nbytes, segment, where.writer, where.sequence))
        return found

    # A start

    def _paths(self, waiting: dict[str, str]) -> list[str]:
        """List the files of all runs. Record each folder that cannot be listed."""
        found = []
        for run in self._names("", waiting):
            if not run.startswith((".", "!")):
                for kind in self._names(run, waiting):
                    found += [f"{run}/{kind}/{name}" for name in self._names(f"{run}/{kind}", waiting)]
        return found

    def _names(self, folder: str, waiting: dict[str, str]) -> list[str]:
        try:
            return self._disk.names(self.folder / folder)
        except OSError as error:
            waiting[folder] = str(error)
            return []

    # Files

    def _of(self, run: str) -> _Files:
        """Return the files of a run. Raise `OSError` if one cannot be read, since its segments are unknown."""
        if run not in self._runs:
            waiting = dict[str, str]()
            files = self._load(run, waiting)
            for path, why in waiting.items():
                raise OSError(f"{self.folder / path}: {why}")
            for kind in sorted({file.kind for file in files.shared()} - set(TIERS)):
                self._unite(run, kind, files)
            self._runs[run] = files
        return self._runs[run]

    def _load(self, run: str, waiting: dict[str, str]) -> _Files:
        """Examine the files of a run. Read and sync those not yet known to be durable and whole."""
        files = _Files()
        top = run_dir(self._home, run).name
        self._changed.add(run)
        for kind in self._names(top, waiting):
            names = self._names(f"{top}/{kind}", waiting)
            some = [file for name in names if (file := self._examine(f"{top}/{kind}/{name}", waiting)) is not None]
            if any(file.path not in self._durable for file in some):
                self._disk.sync(self.folder / top / kind)  # a killed process may not have come to it
            for file in some:
                self._durable.add(file.path)
                files.add(file)
        return files

    def _examine(self, path: str, waiting: dict[str, str]) -> Merged | None:
        place = self.folder / path
        self.left.pop(path, None)
        try:
            if _is_unfinished(place):
                with suppress(OSError):  # the next start tries again
                    self._disk.unlink(place)
                return None
            stated = self._checked(path, self._tail(place)) if path in self._durable else self._read(path)[1]
            return merged_of(path, stated, self._disk.size(place) or 0)
        except SegmentError as error:
            self.left[path] = str(error)
        except OSError as error:
            waiting[path] = str(error)
        return None

    def _tail(self, place: Path) -> bytes:
        """Return the end of a file with its footer."""
        tail = self._disk.read(place, last=_TAIL)
        size = int.from_bytes(tail[-_FOOTER_END:-4], "little") + _FOOTER_END
        return (tail if size <= len(tail) else self._disk.read(place, last=size))[-size:]

    def _checked(self, path: str, content: bytes) -> dict[str, Any]:
        stated = footer(content)
        if not stated:
            raise SegmentError("foreign", "not a file of the archive: its footer lists no segments")
        if stated["home"] != self._identity:
            raise SegmentError("foreign", "a file of another data directory")
        if f"{run_dir(self._home, stated['run']).name}/{stated['kind']}" != path.rpartition("/")[0]:
            raise SegmentError(
                "foreign", f"in the wrong folder: it is of run {stated['run']!r} and kind {stated['kind']!r}"
            )
        return stated

    def _read(self, path: str) -> tuple[bytes, dict[str, Any]]:
        """Return a file and its footer after its checksum was verified."""
        place = self.folder / path
        stamp, content = self._disk.stamp(place), self._disk.read(place)
        name = path.rpartition("/")[2]
        if NAME.fullmatch(name) is None:
            raise SegmentError("foreign", "not a file of the archive, by its name")
        if name != name_of(content):
            self._same.pop(str(place), None)
            raise SegmentError("checksum", "damaged: its bytes do not match the checksum in its name")
        stated = self._checked(path, content)
        self._trust(place, stamp)
        return content, stated

    def _trust(self, place: Path, stamp: Stamp | None) -> None:
        if stamp is not None:
            self._same[str(place)] = stamp

    def _is_whole(self, files: _Files, path: str) -> bool:
        if path in self.left:  # it was read since, by whomever
            return False
        stamp = self._same.get(str(self.folder / path))
        if stamp is None or stamp != self._disk.stamp(self.folder / path):
            try:
                self._read(path)
            except (SegmentError, FileNotFoundError) as error:
                self.left[path] = str(error)
                files.drop(path)
                self._gone.add(path)
                return False
        return True

    def _is_ours(self, run: str, path: Path) -> bool:
        """Return whether a file belongs to its run. A damaged file is identified by its name alone."""
        if not NAME.fullmatch(path.name):
            return _is_unfinished(path)
        stated = footer(self._tail(path))
        return stated is None or (stated.get("home"), stated.get("run")) == (self._identity, run)

    # Copies: what a process that was killed, or a larger file, has left

    def _copies(self, files: _Files) -> set[str]:
        """Return the files whose segments are all held by other files of the same or a higher tier."""
        copies = set[str]()
        for file in files.shared():
            if all(self._is_held(files, segment, file, copies) for segment in file.segments):
                copies.add(file.path)
        return copies & files.by_path.keys()  # one that turned out to be damaged is none

    def _is_held(self, files: _Files, segment: str, file: Merged, copies: Collection[str]) -> bool:
        return any(
            other not in copies
            and other != file.path
            and files.by_path[other].tier >= file.tier
            and self._is_whole(files, other)
            for other in files.holders[segment]
        )

    def _unite(self, run: str, kind: str, files: _Files) -> None:
        """Merge files of a kind that share segments, so that no segment is read twice."""
        copies = self._copies(files)
        some = [file for file in files.shared(kind) if file.path not in copies]
        held = Counter(segment for file in some for segment in file.segments)
        some = [file for file in some if any(held[segment] > 1 for segment in file.segments)]
        if some:
            self._rewrite(run, kind, some, files)

    # Merging

    def _merge(self, run: str, kind: str, group: Sequence[Segment], report: MergeReport) -> None:
        new = {each.segment_id: each for each in group if not self.holds(run, each.segment_id)}
        parts = list(cut(new.values(), lambda segment: segment.nbytes))

        def encoded(some: Sequence[Segment]) -> _Content:
            table = pa.concat_tables([with_rows(segment) for segment in some])
            return self._encoded(run, kind, table, [segment.segment_id for segment in some])

        with ThreadPoolExecutor(_ENCODERS, thread_name_prefix="logprobe-parquet") as pool:
            for content in (pool.map if len(parts) > 1 else map)(encoded, parts):
                self._place(content, self._of(run))
        report.removed += self._unlink(group)

    def _encoded(
        self,
        run: str,
        kind: str,
        table: pa.Table,
        segments: Collection[str],
        *,
        counts: Mapping[str, Counts] | None = None,
    ) -> _Content:
        """Return the content of a new file. Safe from any thread."""
        stated = {
            "home": self._identity,
            "run": run,
            "kind": kind,
            "rows": table.num_rows,
            "steps": steps_of(table),
            "written": self._time.wall(),
            "segments": packed(segments),
        }
        if counts is not None:
            stated["counts"] = [counts[segment] for segment in unpacked(run_dir(self._home, run).name, stated)]
        data = parquet(table, stated)
        return _Content(f"{run_dir(self._home, run).name}/{kind}/{name_of(data)}", stated, data)

    def _place(self, content: _Content, files: _Files) -> Merged:
        """Write a file durably."""
        run, path = content.stated["run"], content.path
        if self._deleted(run):
            raise RunDeletedError(f"run {run!r} was deleted; use another name for a new run")
        try:
            self.require()
            replace_file(self.folder / path, content.data, disk=self._disk)
            self._require_there(path)
        except (OSError, StoreError):
            self._runs.pop(run, None)  # what became of the file is found out before the next one
            self._changed.add(run)
            raise
        merged = merged_of(path, content.stated, len(content.data))
        self._durable.add(path)
        self._trust(self.folder / path, self._disk.stamp(self.folder / path))
        self._changed.add(run)
        files.add(merged)
        return merged

    def _require_there(self, path: str) -> None:
        """Raise unless a written file is in the archive. An unmounted folder may have received it."""
        self.require()
        if self._disk.size(self.folder / path) is None:
            raise OSError(errno.ENOENT, "written to another folder; mount the archive and retry", path)

    def _unlink(self, group: Iterable[Segment]) -> int:
        count = 0
        for segment in group:
            self._disk.unlink(segment.where.path)
            count += 1
        return count

    def _rewrite(self, run: str, kind: str, some: Sequence[Merged], files: _Files) -> None:
        """Write the rows of some files of one kind to one file, each segment once."""
        tables, seen = [], set[str]()
        for file in some:
            table = self.table(file)
            if again := sorted(seen & file.segments):
                table = table.filter(pc.invert(pc.is_in(table["segment_id"], pa.array(again, pa.string()))))
            tables.append(table)
            seen |= file.segments
        self._place(self._encoded(run, kind, pa.concat_tables(tables), sorted(seen)), files)


def _run_of(path: str) -> str:
    return run_name(path.partition("/")[0])


def _above(path: str) -> list[str]:
    """Return a path and all of its parent folders."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _is_unfinished(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(UNFINISHED)


def _least(file: Merged) -> tuple[int, int, str]:
    return file.tier, len(file.segments), file.path


def _kind(file: Merged) -> str:
    return file.kind


def _owner(segment: Segment) -> tuple[str, str]:
    return segment.where.run, segment.where.kind


def _place(segment: Segment) -> tuple[Any, ...]:
    return *_owner(segment), segment.writer, segment.sequence, segment.segment_id


def cut(items: Iterable[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Split items in order, so that each part has at most `FILE_BYTES`, or one item."""
    part: list[Any] = []
    total = 0
    for item in items:
        if part and total + size(item) > FILE_BYTES:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
