"""Retention in tiers: tokens, then statistics per sequence, then metrics per step.

Each file of a tier lists the segments whose records it replaces. It is durable before files of the tier below are
removed, and only files whose segments are all in it are removed (`Archive.sweep`). A step of the last tier is frozen:
its metrics are those of the file. Late records of it are counted but not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import StoreError
from logprobe.monitor.store.archive import Archive, Counts
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, Merged

TOKENS: Final = ("training", "rollout")
STATISTICS: Final = (SEQUENCES, "statistics")


def reduce(
    archive: Archive, run: str, files: Sequence[Merged], sequences: pa.Table, counts: Mapping[str, Counts] | None = None
) -> Merged:
    """Write the statistics of the sequences in `files`, one row each. The next `Archive.sweep` removes the files.

    `counts`: counts of their segments, see `Archive.put`. Raises `OSError`, or `StoreError` if `files` have changed. In
    that case no file is removed.
    """
    return archive.put(run, SEQUENCES, sequences, _segments_of(archive, run, files, TOKENS), counts)


def freeze(
    archive: Archive, run: str, files: Sequence[Merged], steps: pa.Table, counts: Mapping[str, Counts] | None = None
) -> Merged:
    """Write the metrics of steps, one row each, in place of `files`. The next `Archive.sweep` removes these.

    `files`: files without records of unfrozen steps, possibly none. Raises as `reduce`.
    """
    return archive.put(run, FROZEN, steps, _segments_of(archive, run, files, STATISTICS), counts)


def _segments_of(archive: Archive, run: str, files: Sequence[Merged], kinds: Sequence[str]) -> list[str]:
    """Return the segments of a new file. A segment in another file of the same tier would be counted twice."""
    there = archive.files(run)
    if any(file.kind not in kinds or file not in there for file in files):
        raise StoreError(f"files of run {run!r} have changed, or are not {', '.join(kinds)}; list them again")
    segments = set[str]().union(*(file.segments for file in files))
    if any(
        file.kind not in kinds and file.tier > files[0].tier and not segments.isdisjoint(file.segments)
        for file in there
        if files
    ):
        raise StoreError(f"files of run {run!r} are partly reduced already; merge them first")
    return sorted(segments)
