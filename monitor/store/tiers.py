"""Retention in tiers: tokens, then statistics per sequence, then metrics per step.

Each file of a tier names the segments whose records it stands for. It is durable before the files of the tier below go,
and these go only if all their segments are in it (`Archive.sweep`). A step of the last tier is frozen: its metrics are
those of the file, and records that come late are counted and not computed.
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

    `counts`: counts of their segments, see `Archive.put`. Raises `OSError`, or `StoreError` if `files` have changed.
    Nothing is removed then.
    """
    return archive.put(run, SEQUENCES, sequences, _segments_of(archive, run, files, TOKENS), counts)


def freeze(
    archive: Archive, run: str, files: Sequence[Merged], steps: pa.Table, counts: Mapping[str, Counts] | None = None
) -> Merged:
    """Write the metrics of steps, one row each, which stand for `files`. These go with the next `Archive.sweep`.

    `files`: without a record of any step that goes on; there may be none yet. Raises as `reduce`.
    """
    return archive.put(run, FROZEN, steps, _segments_of(archive, run, files, STATISTICS), counts)


def _segments_of(archive: Archive, run: str, files: Sequence[Merged], kinds: Sequence[str]) -> list[str]:
    """Return the segments that a new file stands for. One that is in a file of its tier already would count twice."""
    there = archive.files(run)
    if any(file.kind not in kinds or file not in there for file in files):
        raise StoreError(f"files of run {run!r} have changed, or are not {', '.join(kinds)}; list them again")
    segments = set[str]().union(*(file.segments for file in files))
    if any(
        file.kind not in kinds and file.tier > files[0].tier and not segments.isdisjoint(file.segments)
        for file in there
        if files
    ):
        raise StoreError(f"files of run {run!r} have been reduced already, in part; merge them first")
    return sorted(segments)
