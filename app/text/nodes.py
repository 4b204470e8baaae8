"""Words about the backlog of shipping nodes, for the command line and the Data page."""

from __future__ import annotations

from typing import Final

from logprobe.app.text.numbers import data_size, duration
from logprobe.monitor import queries

SILENT_SECONDS: Final = 180.0  # a node says something every minute
_CLOCK_SECONDS: Final = 2.0  # a difference too small to matter


def behind(row: queries.NodesOf) -> str:
    """Return the backlog of a node.

    >>> behind({"segments": 3, "bytes": 2048, "behind_seconds": 61.0, "silent_seconds": 1.0})
    '1 min behind: 3 segments, 2 KiB'
    >>> behind({"segments": 0, "bytes": 0, "behind_seconds": 0.0, "silent_seconds": 200.0})
    'up to date 3 min ago, not heard since'
    """
    silent = row["silent_seconds"] > SILENT_SECONDS
    if row["segments"] is None or row["behind_seconds"] is None:
        return "unknown"
    if not row["segments"]:
        return f"up to date {duration(row['silent_seconds'])} ago, not heard since" if silent else "up to date"
    amount = f"{row['segments']:,} segments, {data_size(row['bytes'])}" if row["bytes"] is not None else "segments"
    seen = f" when last heard, {duration(row['silent_seconds'])} ago" if silent else ""
    return f"{duration(row['behind_seconds'])} behind: {amount}{seen}"


def clock(row: queries.NodesOf) -> str:
    """Return the difference of a node's clock from that of the service, or "" if they agree.

    >>> clock({"clock_ahead_seconds": -86400.0}), clock({"clock_ahead_seconds": 0.1})
    ('1 d slow', '')
    """
    ahead = row["clock_ahead_seconds"]
    if ahead is None or abs(ahead) < _CLOCK_SECONDS:
        return ""
    return f"{duration(abs(ahead))} {'fast' if ahead > 0 else 'slow'}"
