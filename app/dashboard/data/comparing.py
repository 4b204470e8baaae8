"""What runs are compared by: each read once per state of it, and each comparison made once, for all sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from logprobe.app.dashboard.data.feed import Run
from logprobe.monitor.compare import Comparison, History, Place, compared, history
from logprobe.monitor.compare.axes import Axis
from logprobe.monitor.slices import Source

T = TypeVar("T")

_HISTORIES: Final = 24  # some 15 columns each
_COMPARISONS: Final = 8


class Recent(Generic[T]):
    """The newest few values by key. Thread-safe; what is made at the same time by two is made twice."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, made now unless it is there. Raises what `make` does."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        value = make()
        with self._lock:
            self._known[key] = value
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return value


class Comparer:
    """Compares runs of one home. Thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._histories: Recent[History] = Recent(_HISTORIES)
        self._comparisons: Recent[Comparison] = Recent(_COMPARISONS)

    def compare(self, runs: tuple[Run, ...], baseline: Run, *, axis: Axis, metrics: tuple[str, ...]) -> Comparison:
        """The comparison as of what is known of the runs now.

        Raises:
            ConfigurationError: a run that cannot be aligned on `axis`.
            ServiceUnavailableError: nobody answers.
            QueryError: see `Reader.read`.
        """
        key = (axis, metrics, *map(state_of, (baseline, *runs)))
        return self._comparisons.of(key, lambda: self._compare(runs, baseline, axis, metrics))

    def _compare(self, runs: tuple[Run, ...], baseline: Run, axis: Axis, metrics: tuple[str, ...]) -> Comparison:
        reference, *others = [self._history(run, metrics) for run in (baseline, *runs)]
        return compared(others, reference, axis=axis, metrics=metrics)

    def _history(self, run: Run, metrics: tuple[str, ...]) -> History:
        place = Place(run.name, run.name, self._source)
        return self._histories.of((state_of(run), metrics), lambda: history(place, metrics))


def state_of(run: Run) -> tuple[Any, ...]:
    """Another one whenever something was recorded of the run, or found out about it."""
    return (run.name, run.revision, run.news)
