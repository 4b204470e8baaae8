"""What runs are compared by: each read once per state of it, and each comparison made once, for all sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from logprobe.app.dashboard.data.stale_cache import Cached, StaleCache
from logprobe.app.runs import Run
from logprobe.monitor.compare import Comparison, History, Place, compared, history
from logprobe.monitor.compare.comparison import Axis

_HISTORIES: Final = 24  # some 15 columns each
_COMPARISONS: Final = 8
_AT_ONCE: Final = 64  # a run elsewhere that hangs holds up nobody who looks at others
PACE: Final = 10.0  # times what it took: a run that is live is compared again a little less often than it grows


class Comparer:
    """Compares runs. Thread-safe."""

    def __init__(self, place_of: Callable[[str], Place]) -> None:
        """`place_of`: where to read the run of a name."""
        self._place_of = place_of
        self._histories = StaleCache(_HISTORIES, at_once=_AT_ONCE)
        self._comparisons = StaleCache(_COMPARISONS, rest=0, times=PACE, at_once=_AT_ONCE)

    def compare(
        self, runs: tuple[Run, ...], baseline: Run, *, axis: Axis, metrics: tuple[str, ...]
    ) -> Cached[Comparison]:
        """The comparison as of what is known of the runs now, or was a moment ago.

        Raises:
            ConfigurationError: a run that cannot be aligned on `axis`.
            ServiceUnavailableError: the service does not answer.
            QueryError: see `Reader.read`.
        """
        everyone = (baseline, *runs)
        name = (axis, metrics, *(run.name for run in everyone))
        return self._comparisons.get(
            name, tuple(map(state_of, everyone)), lambda: self._compare(runs, baseline, axis, metrics)
        )

    def _compare(self, runs: tuple[Run, ...], baseline: Run, axis: Axis, metrics: tuple[str, ...]) -> Comparison:
        reference, *others = [self._history(run, metrics) for run in (baseline, *runs)]
        return compared(others, reference, axis=axis, metrics=metrics)

    def _history(self, run: Run, metrics: tuple[str, ...]) -> History:
        key = (state_of(run), metrics)
        return self._histories.get(key, None, lambda: history(self._place_of(run.name), metrics)).value


def state_of(run: Run) -> tuple[Any, ...]:
    """Another one whenever something was recorded of the run, or found out about it."""
    return (run.name, run.revision, run.news)
