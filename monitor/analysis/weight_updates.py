"""How new weights reach the engines: what arrived where and when, who falls behind, and how old the weights of each
replica's tokens are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.metrics.lag import Versions, WeightRecord
from logprobe.monitor.queries import Source

State = Literal["current", "behind", "stopped", "unknown"]
Floats = NDArray[np.float64]

# In strides, the number of versions that lie between two updates of the same engine as a rule. One stride behind is an
# update under way.
_LATE: Final = 2
_GONE: Final = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A version's first arrival in a lane. Durations in seconds; None: unknown.

    `delay`: from its request, or the begin of its transfer; `pause`: how long generation stood still; `loaded`: the
    engine was seen to load weights; `skipped`: versions before it that never came, beyond what is usual here;
    `reloads`: further loads of the same version.
    """

    version: str
    step: int | None
    arrived_at: datetime | None
    pause_mode: str | None
    cache_cleared: bool | None
    loaded: bool
    delay: float | None
    pause: float | None
    reloads: int
    backwards: bool | None
    skipped: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The trainer's publications, or the updates of one engine; counts and durations are of the whole run.

    `behind`: versions between its newest one and the run's; None, as `newest_version`, where it never said a version;
    `missed`: versions published since its last update; `kept`: updates after which the prefix cache was not cleared;
    `unknown`: updates without a version; `all_unloaded`: versions that were named while no load was seen; `arrivals`:
    those that were asked for, in their order.
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
    arrivals: tuple[Arrival, ...] = ()

    @property
    def state(self) -> State:
        """Whether it keeps up, judged by its own stride: an engine that takes every fourth version is not late at the
        third, and one that still updates, to old versions, has not stopped."""
        if self.behind is None:
            return "unknown"
        if self.behind <= _LATE * self.usual_stride:
            return "current"
        return "stopped" if self.missed > _GONE * self.usual_stride else "behind"


_ARRIVAL: Final = tuple(field.name for field in fields(Arrival))
_LANE: Final = tuple(field.name for field in fields(Lane) if field.name != "arrivals")


def lanes(source: Source, run: str, *, steps: Steps = (None, None), newest: int | None = None) -> tuple[Lane, ...]:
    """The trainer first, then the engines by name.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: arrivals of versions that these steps produced, both included; None: no bound.
        newest: arrivals of so many newest versions; None: of all.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    rows = queries.app_weights_updates(source, run=run, first=steps[0], last=steps[1], newest=newest).to_pylist()
    return tuple(_lane(list(own)) for _, own in groupby(rows, key=lambda row: (row["source"], row["replica"])))


def _lane(rows: Sequence[Mapping[str, Any]]) -> Lane:
    arrivals = tuple(Arrival(**{name: row[name] for name in _ARRIVAL}) for row in rows if row["version"] is not None)
    return Lane(**{name: rows[0][name] for name in _LANE}, arrivals=arrivals)


@dataclass(frozen=True)
class ReplicaLag:
    """How old the weights were that sampled a replica's tokens, per step [S], in versions; NaN: unknown for some of
    them."""

    replica: str | None
    steps: NDArray[np.int64]
    mean: Floats  # token mean
    largest: Floats


def lag_by_replica(source: Source, run: str, steps: tuple[int, int]) -> list[ReplicaLag]:
    """Of the steps from the first to the last, both included; replicas by name. Raises `QueryError`."""
    rows = queries.app_weights_lag(source, run=run, first=steps[0], last=steps[1])
    records = queries.step_weights(source, run=run).to_pylist()
    versions = Versions.from_records(WeightRecord(**record) for record in records)
    return replica_lags(rows, versions)


def replica_lags(rows: pa.Table, versions: Versions) -> list[ReplicaLag]:
    """Rows of ``app_weights_lag``, in the order of steps, as one trend per replica."""
    lag = versions.lags(_texts(rows, "trainer_version"), _texts(rows, "version"))["versions"]
    step, tokens = rows["step"].to_numpy(), rows["tokens"].to_numpy().astype(np.float64)
    replica = np.array(rows["replica"].to_pylist(), dtype=object)
    names = sorted(set(replica[tokens > 0].tolist()), key=lambda name: (name is not None, name or ""))
    return [_trend(name, np.equal(replica, name) & (tokens > 0), step, lag, tokens) for name in names]


def _texts(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows[name].cast(pa.string())


def _trend(
    name: str | None, own: NDArray[np.bool_], step: NDArray[np.int64], lag: Floats, tokens: Floats
) -> ReplicaLag:
    steps, first, index = np.unique(step[own], return_index=True, return_inverse=True)  # in the order of steps
    # One token of unknown age is enough for the age of the step's tokens to be unknown: NaN passes through sum and
    # maximum.
    mean = np.bincount(index, lag[own] * tokens[own], len(steps)) / np.bincount(index, tokens[own], len(steps))
    return ReplicaLag(name, steps, mean, np.maximum.reduceat(lag[own], first))
