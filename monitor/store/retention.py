"""How long raw tokens are kept, and in files of which size. Statistics, metrics and events are never removed.

A file leaves the store in one transaction (or is replaced by a merged one in one) and the disk afterwards, when no read
that began before needs it any more and a checkpoint of the store does without it: queries see every token once or not
at all, never twice. It is noted as pending first: killed in between, the next start of ingest removes it. Files that
are all gone at once are never forgotten: that is a mount, not someone who tidied up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, starmap
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.files import is_gone
from logprobe.monitor import queries
from logprobe.monitor.budgets import GIB, KEEP_GIB
from logprobe.monitor.store.raw_files import (
    RAW_SCHEMAS,
    RawFile,
    note_pending,
    notes_of,
    read_raw,
    remove_files,
    write_raw,
)
from logprobe.monitor.store.store import Store

COMPACT_BYTES: Final = 64 << 20  # of a merged file; it is sorted in memory, at two to three times its size
COMPACT_TOKENS: Final = 8 << 20
COMPACT_FILES: Final = 16  # fewer small files than this are left alone: a live run would be rewritten all the time
# Many live runs have so many at the same time: merging them all at once took half a core for minutes.
_MERGE_SECONDS: Final = 5.0  # of processor time at a time, but for those of which there are many
_MANY_FILES: Final = 4 * COMPACT_FILES
_TOGETHER: Final = 16  # groups of one transaction, if they are small: it takes as long as merging one
_SORT_KEYS: Final = {"training": ("step", "segment_id", "row"), "rollout": ("time", "segment_id", "row")}


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits of raw tokens; None: no limit. The oldest go first.

    `max_bytes` is for the whole home, `max_run_bytes` for each run, `max_age` since ingest.
    """

    max_bytes: int | None = int(KEEP_GIB * GIB)
    max_run_bytes: int | None = None
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a negative limit."""
        limits = {"max_bytes": self.max_bytes, "max_run_bytes": self.max_run_bytes}
        negative = [name for name, limit in limits.items() if limit is not None and limit < 0]
        if negative or (self.max_age is not None and self.max_age < timedelta(0)):
            raise ConfigurationError(f"retention limits must not be negative: {', '.join(negative) or 'max_age'}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A registered raw file: a row of ``raw_files``."""

    path: str
    run: str
    kind: str
    min_step: int | None
    max_step: int | None
    rows: int
    tokens: int
    bytes: int
    created_at: datetime
    compacted: bool


@dataclass(slots=True)
class RetentionReport:
    """What one run did. `raw_bytes`: what is kept on the disk now. `max_…`: the limits it went by; None: no such
    limit."""

    removed_files: int = 0
    removed_bytes: int = 0
    missing_files: int = 0  # registered, but gone from the disk: somebody else has removed them
    merged_files: int = 0
    merged_into: int = 0
    raw_files: int = 0
    raw_bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    max_bytes: int | None = None
    max_run_bytes: int | None = None
    max_age_seconds: float | None = None


