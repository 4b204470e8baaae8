"""Priorities between threads of one store that compete for the processor.

The threads of a process share the processor equally, and Python runs one of them at a time. On a busy machine, a report
or a profile would therefore slow down ingest, which all judgements depend on. Ingest would slow down the diagnosis of a
run that has begun to grow.

Each job thus has a rank. While work of a higher rank is running, a thread pauses after each statement, for nine times
the duration of its work since the last pause. A lower rank thus gets a tenth of the time, and all of it once no higher
rank is active. Each pause has a maximum length.
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
    """Importance of work. A smaller value means a higher rank."""

    DECISION = 0  # an armed run is judged: what to do about it
    JUDGEMENT = 1  # from the spool to the judgement of every run, and to the alert
    OTHER = 2


class Courtesy:
    """Pauses of threads by rank. Safe from any thread. A thread without a rank neither pauses nor delays others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set up without active work. `clock`: time source in seconds."""
        self._clock = clock
        self._under_way = [0] * len(Rank)  # pieces of work
        self._changed = threading.Condition()
        self._mine = threading.local()  # `rank`; `since`: when this thread began to work, or rested last

    @contextmanager
    def work(self, rank: Rank) -> Iterator[None]:
        """Count the block as work of this thread. Nested work keeps the rank of the outer block."""
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
        """Pause between two pieces of work. The calling thread must hold no lock that others need."""
        rank = getattr(self._mine, "rank", None)
        if rank is None:
            return
        with self._changed:
            if any(self._under_way[:rank]):
                seconds = min(_REST * (self._clock() - self._mine.since), _LONGEST)
                self._changed.wait_for(lambda: not any(self._under_way[:rank]), seconds)
        self._mine.since = self._clock()
