"""Reusable memory for the copies a recorder takes.

Copying 64×512 tokens costs some microseconds; the page faults of a freshly mapped buffer cost ten times that. So blocks are
kept and used again, and the recorder's thread keeps a touched spare of every size in use.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
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
    """A piece of reusable memory: `memory` is uint8 [size], `view` the same as bytes; `owner` is the object that keeps it alive."""

    memory: NDArray[np.uint8]
    owner: Any
    view: memoryview

    @property
    def size(self) -> int:
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
    """Bytes a recorder may hold, shared by all its threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self.in_use = 0

    def take(self, nbytes: int) -> bool:
        """Reserve `nbytes`; False when they do not fit."""
        with self._lock:
            if self.in_use + nbytes > self.limit:
                return False
            self.in_use += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Release what was reserved."""
        with self._lock:
            self.in_use -= nbytes


class BlockPool:
    """Blocks in use never exceed the budget. Many threads may take; one thread gives back and tends."""

    def __init__(self, budget: Budget, allocate: Callable[[int], Block] = plain_block) -> None:
        self._budget = budget
        self._allocate = allocate
        self._free: defaultdict[int, deque[Block]] = defaultdict(deque)
        self._used_sizes: set[int] = set()
        self._peak = 0

    @property
    def idle(self) -> int:
        """Bytes kept for reuse."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    def take(self, nbytes: int, extra_bytes: int = 0) -> Block | None:
        """A block of at least `nbytes`, or None when the budget does not allow it and what comes along with it."""
        size = size_class(nbytes)
        if not self._budget.take(size + extra_bytes):
            return None
        try:
            return self._free[size].pop()
        except IndexError:
            self._used_sizes.add(size)
            return self._allocate(size)

    def give_back(self, block: Block, extra_bytes: int = 0) -> None:
        """Return a block; its content may be overwritten from now on."""
        self._peak = max(self._peak, self._budget.in_use)
        self._budget.give_back(block.size + extra_bytes)
        self._free[block.size].append(block)  # the one used last is taken first: it is still in a cache

    def tend(self) -> None:
        """Touch spares of sizes that ran out, and let go of what the last peak did not need."""
        for size in list(self._used_sizes):
            self._used_sizes.discard(size)
            while len(self._free[size]) < _SPARES and self._budget.in_use + self.idle + size <= self._budget.limit:
                block = self._allocate(size)
                block.memory.fill(0)
                self._free[size].appendleft(block)
        self._trim(max(_IDLE_BYTES, 2 * self._peak))
        self._peak = max(self._budget.in_use, self._peak * 15 // 16)

    def _trim(self, keep: int) -> None:
        for size in sorted(self._free, reverse=True):
            while self._free[size] and self.idle > keep:
                self._pop(size)

    def _pop(self, size: int) -> None:
        try:
            self._free[size].popleft()
        except IndexError:  # a taker was quicker
            return