class Retention:
    """Keeps the raw tokens of a store within a policy, and in few files. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        policy: RetentionPolicy | None = None,
        *,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """`processor`: seconds of processor time of the calling thread."""
        self._store = store
        self.policy = policy or RetentionPolicy()
        self._processor = processor
        self._turn = threading.Lock()  # two that merge the same files would double them

    def run_once(self, *, now: datetime | None = None, compact: bool = True, by_age: bool = True) -> RetentionReport:
        """Removes what exceeds the policy, then merges small files. Without `by_age`, nothing is too old.

        Raises:
            StoreError: the store or the disk refused; what was not done is tried again next time.
        """
        with self._turn:
            policy = self.policy if by_age else replace(self.policy, max_age=None)
            return self._run(now or datetime.now(UTC), policy, compact=compact)

    def _run(self, now: datetime, policy: RetentionPolicy, *, compact: bool) -> RetentionReport:
        started = time.perf_counter()
        age = self.policy.max_age
        report = RetentionReport(
            max_bytes=self.policy.max_bytes,
            max_run_bytes=self.policy.max_run_bytes,
            max_age_seconds=None if age is None else age.total_seconds(),
        )
        self._store.raw.require()
        self._forget_missing(report)
        self._remove(expired(self.files(), policy, now), report)
        if compact:
            self._merge_some(report)
        if report.removed_files or report.merged_files:
            self._store.try_checkpoint()
        files = self.files()
        self._store.raw.damaged.look({file.path: (file.bytes, file.rows) for file in files})
        report.raw_files, report.raw_bytes = len(files), sum(file.bytes for file in files)
        report.seconds = time.perf_counter() - started
        return report

    def files(self) -> list[Kept]:
        """The registered files, oldest first."""
        names = [item.name for item in fields(Kept)]
        return [Kept(**row) for row in queries.raw_files(self._store).select(names).to_pylist()]

    def _undamaged(self) -> list[Kept]:
        return [file for file in self.files() if file.path not in self._store.raw.damaged]

    def forget_missing(self) -> int:
        """Forgets every file that is gone, even if all are: someone has said that they are gone for good. → how many;
        raises `StoreError`."""
        missing = self._missing(self.files())
        self._unregister(missing)
        return len(missing)

    def _missing(self, files: Iterable[Kept]) -> list[Kept]:
        return [file for file in files if is_gone(self._store.home.path / file.path)]

    def _forget_missing(self, report: RetentionReport) -> None:
        files = self.files()
        missing = self._missing(files)
        if missing and len(missing) == len(files):
            self._store.raw.look_again()
            self._store.raw.require()
        self._unregister(missing)
        report.missing_files += len(missing)

    def _remove(self, files: Sequence[Kept], report: RetentionReport) -> None:
        paths = [file.path for file in files]
        self._note(paths)
        self._unregister(files)
        self._store.retire(paths)
        report.removed_files += len(files)
        report.removed_bytes += sum(file.bytes for file in files)

    def _note(self, paths: Sequence[str]) -> None:
        try:
            note_pending(self._store.home, paths)
        except OSError as error:
            raise StoreError(f"raw files cannot be noted as pending ({error}); they stay") from error

    def _unregister(self, files: Sequence[Kept]) -> None:
        if not files:
            return
        paths = _paths(files)
        with self._store.transaction() as cursor:
            for table in ("training_sequences", "older_sequences", "sampled_sequences"):
                self._store.execute(cursor, "forget_raw_kept", paths, table=table)
            for name in ("forget_raw_places", "unregister_raw_files"):
                self._store.execute(cursor, name, paths)
        self._store.note_incomplete_steps()

    def _merge_some(self, report: RetentionReport) -> None:
        """Merges the largest groups, as many as there is time for; the others are merged next time."""
        begun = self._processor()
        for groups in _together(sorted(mergeable(self._undamaged()), key=len, reverse=True)):
            if self._processor() - begun > _MERGE_SECONDS and len(groups[0]) < _MANY_FILES:
                return
            self._merge(groups, report)

    def _merge(self, groups: Sequence[Sequence[Kept]], report: RetentionReport) -> None:
        """Each into one file, all of them in one transaction."""
        merged: list[tuple[Sequence[Kept], RawFile]] = []
        try:
            for files in groups:
                table = self._sorted_rows(files, report)
                merged += [] if table is None else [(files, self._write(files, table))]
            if merged:
                self._replace(merged)
        except BaseException:
            remove_files(self._store.home, [file.path for _, file in merged])
            raise
        gone = [file.path for files, _ in merged for file in files]
        self._store.retire([*gone, *notes_of(self._store.home, [file.path for _, file in merged])])
        report.merged_files += len(gone)
        report.merged_into += len(merged)

    def _replace(self, merged: Sequence[tuple[Sequence[Kept], RawFile]]) -> None:
        places = [(file.path, into.path) for files, into in merged for file in files]
        self._note([path for path, _ in places])
        moved = pa.table({"path": [path for path, _ in places], "target": [target for _, target in places]})
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "insert_raw_files", pa.Table.from_pylist(list(starmap(_merged_row, merged))))
            self._store.execute(cursor, "move_raw_places", moved)
            self._store.execute(cursor, "unregister_raw_files", moved.select(["path"]))

    def _sorted_rows(self, files: Sequence[Kept], report: RetentionReport) -> pa.Table | None:
        """None: one of them cannot be read."""
        schema = RAW_SCHEMAS[files[0].kind]
        try:
            tables = [read_raw(self._store.home.path / file.path, schema) for file in files]
        except (OSError, pa.ArrowException) as error:
            report.problems.append(f"raw files of run {files[0].run!r} cannot be merged: {error}")
            for file in files:  # the others are merged next time
                self._store.raw.damaged.look_at(file.path, file.bytes, file.rows, whole=True)
            return None
        return pa.concat_tables(tables).sort_by([(key, "ascending") for key in _SORT_KEYS[files[0].kind]])

    def _write(self, files: Sequence[Kept], table: pa.Table) -> RawFile:
        first = files[0]
        try:
            return write_raw(self._store.home, first.run, first.kind, table, sum(file.tokens for file in files))
        except OSError as error:
            raise StoreError(
                f"raw files of run {first.run!r} could not be merged ({error}); they stay unmerged"
            ) from error


def expired(files: Iterable[Kept], policy: RetentionPolicy, now: datetime) -> list[Kept]:
    """The files that exceed the policy, oldest first. `files`: oldest first."""
    gone: list[Kept] = []
    left = list(files)
    if policy.max_age is not None:
        oldest = now - policy.max_age
        gone, left = [f for f in left if f.created_at < oldest], [f for f in left if f.created_at >= oldest]
    if policy.max_run_bytes is not None:
        by_run = {run: [f for f in left if f.run == run] for run in {f.run for f in left}}
        excess = {f.path for own in by_run.values() for f in over(own, policy.max_run_bytes)}
        gone, left = gone + [f for f in left if f.path in excess], [f for f in left if f.path not in excess]
    if policy.max_bytes is not None:
        gone += over(left, policy.max_bytes)
    return gone


def over(files: Sequence[Kept], limit: int) -> list[Kept]:
    """The oldest files without which the rest fits into `limit` bytes."""
    excess = sum(file.bytes for file in files) - limit
    gone = []
    for file in files:
        if excess <= 0:
            break
        gone.append(file)
        excess -= file.bytes
    return gone


def mergeable(files: Iterable[Kept]) -> Iterator[list[Kept]]:
    """Groups of small files of one run and kind, neighbours in step, worth merging into one file each."""

    def owner(file: Kept) -> tuple[str, str]:
        return file.run, file.kind

    def place(file: Kept) -> tuple[Any, ...]:
        return *owner(file), -1 if file.min_step is None else file.min_step, file.created_at, file.path

    small = sorted((file for file in files if file.bytes < COMPACT_BYTES // 2), key=place)
    for _, own in groupby(small, key=owner):
        yield from (group for group in _grouped(own) if len(group) >= COMPACT_FILES or _is_full(group))


def _grouped(files: Iterable[Kept]) -> Iterator[list[Kept]]:
    group: list[Kept] = []
    for file in files:
        group.append(file)
        if _is_full(group):
            yield group
            group = []
    if group:
        yield group


def _is_full(group: Sequence[Kept]) -> bool:
    enough = sum(file.bytes for file in group) >= COMPACT_BYTES // 2
    return len(group) > 1 and (enough or sum(file.tokens for file in group) >= COMPACT_TOKENS // 2)


def _together(groups: Iterable[list[Kept]]) -> Iterator[list[list[Kept]]]:
    """Groups to be merged in one transaction; until then the disk has them twice."""
    some: list[list[Kept]] = []
    for group in groups:
        if some and (len(some) == _TOGETHER or sum(f.bytes for g in (*some, group) for f in g) > COMPACT_BYTES):
            yield some
            some = []
        some.append(group)
    if some:
        yield some


def _merged_row(files: Sequence[Kept], merged: RawFile) -> dict[str, object]:
    first_steps = [file.min_step for file in files if file.min_step is not None]
    last_steps = [file.max_step for file in files if file.max_step is not None]
    return {
        "path": merged.path,
        "run": files[0].run,
        "kind": files[0].kind,
        "min_step": min(first_steps, default=None),
        "max_step": max(last_steps, default=None),
        "rows": sum(file.rows for file in files),
        "tokens": sum(file.tokens for file in files),
        "bytes": merged.nbytes,
        "created_at": max(file.created_at for file in files),  # merging makes nothing younger than its youngest part
        "compacted": True,
    }


def _paths(files: Sequence[Kept]) -> pa.Table:
    return pa.table({"path": pa.array([file.path for file in files], pa.string())})
