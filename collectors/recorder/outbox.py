"""Outbox of a recorder: tables waiting for a disk that may refuse writes.

After each refusal the outbox doubles its pause, up to 30 s. Meanwhile the tables wait in memory. Beyond `KEPT_BYTES`
the older half of the largest kind is dropped first.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from logprobe.collectors.health import Health
from logprobe.collectors.spool.segments import SpoolWriter

KEPT_BYTES: Final = 16 << 20  # while the disk refuses: statistics of some 60,000 sequences
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_CHUNKS: Final = 64


class Outbox:
    """Outbox of one writer. Only the recorder's thread uses it, except for the counts."""

    def __init__(self, spool: SpoolWriter, health: Health, lose: Callable[[str, pa.Table], None]) -> None:
        """Set the spool, the health counts and `lose`, which receives kind and rows of dropped tables."""
        self.spool = spool
        self.segments = 0
        self.rows = 0
        self.refusal: str | None = None  # why the disk refused last; None: it does not
        self.seconds = 0.0  # that the last write took
        self.slowest = 0.0  # that any write took
        self._health = health
        self._lose = lose
        self._kept: dict[str, pa.Table] = {}  # by kind
        self._pause = 0.0
        self._retry_at = 0.0

    @property
    def durable(self) -> bool:
        """True when every accepted table is on disk, fsynced."""
        return not self._kept and self.spool.settled

    def hurry(self) -> None:
        """End the pause, so that the last write is attempted immediately."""
        self._retry_at = 0.0

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting rows by kind."""
        return {kind: table.num_rows for kind, table in self._kept.items()}

    def keep(self, kind: str, table: pa.Table) -> None:
        """Queue `table` for the next `send`. Write immediately if too much is queued."""
        if not table.num_rows:
            return
        if kind in self._kept:
            table = pa.concat_tables([self._kept[kind], table])
        self._kept[kind] = table.combine_chunks() if table.column(0).num_chunks > _CHUNKS else table
        if sum(self._sizes().values()) > KEPT_BYTES:
            self.send()
            self._drop()

    def _sizes(self) -> dict[str, int]:
        return {kind: table.nbytes for kind, table in self._kept.items()}

    def _drop(self) -> None:
        """Drop the older half of the largest table until all fit.

        Dropping smaller parts takes too long while a disk fails.
        """
        while sum((sizes := self._sizes()).values()) > KEPT_BYTES:
            kind = max(sizes, key=sizes.__getitem__)
            table = self._kept.pop(kind)
            older = (table.num_rows + 1) // 2
            self._lose(kind, table.slice(0, older))
            if older < table.num_rows:
                self._kept[kind] = table.slice(older).combine_chunks()

    def send(self) -> None:
        """Write the queued tables until the disk refuses, one segment per kind, small records first."""
        for kind in sorted(self._kept, key=lambda kind: kind == "statistics"):
            if self.write(kind, self._kept[kind].combine_chunks()):
                del self._kept[kind]

    def write(self, kind: str, table: pa.Table) -> bool:
        """Write `table` immediately. Return False if the disk refuses and has none of it.

        True does not guarantee durability. If durability is unknown, `settle` must complete the segment of `spool`.
        """
        if not self.settle() or self._waits():
            return False
        if not self._tried(lambda: self._attempt(kind, table)) and self.spool.settled:
            return False
        self.segments += 1
        self.rows += table.num_rows
        return True

    def settle(self) -> bool:
        """Complete an unsettled segment unless the outbox is pausing, and return whether none is left."""
        if not self.spool.settled and not self._waits():
            self._tried(self.spool.settle)
        return self.spool.settled

    def _waits(self) -> bool:
        return self.refusal is not None and time.monotonic() < self._retry_at

    def _attempt(self, kind: str, table: pa.Table) -> None:
        try:
            self.spool.write(kind, table)
        except OSError as error:
            if error.errno in _FULL or self.refusal is not None:
                raise
            if self.spool.settled:  # network file systems fail once and are well again
                self.spool.write(kind, table)
            else:
                self.spool.settle()

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

    def _refused(self, error: OSError) -> None:
        self.refusal = f"{type(error).__name__}: {error}"
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._retry_at = time.monotonic() + self._pause
        problem = "the disk is full" if error.errno in _FULL else "the home cannot be written"
        message = f"{problem}: {self.refusal}; raw tokens are dropped, and statistics kept in memory until it can be"
        self._health.report("disk_refused", message, severity="error")
