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
    """The trainer's publications, or the updates of one engine; counts and durations are of the whole run.

    `behind`: versions between its newest one and the run's; None, as `newest_version`, where it never said a version;
    `missed`: versions published since its last update; `kept`: updates after which the prefix cache was not cleared;
    `unknown`: updates without a version; `all_unloaded`: versions that were named while no load was seen. Delays and
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
        """Classify the engine's lag relative to its own stride: an engine that takes every fourth version is not late
        at the third, and one that still updates, to old versions, has not stopped."""
        if self.behind is None:
            return "unknown"
        if self.behind <= _LATE * self.usual_stride:
            return "current"
        return "stopped" if self.missed > _GONE * self.usual_stride else "behind"


def lanes(source: Source, run: str) -> tuple[Lane, ...]:
    """Return the trainer first, then the engines by name. `source`: a `Reader` or a `Store`. Raises `QueryError`."""
    return tuple(Lane(**row) for row in queries.app_weights_updates(source, run=run).to_pylist())
