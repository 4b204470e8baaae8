"""Locks on a data directory, which the kernel releases when a process ends.

<home>/service.lock      held by the service of the data directory
<home>/ship.lock         held by the process that ships the spool
<home>/collectors.lock   shared by the collectors that request shipping
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Self

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PROBE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
SHIPPER: Final = "ship.lock"
COLLECTORS: Final = "collectors.lock"
SERVICE: Final = "service.lock"


class FileLock:
    """Lock file. A lock is acquired immediately or not at all."""

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        """Set the `mode` of a new file."""
        self._path = path
        self._mode = mode
        self._descriptor: int | None = None

    def take(self, *, shared: bool = False) -> bool:
        """Acquire the lock and return whether it is held. Raise `OSError` if the file cannot be opened."""
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, _FLAGS, self._mode)
            if not _locked(descriptor, shared=shared):
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def write(self, content: bytes) -> None:
        """Replace the content of the file durably if the lock is held."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
            os.fsync(self._descriptor)

    def release(self) -> None:
        """Release the lock and keep the file. A removed file would let two processes hold locks of the same name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def held_elsewhere(self) -> bool:
        """True if another process holds the lock exclusively. Raises `OSError`."""
        try:
            descriptor = os.open(self._path, _PROBE_FLAGS)
        except FileNotFoundError:
            return False
        try:  # a shared lock can be had exactly when nobody holds the exclusive one; it disturbs no other reader
            return not _locked(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _locked(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
