"""A pool maps a function over items and yields results in the order of the items, wherever they were computed.

`LocalPool` uses the threads of this machine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Ticket = TypeVar("Ticket")

# Items per worker that are begun before the oldest is asked for: memory is bounded, and no worker waits.
_AHEAD: Final = 2


class Pool(Protocol):
    """Workers; a context manager that ends what still runs."""

    @property
    def at_once(self) -> int:
        """How many items are worked on at a time."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Ends what still runs."""

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What `work`, a pure function of a module (or a `partial` of one), returns for each item, in their order;
        raises what it raises.

        Items are taken as workers become free, so they may be made while others are worked on.
        """


class LocalPool:
    """Threads of this machine: for work that numpy and Arrow do without Python's lock."""

    def __init__(self, at_once: int | None = None) -> None:
        """`at_once`: threads; None: one per processor that this process may use."""
        self._at_once = at_once or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="logprobe-pool")

    @property
    def at_once(self) -> int:
        """Threads."""
        return self._at_once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Pool.map`."""

        def begin(item: Item) -> Future[Result]:
            return self._threads.submit(work, item)

        return in_order(begin, lambda ticket: ticket.result(), items, self._at_once)


def in_order(
    begin: Callable[[Item], Ticket], end: Callable[[Ticket], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Begins items, `_AHEAD` per worker, and yields their results in order.

    >>> list(in_order(str, len, [1, 10, 100], at_once=1))
    [1, 2, 3]
    """
    begun: deque[Ticket] = deque()
    for item in items:
        begun.append(begin(item))
        if len(begun) >= _AHEAD * at_once:
            yield end(begun.popleft())
    while begun:
        yield end(begun.popleft())
