"""Move files that cannot be trusted out of the spool, each with its reason beside it.

The reason is written before the file is moved, and its place follows from where the file was: a service killed between
the two finds the file again and finishes the move. Nothing is opened: a file is moved by its name alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import replace_file
from logprobe.monitor.plain_text import file_name, printable

_REASON: Final = ".reason.json"  # ends the name of the file that says why another one is here


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A file in quarantine. `path` and `origin`: below the folders of quarantine and spool; `moved_at`: seconds."""

    path: str
    origin: str
    reason: str  # `SegmentError.reason`
    message: str
    nbytes: int
    moved_at: float


def quarantine(spool: Path, folder: Path, path: Path, error: SegmentError, *, now: float) -> Quarantined | None:
    """Move `path` from the spool below `folder`; return what is known of it, or None if it was gone already.

    Raises `OSError` when that is not possible; the file stays where it is.
    """
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        return None
    target = _free_place(folder, path.relative_to(spool))
    found = Quarantined(
        path=str(target.relative_to(folder)),
        origin=printable(str(path.relative_to(spool))),
        reason=error.reason,
        message=printable(str(error)),
        nbytes=size,
        moved_at=now,
    )
    replace_file(_reason_of(target), json.dumps(asdict(found)).encode())
    path.rename(target)
    return found


def listed(folder: Path) -> Iterator[Quarantined]:
    """Return the files in quarantine whose reasons can be read, by path; a reason without its file is left out."""
    for reason in sorted(folder.rglob(f".*{_REASON}")):
        target = reason.with_name(reason.name[1:].removesuffix(_REASON))
        try:
            if os.path.lexists(target):
                yield Quarantined(**json.loads(reason.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue


def forget(folder: Path, path: str) -> None:
    """Remove the reason of a file that has left quarantine. Raises `OSError`."""
    _reason_of(folder / path).unlink(missing_ok=True)


def _reason_of(target: Path) -> Path:
    return target.with_name(f".{target.name}{_REASON}")


def _free_place(folder: Path, origin: Path) -> Path:
    """The file's path below `folder`, with a number if another file of that name is there."""
    first = folder.joinpath(*(file_name(part) for part in origin.parts))
    target, number = first, 0
    while os.path.lexists(target):
        number += 1
        target = first.with_name(f"{first.name}.{number}")
    return target
