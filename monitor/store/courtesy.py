"""What is urgent goes first, between threads of one store that all want the processor.

Threads of a process share the processor alike, whatever they do, and Python lets one of them run at a time: on a busy machine a report
or a profile takes it from the ingest that all judgements wait for. So a job says whether it is urgent, and while one that is has work under way,
the others rest after each statement, nine times as long as they have worked since the last one. So each has a tenth of the time, and all
of it as soon as nothing urgent is under way. A rest has an end: whoever has worked for long does not pay for it in full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_REST: Final = 9.0
_LONGEST: Final = 5.0  # seconds


class Courtesy:
    """Safe from any thread; a thread that has not said whether it is urgent neither rests nor makes others rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._urgent = 0  # pieces of work under way
        self._changed = threading.Condition()
        self._mine = threading.local()  # `since`: when this thread began to work; None: it does not rest

    @contextmanager
    def work(self, *, urgent: bool) -> Iterator[None]:
        """This thread's work, to the end of the block; work inside other work is of its kind."""
        if getattr(self._mine, "at_work", False):
            yield
            return
        self._mine.at_work, self._mine.since = True, None if urgent else self._clock()
        self._count(urgent)
        try:
            yield
        finally:
            self._mine.at_work, self._mine.since = False, None
            self._count(-urgent)

    def _count(self, more: int) -> None:
        with self._changed:
            self._urgent += more
            self._changed.notify_all()

    def rest(self) -> None:
        """To be called between two pieces of work, without a lock that urgent work may want: waits where this thread is to."""
        since = getattr(self._mine, "since", None)
        if since is None:
            return
        with self._changed:
            if self._urgent:
                seconds = min(_REST * (self._clock() - since), _LONGEST)
                self._changed.wait_for(lambda: not self._urgent, seconds)
        self._mine.since = self._clock()
