"""Where raw tokens lie, in words: on the disk, in the object store, and waiting to be moved there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logprobe.app.numbers import counted, data_size, duration


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
    place = progress["place"] or "an object store that storage.yaml no longer names"
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
