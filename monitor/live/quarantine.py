"""Moves files that cannot be trusted out of the spool, with the reason in the store.

The row is written before the file is moved, and where it is moved to follows from where it was: a service killed
between the two finds the file again and finishes the move without counting it twice. Nothing is opened: a file is moved
by its name alone, whatever it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from logprobe.collectors.errors import SegmentError
from logprobe.monitor.home import Home
from logprobe.monitor.plain_text import file_name, printable
from logprobe.monitor.store.store import Store


def quarantine(store: Store, path: Path, run: str | None, error: SegmentError) -> bool:
    """Move `path` below ``quarantine/``. False when it was gone already.

    Raises `StoreError` or `OSError` when that is not possible; the file stays where it is.
    """
    target = _free_place(store.home, path)
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        return False
    with store.transaction() as cursor:
        store.execute(
            cursor,
            "quarantine_add",
            path=store.home.relative(target),
            origin=store.home.relative(path),
            run=None if run is None else printable(run),
            reason=error.reason,
            message=printable(str(error)),
            bytes=size,
            moved_at=store.time.now(),
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return True


def forget_the_lost(store: Store) -> None:
    """Remove rows whose file does not lie in quarantine: it was put back and the service killed before the row went, or
    killed before the file was moved. What lies in the spool is judged again.

    Raises `StoreError`.
    """
    paths = store.query("SELECT path FROM quarantine")["path"].to_pylist()
    lost = [path for path in paths if not os.path.lexists(store.home.path / path)]
    if lost:
        with store.transaction() as cursor:
            for path in lost:
                store.execute(cursor, "quarantine_forget", path=path)


def _free_place(home: Home, path: Path) -> Path:
    """Return the file's path below ``quarantine/``, with a number if another file of that name is there."""
    first = home.quarantine.joinpath(*(file_name(part) for part in path.relative_to(home.spool).parts))
    target, number = first, 0
    while os.path.lexists(target):
        number += 1
        target = first.with_name(f"{first.name}.{number}")
    return target
