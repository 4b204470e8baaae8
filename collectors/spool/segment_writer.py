"""Writing segments to a disk that may refuse: attempts, back-off, counts."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from logprobe.collectors.health import Health
from logprobe.collectors.spool.segments import SpoolWriter

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


class SegmentWriter:
    """One writer's way to the disk. After a refusal it is `blocked` for a pause that doubles up to 30 s."""

    def __init__(self, spool: SpoolWriter, health: Health) -> None:
        self.segments = 0
        self.rows = 0
        self.refusal: str | None = None  # why the disk refused last; None: it does not
        self.seconds = 0.0  # that the last write took
        self.slowest = 0.0  # that any write took
        self._spool = spool
        self._health = health
        self._pause = 0.0
        self._retry_at = 0.0

    @property
    def bytes(self) -> int:
        """Size of all segments that are durable."""
        return self._spool.nbytes

    @property
    def blocked(self) -> bool:
        """Whether the disk refused and the pause is not over."""
        return self.refusal is not None and time.monotonic() < self._retry_at

    def hurry(self) -> None:
        """Try once more at once: there will be no later."""
        self._retry_at = 0.0

    @property
    def settled(self) -> bool:
        """Whether everything that was taken is durable. When not, one segment is in its place, or may be, and is
        settled first."""
        return self._spool.settled

    def settle(self) -> bool:
        """Bring a segment whose fate is unknown to its end, unless `blocked`; → `settled`."""
        if self.settled:
            return True
        if not self.blocked:
            self._tried(self._spool.settle)
        return self.settled

    def write(self, kind: str, table: pa.Table) -> bool:
        """Take `table` and make it durable. False: the disk refuses, which starts or doubles the pause, and has nothing
        of it.

        True with `settled` False: someone may have seen it. Its rows are the segment_writer's now, and must not be
        written again.
        """
        if self.blocked or not self.settle():
            return False
        if not self._tried(lambda: self._attempt(kind, table)) and self.settled:
            return False
        self.segments += 1
        self.rows += table.num_rows
        return True

    def _tried(self, action: Callable[[], None]) -> bool:
        started = time.monotonic()
        try:
            action()
        except OSError as error:
            self._refused(error)
            return False
        finally:
            self.seconds = time.monotonic() - started
            self.slowest = max(self.slowest, self.seconds)
        self._pause, self.refusal = 0.0, None
        return True

    def _attempt(self, kind: str, table: pa.Table) -> None:
        try:
            self._spool.write(kind, table)
        except OSError as error:
            if error.errno in _FULL or self.refusal is not None:
                raise
            # Network file systems fail once and are well again.
            if self.settled:
                self._spool.write(kind, table)
            else:
                self._spool.settle()

    def _refused(self, error: OSError) -> None:
        self.refusal = f"{type(error).__name__}: {error}"
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._retry_at = time.monotonic() + self._pause
        problem = "the disk is full" if error.errno in _FULL else "the home cannot be written"
        message = f"{problem}: {self.refusal}; raw tokens are dropped, and statistics kept in memory until it can be"
        self._health.report("disk_refused", message, severity="error")
