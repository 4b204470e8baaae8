"""Writing segments to a disk that may refuse: attempts, back-off, counts."""

from __future__ import annotations

import errno
import time
from typing import Final

import pyarrow as pa

from logprobe.collectors.health import Health
from logprobe.collectors.spool import SpoolWriter

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


class Outlet:
    """One writer's way to the disk. After a refusal it is `blocked` for a pause that doubles up to 30 s."""

    def __init__(self, spool: SpoolWriter, health: Health) -> None:
        self.segments = 0
        self.rows = 0
        self.bytes = 0
        self.refusal: str | None = None  # why the disk refused last; None: it does not
        self._spool = spool
        self._health = health
        self._pause = 0.0
        self._retry_at = 0.0

    @property
    def blocked(self) -> bool:
        """Whether the disk refused and the pause is not over."""
        return self.refusal is not None and time.monotonic() < self._retry_at

    def hurry(self) -> None:
        """Try once more at once: there will be no later."""
        self._retry_at = 0.0

    def write(self, kind: str, table: pa.Table) -> bool:
        """Make `table` durable; False when the disk refuses, which starts or doubles the pause."""
        if self.blocked:
            return False
        try:
            self._attempt(kind, table)
        except OSError as error:
            self._refused(error)
            return False
        self._pause, self.refusal = 0.0, None
        self.segments += 1
        self.rows += table.num_rows
        return True

    def _attempt(self, kind: str, table: pa.Table) -> None:
        try:
            where = self._spool.write(kind, table)
        except OSError as error:
            if error.errno in _FULL or self.refusal is not None:
                raise
            where = self._spool.write(kind, table)  # network file systems fail once and are well again
        self.bytes += where.path.stat().st_size

    def _refused(self, error: OSError) -> None:
        self.refusal = f"{type(error).__name__}: {error}"
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._retry_at = time.monotonic() + self._pause
        what = "the disk is full" if error.errno in _FULL else "the home cannot be written"
        message = f"{what}: {self.refusal}; raw tokens are dropped and statistics kept in memory until it can"
        self._health.report("disk_refused", message, severity="error")
