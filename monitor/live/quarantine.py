"""Move untrusted files from the spool to the quarantine and record the reason in the store.

The row is written before the move, and the target path depends only on the source path. A service killed between the
two steps completes the move at its next start and counts the file once. No file is opened, because the move needs only
its name.
"""

from __future__ import annotations

import os
from pathlib import Path

from logprobe.collectors.errors import SegmentError
from logprobe.monitor.home import Home
from logprobe.monitor.plain_text import file_name, printable
from logprobe.monitor.store.store import Store


def quarantine(store: Store, path: Path, run: str | None, error: SegmentError) -> bool:
    """Move `path` below ``quarantine/``. Return False if it no longer exists.

    Raises `StoreError` or `OSError` if the move fails. The file then stays in the spool.
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
    """Remove rows without a file in quarantine. A file that is still in the spool is examined again.

    Such rows remain if the service was killed before it moved the file, or after it put the file back.

    Raises `StoreError`.
    """
    paths = store.query("SELECT path FROM quarantine")["path"].to_pylist()
    lost = [path for path in paths if not os.path.lexists(store.home.path / path)]
    if lost:
        with store.transaction() as cursor:
            for path in lost:
                store.execute(cursor, "quarantine_forget", path=path)


def _free_place(home: Home, path: Path) -> Path:
    """Return the file's path below ``quarantine/``. If the name is taken, add a number."""
    first = home.quarantine.joinpath(*(file_name(part) for part in path.relative_to(home.spool).parts))
    target, number = first, 0
    while os.path.lexists(target):
        number += 1
        target = first.with_name(f"{first.name}.{number}")
    return target
