"""What runs are compared by: each read once per state of it, and each comparison made once, for all sessions."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from logprobe.app.runs import Run
from logprobe.monitor.compare import Comparison, History, Place, compared, history
from logprobe.monitor.compare.axes import Axis

T = TypeVar("T")

_HISTORIES: Final = 24  # some 15 columns each
_COMPARISONS: Final = 8
_PAUSE: Final = 10.0  # times what it took: a run that is live is compared again a little less often than it grows


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
        return self.put(key, make())

    def put(self, key: Hashable, value: T) -> T:
        """`value`, which is from now on that of `key`."""
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return value


@dataclass(frozen=True)
class Made(Generic[T]):
    """A value, and the state of what it was made of."""

    value: T
    state: Hashable
    at: float
    took: float


class Paced(Generic[T]):
    """The newest value by name, rebuilt when its state changed, but never for more than a tenth of the time. Thread-safe."""

    def __init__(self, most: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._recent: Recent[Made[T]] = Recent(most)
        self._now = now

    def of(self, name: Hashable, state: Hashable, make: Callable[[], T]) -> Made[T]:
        """The value of `name`, of `state` or of one a little older. Raises what `make` does."""
        known = self._recent.of(name, lambda: self._made(state, make))
        if known.state == state or self._now() - known.at < _PAUSE * known.took:
            return known
        return self._recent.put(name, self._made(state, make))

    def _made(self, state: Hashable, make: Callable[[], T]) -> Made[T]:
        begun = self._now()
        value = make()
        done = self._now()
        return Made(value, state, at=done, took=done - begun)


class Comparer:
    """Compares runs. Thread-safe."""

    def __init__(self, place_of: Callable[[str], Place]) -> None:
        """`place_of`: where to read the run of a name."""
        self._place_of = place_of
        self._histories: Recent[History] = Recent(_HISTORIES)
        self._comparisons: Paced[Comparison] = Paced(_COMPARISONS)

    def compare(
        self, runs: tuple[Run, ...], baseline: Run, *, axis: Axis, metrics: tuple[str, ...]
    ) -> Made[Comparison]:
        """The comparison as of what is known of the runs now, or was a moment ago.

        Raises:
            ConfigurationError: a run that cannot be aligned on `axis`.
            ServiceUnavailableError: nobody answers.
            QueryError: see `Reader.read`.
        """
        everyone = (baseline, *runs)
        name = (axis, metrics, *(run.name for run in everyone))
        return self._comparisons.of(
            name, tuple(map(state_of, everyone)), lambda: self._compare(runs, baseline, axis, metrics)
        )

    def _compare(self, runs: tuple[Run, ...], baseline: Run, axis: Axis, metrics: tuple[str, ...]) -> Comparison:
        reference, *others = [self._history(run, metrics) for run in (baseline, *runs)]
        return compared(others, reference, axis=axis, metrics=metrics)

    def _history(self, run: Run, metrics: tuple[str, ...]) -> History:
        return self._histories.of((state_of(run), metrics), lambda: history(self._place_of(run.name), metrics))


def state_of(run: Run) -> tuple[Any, ...]:
    """Another one whenever something was recorded of the run, or found out about it."""
    return (run.name, run.revision, run.news)
