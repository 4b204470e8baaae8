"""Whether records wait for longer than their judgement may take. Then what can wait does, and what leads to a judgement goes first.

The threads of a service share the processor alike, whatever they do: on a busy machine, diagnoses and profiles take it from ingest, and
all runs are judged late. While ingest finds records that have waited in the spool for longer than promised, work that no judgement needs
has a tenth of the time: after each piece it rests for nine times as long as that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from logprobe.monitor.diagnosis.judged import SECONDS

_REST: Final = 9.0
_LONGEST: Final = 60.0  # seconds


class Pressure:
    """What ingest knows, for whoever can wait. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._on = False

    def note(self, waited: float | None) -> None:
        """`waited`: seconds that the oldest record has waited in the spool; None: none waits."""
        self._on = waited is not None and waited > SECONDS

    @property
    def on(self) -> bool:
        """Whether records wait for too long."""
        return self._on

    def holds(self, ended: float, took: float) -> bool:
        """Whether work rests whose last piece `ended` then, by the same clock, and `took` so many seconds."""
        return self._on and self._clock() - ended < min(_REST * took, _LONGEST)
