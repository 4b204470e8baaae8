"""Weight updates of the engines: lag per engine, durations and anomalies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

State = Literal["current", "behind", "stopped", "unknown"]

# In strides, the number of versions that lie between two updates of the same engine as a rule. One stride behind is an
# update under way.
_LATE: Final = 2
_GONE: Final = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """Publications of the trainer or updates of one engine, with counts and durations over the whole run.

    `behind`: number of versions between its newest one and the run's. It is None, like `newest_version`, without a
    reported version. `missed`: versions published since its last update. `kept`: updates without a cleared prefix
    cache. `unknown`: updates without a version. `all_unloaded`: versions named without an observed load. Delays and
    pauses are in seconds.
    """

    source: str  # "trainer" | "engine"
    replica: str | None
    updates: int
    newest_version: str | None
    behind: int | None
    missed: int
    usual_stride: int
    all_skipped: int
    all_backwards: int
    all_unloaded: int
    all_reloads: int
    cleared: int
    kept: int
    unknown: int
    usual_delay: float | None
    longest_delay: float | None
    usual_pause: float | None
    longest_pause: float | None
    pauses: Sequence[str] | None

    @property
    def state(self) -> State:
        """Classify the engine's lag relative to its update interval. An engine that takes every fourth version is not
        late at the third. An engine that still updates, but to old versions, has not stopped.
        """
        if self.behind is None:
            return "unknown"
        if self.behind <= _LATE * self.usual_stride:
            return "current"
        return "stopped" if self.missed > _GONE * self.usual_stride else "behind"


def lanes(source: Source, run: str) -> tuple[Lane, ...]:
    """Return the trainer first, then the engines by name. `source`: a `Reader` or a `Store`. Raises `QueryError`."""
    return tuple(Lane(**row) for row in queries.app_weights_updates(source, run=run).to_pylist())
