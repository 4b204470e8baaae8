"""What the service does with a home's files, in words: raw tokens on the disk and in the object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logprobe.app.text.numbers import counted, data_size, duration


def raw_of(progress: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Of one run (`row` of ``cli_raw``), with what the job says of the whole home; None: there is no object store."""
    if not progress.get("place") and not row["stored_files"]:
        return None
    disk = f"{_files(row['files'], row['bytes'])} on the disk"
    stored = f"{_files(row['stored_files'], row['stored_bytes'])} in the object store"
    return "; ".join(filter(None, (disk, stored, waiting(progress))))


def home_of(progress: Mapping[str, Any]) -> str | None:
    """Of the whole home, by what the job says; None: there is no object store."""
    if not progress.get("place") and not progress.get("stored_files"):
        return None
    place = progress["place"] or "an object store that logprobe.yaml no longer names"
    stored = f"{_files(progress['stored_files'], progress['stored_bytes'])} in {place}"
    removing = f"{counted(progress['to_remove'], 'object')} to be removed" if progress["to_remove"] else None
    problem = progress.get("problem")
    return "; ".join(filter(None, (stored, waiting(progress), removing, problem)))


def waiting(progress: Mapping[str, Any]) -> str | None:
    """What should be in the object store and is not yet, in the whole home; None: nothing."""
    if not progress.get("waiting_files"):
        return None
    late = duration(progress["waiting_seconds"])
    return f"{_files(progress['waiting_files'], progress['waiting_bytes'])} of this home wait to be moved, for {late}"


def _files(number: int, size: int) -> str:
    return f"{counted(number, 'file')} ({data_size(size)})"


def store_of(progress: Mapping[str, Any]) -> str:
    """What the store holds, its limit, what it could give back and how fast it grows, by what the job `store_budget`
    saw last."""
    if "bytes" not in progress:
        return "size unknown: the service has not checked yet"
    limit = progress["max_bytes"]
    words = data_size(progress["bytes"]) + (" in use, no limit" if limit is None else f" of {data_size(limit)} in use")
    if progress["over"]:
        words += "; nothing more can be folded"
    if progress.get("free_bytes"):
        words += f"; {data_size(progress['free_bytes'])} free in its file"
    if (growth := progress.get("growth")) is not None:
        words += f"; {'grows' if growth >= 0 else 'shrinks'} by {data_size(abs(growth))} a day"
    return words
