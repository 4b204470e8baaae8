"""Reusable memory for the copies a recorder takes.

Copying 64×512 tokens costs some microseconds; the page faults of a freshly mapped buffer cost ten times that. So blocks
are kept and used again, and the recorder's thread keeps a touched spare of every size in use.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SMALLEST: Final = 4096
_SPARES: Final = 2
_IDLE_BYTES: Final = 16 << 20  # kept however quiet it gets


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of reusable memory: `memory` is uint8 [size], `view` the same as bytes; `owner` is the object that keeps
    it alive."""

    memory: NDArray[np.uint8]
    owner: Any
    view: memoryview

    @property
    def size(self) -> int:
        """Bytes."""
        return self.memory.nbytes


def plain_block(size: int) -> Block:
    """A block of ordinary memory."""
    memory = np.empty(size, dtype=np.uint8)
    return Block(memory, memory, memory.data)


def size_class(nbytes: int) -> int:
    """The block size for `nbytes`: four steps per power of two, so at most a quarter is wasted."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((nbytes - 1).bit_length() - 3, 0)
    return -(-nbytes // step) * step


class Budget:
    """Bytes a recorder may hold, in use or kept for reuse; shared by its pools and all its threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.Lock()  # held for a few instructions only; guards the pools too
        self.in_use = 0
        self.idle = 0

    @property
    def free(self) -> int:
        """Bytes that may still be allocated."""
        return self.limit - self.in_use - self.idle


class BlockPool:
    """Blocks of many sizes within a budget. Every method may be called from every thread."""

    def __init__(self, budget: Budget, allocate: Callable[[int], Block] = plain_block) -> None:
        self._budget = budget
        self._allocate = allocate
        self._free: defaultdict[int, list[Block]] = defaultdict(list)
        self._missed: set[int] = set()  # sizes that ran out
        self._peak = 0

    def take(self, nbytes: int, extra_bytes: int = 0) -> Block | None:
        """A block of at least `nbytes`, or None when the budget does not allow it and the `extra_bytes` that come with
        it."""
        size = size_class(nbytes)
        budget = self._budget
        with budget.lock:
            if budget.in_use + size + extra_bytes > budget.limit:
                return None
            budget.in_use += size + extra_bytes
            blocks = self._free[size]
            if blocks:
                budget.idle -= size
                return blocks.pop()  # the one used last: it is still in a cache
            self._missed.add(size)
            evicted = self._evict(-budget.free)
        del evicted
        return self._new(size, extra_bytes)

    def _new(self, size: int, extra_bytes: int) -> Block:
        try:
            return self._allocate(size)
        except BaseException:  # no memory, or none that a device can reach: what was reserved for it is free again
            with self._budget.lock:
                self._budget.in_use -= size + extra_bytes
            raise

    def give_back(self, block: Block, extra_bytes: int = 0) -> None:
        """Return a block; its content may be overwritten from now on."""
        budget = self._budget
        with budget.lock:
            self._peak = max(self._peak, budget.in_use)
            budget.in_use -= block.size + extra_bytes
            budget.idle += block.size
            self._free[block.size].append(block)

    def tend(self) -> None:
        """Touch spares of sizes that ran out, and let go of what the last peaks did not need."""
        for size in list(self._missed):
            self._missed.discard(size)
            while len(self._free[size]) < _SPARES and self._add_spare(size):
                pass
        with self._budget.lock:
            evicted = self._evict(self._budget.idle - max(_IDLE_BYTES, self._peak))
            self._peak = max(self._budget.in_use, self._peak * 15 // 16)
        del evicted

    def _add_spare(self, size: int) -> bool:
        with self._budget.lock:
            if self._budget.free < size:
                return False
            self._budget.idle += size
        block = self._allocate(size)
        block.memory.fill(0)  # a page belongs to us once it has been written to
        with self._budget.lock:
            self._free[size].insert(0, block)
        return True

    def _evict(self, nbytes: int) -> list[Block]:
        """Take idle blocks out until `nbytes` are free, large ones first; returned so that they are freed without the
        lock."""
        evicted: list[Block] = []
        for size in sorted(self._free, reverse=True) if nbytes > 0 else ():
            while self._free[size] and nbytes > 0:
                evicted.append(self._free[size].pop(0))
                self._budget.idle -= size
                nbytes -= size
        return evicted
