"""Precedence of what matters more, between threads of one store that all want the processor.

Threads of a process share the processor alike, whatever they do, and Python lets one of them run at a time: on a busy
machine a report or a profile takes it from the ingest that all judgements wait for, and ingest from the diagnosis of a
run that has just begun to grow. So each job has a rank, and while work of a higher one is under way, a thread rests
after each statement, nine times as long as it has worked since the last one. So each has a tenth of the time, and all
of it as soon as nothing of a higher rank is under way. A rest has an end: a thread that has worked for long does not
pay for it in full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

_REST: Final = 9.0
_LONGEST: Final = 5.0  # seconds


class Rank(IntEnum):
    """Importance of work; the smaller, the more."""

    DECISION = 0  # an armed run is judged: what to do about it
    JUDGEMENT = 1  # from the spool to the judgement of every run, and to the alert
    OTHER = 2


class Courtesy:
    """Pauses of threads by rank. Safe from any thread. A thread without a rank neither pauses nor delays others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._under_way = [0] * len(Rank)  # pieces of work
        self._changed = threading.Condition()
        self._mine = threading.local()  # `rank`; `since`: when this thread began to work, or rested last

    @contextmanager
    def work(self, rank: Rank) -> Iterator[None]:
        """Count the block as this thread's work; work inside other work is of its rank."""
        if getattr(self._mine, "rank", None) is not None:
            yield
            return
        self._mine.rank, self._mine.since = rank, self._clock()
        self._count(rank, 1)
        try:
            yield
        finally:
            self._mine.rank = None
            self._count(rank, -1)

    def _count(self, rank: Rank, more: int) -> None:
        with self._changed:
            self._under_way[rank] += more
            self._changed.notify_all()

    def rest(self) -> None:
        """Rest between two pieces of work, without a lock that others may want: wait where this thread is to."""
        rank = getattr(self._mine, "rank", None)
        if rank is None:
            return
        with self._changed:
            if any(self._under_way[:rank]):
                seconds = min(_REST * (self._clock() - self._mine.since), _LONGEST)
                self._changed.wait_for(lambda: not any(self._under_way[:rank]), seconds)
        self._mine.since = self._clock()
