"""Moves files that cannot be trusted out of the spool, with the reason in the store.

The row is written before the file is moved, and where it is moved to follows from where it was: a service killed between the
two finds the file again and finishes the move without counting it twice.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from logprobe.collectors.errors import SegmentError
from logprobe.monitor.home import Home
from logprobe.monitor.store import Store

_INSERT = """
INSERT INTO quarantine (path, origin, run, reason, message, bytes, moved_at)
SELECT $path, $origin, $run, $reason, $message, $bytes, $moved_at
WHERE NOT EXISTS (FROM quarantine WHERE path = $path)
"""


def quarantine(store: Store, path: Path, run: str | None, error: SegmentError) -> bool:
    """Moves `path` below ``quarantine/``. False when it was gone already.

    Raises `StoreError` or `OSError` when that is not possible; the file stays where it is.
    """
    target = _free_place(store.home, path)
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        return False
    with store.transaction() as cursor:
        cursor.execute(
            _INSERT,
            {
                "path": store.home.relative(target),
                "origin": store.home.relative(path),
                "run": run,
                "reason": error.reason,
                "message": str(error),
                "bytes": size,
                "moved_at": datetime.now(UTC),
            },
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return True


def _free_place(home: Home, path: Path) -> Path:
    """The file's path below ``quarantine/``, with a number if another file of that name is there."""
    first = home.quarantine / path.relative_to(home.spool)
    target, number = first, 0
    while target.exists():
        number += 1
        target = first.with_name(f"{first.name}.{number}")
    return target
