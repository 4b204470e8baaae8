"""Weight versions of an engine over time, and the file that carries the marks of `weights.mark`.

    <home>/versions/<quoted run>.jsonl      one line per mark, only ever appended to

Several processes may mark, and an engine in any process reads on from where it stopped. A mark carries the time at
which it was made; the engine keeps the time at which each token's step was scheduled, and the two meet when the
finished sequence is written: a token belongs to the last version that was marked before its step began. A mark that the
engine reads too late for that reaches the sequence in the monitor, which knows all marks and the times of the steps. On
one machine the monotonic clock decides; between two the accuracy is that of their clocks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.addresses import folder_of
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.json_lines import JsonLines
from logprobe.collectors.spool.segments import run_dir

Span = tuple[int, int, str | None]
_MOST_CHANGES: Final = 4096  # versions remembered; only requests that live longer than that many updates would notice


@dataclass(frozen=True, slots=True)
class Decision:
    """The version of the tokens up to `end` was decided by what happened at `at` (None: nothing was known); `last` is
    their last step."""

    end: int
    at: float | None
    last: float


@dataclass(frozen=True, slots=True)
class Mark:
    """`version` is in the engines of `replica` (None: all) since `applied_at` (seconds since the epoch).

    `moment` is the same on the monotonic clock of `machine` (see `clock`), which no setting of a clock can move.
    `adapter`: the mark is about this LoRA adapter, not about the weights below it.
    """

    version: str
    applied_at: float
    step: int | None = None
    replica: str | None = None
    adapter: str | None = None
    moment: float | None = None
    machine: str | None = None


def home_and_run(home: str | os.PathLike[str] | None = None, run: str | None = None) -> tuple[Path, str]:
    """Return what was given, else ``LOGPROBE_HOME`` and ``LOGPROBE_RUN``; of a bucket the folder in front of it.

    Raises:
        ConfigurationError: neither says it, or an address is wrong.
    """
    home, run = home or os.environ.get("LOGPROBE_HOME"), run or os.environ.get("LOGPROBE_RUN")
    if not home or not run:
        missing = "LOGPROBE_RUN to a name for this training run" if home else "LOGPROBE_HOME to a directory"
        raise ConfigurationError(f"unknown where to record: set {missing}")
    return folder_of(home), run


class MarkFile:
    """The marks of one run. One reader per object; any number of writers."""

    def __init__(self, home: Path, run: str) -> None:
        self.path = home / "versions" / f"{run_dir(home, run).name}.jsonl"
        self._lines = JsonLines(self.path)
        self._foreign = 0

    @property
    def foreign_lines(self) -> int:
        """Lines that are no marks."""
        return self._foreign + self._lines.foreign_lines

    def append(self, mark: Mark) -> None:
        """Make `mark` visible to all readers. Raises `OSError`."""
        self._lines.append(asdict(mark))

    def read_new(self) -> list[Mark]:
        """Marks appended since the last call; lines that are no marks are counted and skipped. Raises `OSError`."""
        return list(self._parse(self._lines.read_new()))

    def _parse(self, documents: Iterable[dict[str, Any]]) -> Iterator[Mark]:
        for document in documents:
            try:
                yield Mark(
                    str(document["version"]),
                    float(document["applied_at"]),
                    None if document.get("step") is None else int(document["step"]),
                    document.get("replica"),
                    document.get("adapter"),
                    None if document.get("moment") is None else float(document["moment"]),
                    document.get("machine"),
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                self._foreign += 1


class Timeline:
    """Versions of one engine by time; None means unknown, which is what it starts with. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._versions: list[str | None] = []

    def set(self, time: float, version: str | None) -> None:
        """From `time` (seconds since the epoch) on, until the next change, the weights are `version`."""
        with self._lock:
            index = bisect_right(self._times, time)
            self._times.insert(index, time)
            self._versions.insert(index, version)
            if len(self._times) > _MOST_CHANGES:
                del self._times[0], self._versions[0]

    def at(self, time: float) -> str | None:
        """The version at `time`, None where it is unknown."""
        with self._lock:
            index = bisect_right(self._times, time)
            return self._versions[index - 1] if index else None

    def decisions(self, times: Sequence[float]) -> list[Decision]:
        """Return the change that decided the version of each run of tokens; steps as in `spans`. A change that becomes
        known later belongs between them."""
        if not times:
            return []
        with self._lock:
            changes = list(self._times)
        decisions = []
        start = 0
        while start < len(times):
            index = bisect_right(changes, times[start])
            end = len(times) if index == len(changes) else bisect_left(times, changes[index], start)
            decisions.append(Decision(end, changes[index - 1] if index else None, times[end - 1]))
            start = end
        return decisions

    def unbroken(self, since: float, until: float) -> bool:
        """Return whether nothing happened to the weights from `since` to `until`, both included, as far as is known
        now."""
        with self._lock:
            return bisect_left(self._times, since) == bisect_right(self._times, until)

    def spans(self, times: Sequence[float]) -> list[Span]:
        """``[start, end)`` runs of equal version over tokens whose steps began at `times` (ascending).

        >>> timeline = Timeline()
        >>> timeline.set(10.0, "4")
        >>> timeline.spans([9.0, 10.0, 11.0])
        [(0, 1, None), (1, 3, '4')]
        """
        if not times:
            return []
        with self._lock:
            first = max(0, bisect_right(self._times, times[0]) - 1)
            last = bisect_right(self._times, times[-1])
            changes = list(zip(self._times[first:last], self._versions[first:last], strict=True))
        spans: list[Span] = []
        for start, end, version in _cut(times, changes):
            if spans and spans[-1][2] == version:
                spans[-1] = (spans[-1][0], end, version)
            elif start < end:
                spans.append((start, end, version))
        return spans


def _cut(times: Sequence[float], changes: list[tuple[float, str | None]]) -> Iterator[Span]:
    """Cuts the tokens at every change; some pieces are empty."""
    # A token belongs to the new version when its step began at the moment of the change or later, hence "strictly
    # before".
    start, version = 0, None
    for changed_at, next_version in changes:
        end = bisect_left(times, changed_at, start)
        yield start, end, version
        start, version = end, next_version
    yield start, len(times), version
