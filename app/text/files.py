"""Words about the size of the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logprobe.app.text.numbers import data_size


def store_of(progress: Mapping[str, Any]) -> str:
    """Return size, limit, free space and growth of the store, from the last run of the job `store_budget`."""
    if "bytes" not in progress:
        return "size unknown: the service has not checked yet"
    limit = progress["max_bytes"]
    words = data_size(progress["bytes"]) + (" in use, no limit" if limit is None else f" of {data_size(limit)} in use")
    if progress["over"]:
        words += "; nothing more can be frozen"
    if progress.get("free_bytes"):
        words += f"; {data_size(progress['free_bytes'])} free in its file"
    if (growth := progress.get("growth")) is not None:
        words += f"; {'grows' if growth >= 0 else 'shrinks'} by {data_size(abs(growth))} a day"
    return words
