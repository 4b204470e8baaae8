"""Retention in tiers: tokens, then statistics per sequence, then metrics per step.

Each file of a tier names the segments whose records it stands for. It is durable before the files of the tier below go,
and these go only if all their segments are in it (`Archive.sweep`). A step of the last tier is frozen: its metrics are
those of the file, and records that come late are counted and not computed.

A file is reduced as a whole, oldest first. Who calls this decides which files belong to steps that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, Merged

TOKENS: Final = ("training", "rollout")
STATISTICS: Final = (SEQUENCES, "statistics")


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of a home; None: no limit. `token_*`: of files with tokens; `sequence_bytes`: of those with statistics."""

    token_bytes: int | None = None
    token_bytes_of_a_run: int | None = None
    token_seconds: float | None = None
    sequence_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for a negative limit."""
        for name in self.__slots__:
            if (limit := getattr(self, name)) is not None and limit < 0:
                raise ConfigurationError(f"{name} is {limit}; use 0 or more")


@dataclass(frozen=True, slots=True)
class Frozen:
    """A step whose sequences are gone. `at`: when, in seconds since the epoch."""

    step: int
    at: float

    def __str__(self) -> str:
        day = datetime.fromtimestamp(self.at, UTC)
        return f"frozen since {day:%Y-%m-%d}: its sequences were removed by retention; late records are not counted"


def tokens_due(files: Iterable[Merged], policy: Policy, now: float) -> list[Merged]:
    """Return the files to reduce to statistics per sequence, oldest first.

    Args:
        files: of all runs; those of other kinds are ignored. Leave out those with records of steps that go on.
        policy: the limits.
        now: seconds since the epoch.
    """
    left = _oldest_first(files, TOKENS)
    due = []
    if policy.token_seconds is not None:
        due = [file for file in left if file.written < now - policy.token_seconds]
        left = left[len(due) :]
    if policy.token_bytes_of_a_run is not None:
        for _, own in groupby(sorted(left, key=_run), key=_run):
            due += _over(list(own), policy.token_bytes_of_a_run)
        left = [file for file in left if file not in due]
    if policy.token_bytes is not None:
        due += _over(left, policy.token_bytes)
    return sorted(due, key=_age)


def statistics_due(files: Iterable[Merged], policy: Policy) -> list[Merged]:
    """Return the files to reduce to metrics per step, oldest first. `files`: as of `tokens_due`."""
    limit = policy.sequence_bytes
    return [] if limit is None else _over(_oldest_first(files, STATISTICS), limit)


def reduce(archive: Archive, run: str, files: Sequence[Merged], sequences: pa.Table) -> Merged:
    """Write the statistics of the sequences in `files`, one row each. The files go with the next `Archive.sweep`.

    Raises `OSError`, or `StoreError` if `files` are not what is there. Nothing of them is gone then.
    """
    return archive.put(run, SEQUENCES, sequences, _segments_of(archive, run, files, TOKENS))


def freeze(archive: Archive, run: str, files: Sequence[Merged], steps: pa.Table) -> Merged:
    """Write the metrics of the steps in `files`, one row each. The files go with the next `Archive.sweep`.

    Raises as `reduce`.
    """
    return archive.put(run, FROZEN, steps, _segments_of(archive, run, files, STATISTICS))


def frozen(archive: Archive, run: str) -> dict[int, Frozen]:
    """Return the frozen steps of a run. Raises `SegmentError` if a file is damaged, `OSError` if it cannot be read."""
    found: dict[int, Frozen] = {}
    for file in sorted(archive.files(run), key=_age):
        if file.kind == FROZEN:
            for step in archive.table(file)["step"].to_pylist():
                found.setdefault(step, Frozen(step, file.written))
    return found


def without_frozen(table: pa.Table, steps: Collection[int]) -> tuple[pa.Table, dict[int, int]]:
    """Split rows off that came late for frozen steps. Return the others, and the number of those by step."""
    if not steps or "step" not in table.column_names:
        return table, {}
    late = pc.fill_null(pc.is_in(table["step"], pa.array(sorted(steps), pa.int64())), False)
    counts = table["step"].filter(late).value_counts().to_pylist()
    return table.filter(pc.invert(late)), {each["values"]: each["counts"] for each in counts}


def _segments_of(archive: Archive, run: str, files: Sequence[Merged], kinds: Sequence[str]) -> list[str]:
    """Return the segments that a new file stands for. One that is in a file of its tier already would count twice."""
    there = archive.files(run)
    if not files or any(file.kind not in kinds or file not in there for file in files):
        raise StoreError(f"files of run {run!r} have changed, or are not {', '.join(kinds)}; list them again")
    segments = set().union(*(file.segments for file in files))
    if any(
        file.kind not in kinds and file.tier > files[0].tier and not segments.isdisjoint(file.segments)
        for file in there
    ):
        raise StoreError(f"files of run {run!r} have been reduced already, in part; merge them first")
    return sorted(segments)


def _oldest_first(files: Iterable[Merged], kinds: Sequence[str]) -> list[Merged]:
    return sorted((file for file in files if file.kind in kinds), key=_age)


def _over(files: Sequence[Merged], limit: int) -> list[Merged]:
    """Return the oldest files without which the others fit into `limit` bytes."""
    return list(_excess(files, sum(file.nbytes for file in files) - limit))


def _excess(files: Iterable[Merged], nbytes: int) -> Iterator[Merged]:
    for file in files:
        if nbytes <= 0:
            return
        nbytes -= file.nbytes
        yield file


def _age(file: Merged) -> tuple[float, str]:
    return file.written, file.path


def _run(file: Merged) -> str:
    return file.run
