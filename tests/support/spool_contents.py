"""What lies in a spool, read the way ingest reads it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from logprobe.collectors.spool.segments import Segment, SegmentPath, is_temporary, read_segment, spool_dir


def segments(home: Path) -> list[Segment]:
    """Every segment below `home`, verified, in the order of each writer. A file that is none fails the test."""
    paths = [path for path in sorted(spool_dir(home).rglob("*")) if path.is_file() and not is_temporary(path)]
    return [read_segment(SegmentPath.parse(path)) for path in paths]


def rows(home: Path, kind: str) -> list[dict[str, Any]]:
    """All rows of one kind."""
    return [row for segment in segments(home) if segment.where.kind == kind for row in segment.table.to_pylist()]


def by_sample(home: Path, kind: str) -> dict[str, dict[str, Any]]:
    """Rows of one kind by sample id; every id must be there once."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows(home, kind):
        assert row["sample_id"] not in found, row["sample_id"]
        found[row["sample_id"]] = row
    return found


def health_events(home: Path) -> dict[str, list[dict[str, Any]]]:
    """`health` rows by event."""
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(home, "health"):
        events[row["event"]].append(row)
    return events


def waiting(home: Path) -> list[Path]:
    """Segments in a spool that others take files out of."""
    return list(spool_dir(home).rglob("[!.]*.arrow"))
