"""A pool maps a function over items by the threads of this machine and yields results in the order of the items."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items per worker that are begun before the oldest is asked for: memory is bounded, and no worker waits.
_AHEAD: Final = 2


class Pool:
    """Threads of this machine, for work that numpy and Arrow do without Python's lock; a context manager that ends what still runs."""

    def __init__(self, at_once: int | None = None) -> None:
        """`at_once`: threads; None: one per processor that this process may use."""
        self.at_once = at_once or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="logprobe-pool")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What `work` returns for each item, in their order; raises what it raises.

        Items are taken as workers become free, so they may be made while others are worked on.

        >>> with Pool(at_once=1) as pool:
        ...     list(pool.map(len, ["a", "bc", "def"]))
        [1, 2, 3]
        """
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(self._threads.submit(work, item))
            if len(begun) >= _AHEAD * self.at_once:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
