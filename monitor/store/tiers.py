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
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, TIERS, Merged

BELOW: Final = {SEQUENCES: ("training", "rollout"), FROZEN: (SEQUENCES, "statistics")}  # kinds that each tier replaces


def replace(
    archive: Archive,
    run: str,
    tier: str,
    files: Sequence[Merged],
    rows: pa.Table,
    *,
    counts: Mapping[str, Counts] | None = None,
) -> Merged:
    """Write `rows` of a tier in place of `files`, which the next `Archive.sweep` removes.

    `rows`: one per sequence of `files`, or one per frozen step; then `files`, possibly none, have no records of other
    steps. `counts`: counts of their segments, see `Archive.put`. Raises `OSError`, or `StoreError` if `files` have
    changed. In that case no file is removed.
    """
    there = archive.files(run)
    if any(file.kind not in BELOW[tier] or file not in there for file in files):
        raise StoreError(f"files of run {run!r} have changed, or are not {', '.join(BELOW[tier])}; list them again")
    segments = set[str]().union(*(file.segments for file in files))
    if any(file.tier >= TIERS[tier] and not segments.isdisjoint(file.segments) for file in there):
        raise StoreError(f"files of run {run!r} are partly reduced already; merge them first")  # would count twice
    return archive.put(run, tier, rows, sorted(segments), counts)
