"""Memory of a recorder's copies: a ring that host threads fill in order and the recorder's thread releases.

Copying 64×512 tokens takes some microseconds, and the page faults of fresh memory ten times as long. An empty ring
therefore restarts at its beginning, and only the recent peak stays allocated.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_IDLE_BYTES: Final = 16 << 20  # kept however quiet it gets
_PIECE: Final = 4 << 20  # given back to the system at a time: a host that records meanwhile waits for no more
_ANONYMOUS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a forked child has its own


@dataclass(slots=True, eq=False)
class Claim:
    """Bytes [start, start + nbytes) of the ring, and bytes of the same budget outside it."""

    start: int
    nbytes: int
    elsewhere: int
    given_back: bool = False


class Ring:
    """Budget of `limit` bytes in the ring and elsewhere. Every method may be called from every thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0
        self._lock = threading.Lock()  # held for a few instructions only
        self._claims: deque[Claim] = deque()  # in the order of the ring; the first is the oldest that is in use
        self._head = 0
        self._peak = 0  # end of the memory that was needed lately
        self._touched = 0  # end of the memory that the process has
        self._mapped: mmap.mmap | None = None
        self.memory: NDArray[np.uint8] = np.empty(0, np.uint8)  # [limit], once there was a claim
        self.view = memoryview(b"")  # the same as bytes

    def claim(self, nbytes: int, elsewhere: int = 0) -> Claim | None:
        """Return `nbytes` of contiguous ring memory, or None if they or the bytes `elsewhere` exceed the limit.

        Raises:
            OSError: the system has no memory for the ring.
        """
        with self._lock:
            if self.in_use + nbytes + elsewhere > self.limit:
                return None
            if not nbytes:
                start = 0
            elif (found := self._free(nbytes)) is None:
                return None
            else:
                start = found
            claim = Claim(start, nbytes, elsewhere)
            self.in_use += nbytes + elsewhere
            if nbytes:
                self._claims.append(claim)
                self._head = start + nbytes
                self._peak = max(self._peak, self._head)
                self._touched = max(self._touched, self._head)
            return claim

    def _free(self, nbytes: int) -> int | None:
        if self._mapped is None:
            self._map()
        if not self._claims:
            return 0
        tail = self._claims[0].start
        if self._head <= tail:  # it has begun again: free is what lies between
            return self._head if self._head + nbytes <= tail else None
        if self._head + nbytes <= self.limit:
            return self._head
        return 0 if nbytes <= tail else None

    def _map(self) -> None:
        self._mapped = mmap.mmap(-1, self.limit, flags=_ANONYMOUS)
        with suppress(AttributeError, OSError):  # this system has no such pages
            self._mapped.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._mapped)
        self.memory = np.frombuffer(self._mapped, np.uint8)

    def give_back(self, claim: Claim) -> None:
        """Release a claim. Its memory may be overwritten afterwards."""
        with self._lock:
            claim.given_back = True
            self.in_use -= claim.nbytes + claim.elsewhere
            while self._claims and self._claims[0].given_back:
                self._claims.popleft()

    def tend(self) -> None:
        """Return memory beyond the recent peaks to the operating system. Only the recorder's thread calls this."""
        keep = max(_IDLE_BYTES, -(-self._peak // _PIECE) * _PIECE)
        while self._touched > keep:
            with self._lock:
                if self._claims or self._mapped is None:
                    return
                start = max(keep, (self._touched - 1) // _PIECE * _PIECE)
                self._mapped.madvise(mmap.MADV_DONTNEED, start, min(_PIECE, self.limit - start))
                self._touched = start
        self._peak = self._peak * 15 // 16
