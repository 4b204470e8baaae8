"""Retention of tokens by age and size, and merging of their files. Statistics, metrics and events are kept.

A replacement precedes each removal: a file with statistics per sequence is durable before the token files are removed.
The index can therefore be rebuilt from the files at any time. A reader sees each token at most once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.store.archive import SMALL_BYTES, SMALL_FILES
from logprobe.monitor.store.archive_file import TIERS
from logprobe.monitor.store.budgets import GIB, KEEP_GIB
from logprobe.monitor.store.raw_files import RAW_KINDS
from logprobe.monitor.store.store import Store

# Many live runs have so many at the same time: merging them all at once took half a core for minutes.
_MERGE_SECONDS: Final = 5.0  # of processor time at a time


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits of raw tokens, None for no limit. The oldest tokens are removed first.

    `max_bytes` limits the data directory, and `max_age` the time since ingest.
    """

    max_bytes: int | None = int(KEEP_GIB * GIB)
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a negative limit."""
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ConfigurationError(f"max_bytes={self.max_bytes} is negative; use 0 or more")
        if self.max_age is not None and self.max_age < timedelta(0):
            raise ConfigurationError(f"max_age={self.max_age} is negative; use 0 or more")


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of the archive: a row of ``raw_files``."""

    path: str
    run: str
    kind: str
    rows: int
    bytes: int
    created_at: datetime


@dataclass(slots=True)
class RetentionReport:
    """Result of one run. `raw_bytes`: retained bytes on disk. `max_…`: the applied limits, None for none."""

    removed_files: int = 0
    removed_bytes: int = 0
    missing_files: int = 0  # somebody else has removed them
    merged_files: int = 0
    raw_files: int = 0
    raw_bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    max_bytes: int | None = None
    max_age_seconds: float | None = None


class Retention:
    """Enforcement of a retention policy on the tokens of a store. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        policy: RetentionPolicy | None = None,
        *,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """Set up the retention. `processor`: returns the processor time of the calling thread in seconds."""
        self._store = store
        self.policy = policy or RetentionPolicy()
        self._processor = processor
        self._turn = threading.Lock()

    def run_once(self, *, now: datetime | None = None, compact: bool = True, by_age: bool = True) -> RetentionReport:
        """Remove data beyond the policy, then merge small files. `by_age`: true to apply the age limit.

        Raises:
            StoreError: a write failed. The next run retries the remaining files.
        """
        with self._turn:
            policy = self.policy if by_age else replace(self.policy, max_age=None)
            return self._run(now or self._store.time.now(), policy, compact=compact)

    def _run(self, now: datetime, policy: RetentionPolicy, *, compact: bool) -> RetentionReport:
        started = time.perf_counter()
        age = self.policy.max_age
        report = RetentionReport(
            max_bytes=self.policy.max_bytes,
            max_age_seconds=None if age is None else age.total_seconds(),
        )
        merged = self._store.archive.merge()
        report.problems += [f"{place}: {why}" for place, why in merged.waiting.items()]
        report.missing_files = self._store.archive.lose_missing(file.path for file in self.files())
        self._store.archive.reexamine()
        self._reduce(expired(self.files(), policy, now), report)
        if compact:
            self._merge_some(report)
        files = self.files()
        self._store.damaged.look({file.path: (file.bytes, file.rows) for file in files})
        report.raw_files, report.raw_bytes = len(files), sum(file.bytes for file in files)
        report.seconds = time.perf_counter() - started
        return report

    def files(self) -> list[Kept]:
        """Return the files with tokens, oldest first."""
        return [file for file in self._all() if file.kind in RAW_KINDS]

    def _all(self) -> list[Kept]:
        """Return the files of runs that are not deleted. Of a run whose deletion was cut short, they go with it."""
        deleted = self._store.archive.tombstones
        return [Kept(**row) for row in queries.raw_files(self._store).to_pylist() if row["run"] not in deleted]

    def _reduce(self, files: Sequence[Kept], report: RetentionReport) -> None:
        """Replace token files by statistics of their sequences, all files of one run and kind together."""
        for (run, kind), some in groupby(sorted(files, key=_owner), key=_owner):
            gone = list(some)
            self._store.archive.reduce(run, kind, [file.path for file in gone])
            report.removed_files += len(gone)
            report.removed_bytes += sum(file.bytes for file in gone)

    def _merge_some(self, report: RetentionReport) -> None:
        """Merge small files of the runs that have the most of them."""
        until = self._processor() + _MERGE_SECONDS
        small = Counter(_owner(file) for file in self._all() if file.bytes < SMALL_BYTES and file.kind not in TIERS)
        for (run, _), count in small.most_common():
            if count < SMALL_FILES or self._processor() > until:
                return
            report.merged_files += self._store.archive.compact(run)


def expired(files: Iterable[Kept], policy: RetentionPolicy, now: datetime) -> list[Kept]:
    """Return the files that exceed the policy, oldest first. `files`: oldest first."""
    gone: list[Kept] = []
    left = list(files)
    if policy.max_age is not None:
        oldest = now - policy.max_age
        gone, left = [f for f in left if f.created_at < oldest], [f for f in left if f.created_at >= oldest]
    if policy.max_bytes is not None:
        gone += over(left, policy.max_bytes)
    return gone


def over(files: Sequence[Kept], limit: int) -> list[Kept]:
    """Return the oldest files whose removal brings the rest below `limit` bytes."""
    excess = sum(file.bytes for file in files) - limit
    gone = []
    for file in files:
        if excess <= 0:
            break
        gone.append(file)
        excess -= file.bytes
    return gone


def _owner(file: Kept) -> tuple[str, str]:
    return file.run, file.kind
