"""Weight versions of an engine over time, from its own labels and loads.

A trainer's mark (`weights.mark`) is transported as a record. For each token, the engine states the last version
decision and the time at which its step was scheduled. The monitor knows all marks. It assigns a token the last version
marked before the token's step. On one machine the monotonic clock decides. Between two machines the accuracy is that of
their clocks.
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.addresses import folder_of
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.fingerprint import Fingerprint

Span = tuple[int, int, str | None]
_MOST_CHANGES: Final = 4096  # versions remembered; only requests that live longer than that many updates would notice


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens up to `end` of one version, decided at `at`, or None if no decision is known.

    `last`: time of their last step. `content`: fingerprint of the loaded LoRA adapter, or None.
    """

    end: int
    version: str | None
    at: float | None
    last: float
    content: Fingerprint | None = None


def home_and_run(home: str | os.PathLike[str] | None = None, run: str | None = None) -> tuple[Path, str]:
    """Return the given data directory and run, by default ``LOGPROBE_HOME`` and ``LOGPROBE_RUN``. A bucket becomes its
    local folder.

    Raises:
        ConfigurationError: data directory or run is missing, or an address is wrong.
    """
    home, run = home or os.environ.get("LOGPROBE_HOME"), run or os.environ.get("LOGPROBE_RUN")
    if not home or not run:
        missing = "LOGPROBE_RUN to a name for this training run" if home else "LOGPROBE_HOME to a directory"
        raise ConfigurationError(f"no destination for records; set {missing}")
    return folder_of(home), run


class Timeline:
    """Versions of one engine by time, with None for unknown, also at the start. The class is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._versions: list[str | None] = []
        self._forgot = False  # what came before the first of them

    def set(self, time: float, version: str | None) -> None:
        """Set the version of the weights from `time` (seconds since the epoch) until the next change."""
        with self._lock:
            index = bisect_right(self._times, time)
            self._times.insert(index, time)
            self._versions.insert(index, version)
            if len(self._times) > _MOST_CHANGES:
                del self._times[0], self._versions[0]
                self._forgot = True

    def unbroken(self, since: float, until: float) -> bool:
        """Return whether no change of the weights is known from `since` to `until`, both included."""
        with self._lock:
            return bisect_left(self._times, since) == bisect_right(self._times, until)

    def runs(self, times: Sequence[float]) -> list[Run]:
        """Return runs of tokens whose steps began at `times` (ascending), one for each version.

        A token belongs to the new version if its step began at the time of the change or later. Where changes have been
        discarded, no mark can be placed, and `at` is infinite.

        >>> timeline = Timeline()
        >>> timeline.set(10.0, "4")
        >>> spans_of(timeline.runs([9.0, 10.0, 11.0]))
        [(0, 1, None), (1, 3, '4')]
        """
        if not times:
            return []
        version: str | None = None
        with self._lock:
            at = math.inf if self._forgot else None
            first, last = (bisect_right(self._times, time) for time in (times[0], times[-1]))
            if first:
                at, version = self._times[first - 1], self._versions[first - 1]
            later = list(zip(self._times[first:last], self._versions[first:last], strict=True))
        runs: list[Run] = []
        start = 0
        for changed_at, following in [*later, (math.inf, None)]:
            end = bisect_left(times, changed_at, start)
            if start < end:
                runs.append(Run(end, version, at, times[end - 1]))
            start, at, version = end, changed_at, following
        return runs


def spans_of(runs: Iterable[Run]) -> list[Span]:
    """Return the ranges ``[start, end)`` of tokens of equal version, in order."""
    spans: list[Span] = []
    start = 0
    for run in runs:
        if spans and spans[-1][2] == run.version:
            spans[-1] = (spans[-1][0], run.end, run.version)
        else:
            spans.append((start, run.end, run.version))
        start = run.end
    return spans
