"""What the dashboard holds of a run: step metrics as columns, grown by whatever changed since the last look.

Tables in, immutable columns out. A value that is unknown, null or not finite is NaN here, and a gap on a chart.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import floats

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]


def _no_steps() -> Steps:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class RunSeries:
    """Columns of one run, all of shape [steps], `steps` ascending.

    `revision` is the newest `step_summaries.revision` seen: what came later is what is still missing here. `tokens`:
    under the mask, of each step. `times`: when a step's newest record was made, seconds since the epoch (UTC). `read`:
    metrics that were read of the run; None: all that it has.
    """

    run: str
    revision: int = 0
    steps: Steps = field(default_factory=_no_steps)
    tokens: Floats = field(default_factory=lambda: np.empty(0))
    values: Mapping[str, Floats] = field(default_factory=dict)
    times: Floats = field(default_factory=lambda: np.empty(0))
    read: frozenset[str] | None = None

    @property
    def trained(self) -> Floats:
        """Tokens trained on up to and including each step; NaN from the first step on whose tokens are unknown."""
        return np.cumsum(self.tokens)

    @property
    def elapsed(self) -> Floats:
        """Seconds since the first step whose time is known; NaN where a step's is not."""
        timed = self.times[np.isfinite(self.times)]
        return self.times - timed[0] if len(timed) else np.full(len(self.steps), np.nan)

    @property
    def checksum(self) -> int:
        """Another one when any value is, for series whose revision does not say so: what was computed for a choice of
        steps."""
        names = sorted(self.values)
        result = crc32("\n".join([self.run, *names]).encode())
        for array in (self.steps, self.tokens, self.times, *(self.values[name] for name in names)):
            result = crc32(np.ascontiguousarray(array).tobytes(), result)
        return result

    def column(self, metric: str) -> Floats:
        """Values of `metric`, NaN where it has none. A metric that was not read is an error: of it nothing is known,
        not even that."""
        if self.read is not None and metric not in self.read:
            raise LookupError(
                f"{metric} was not read of run {self.run}: a page reads what the feed does not by `CatalogSeries`."
            )
        values = self.values.get(metric)
        return np.full(len(self.steps), np.nan) if values is None else values

    def measured(self, metric: str) -> bool:
        """Whether any step has a value."""
        return bool(np.isfinite(self.column(metric)).any())

    def latest(self, metric: str) -> tuple[int, float] | None:
        """Newest step with a value, and that value; None: never measured."""
        column = self.column(metric)
        measured = np.flatnonzero(np.isfinite(column))
        return (int(self.steps[measured[-1]]), float(column[measured[-1]])) if len(measured) else None


def merge(series: RunSeries, summaries: pa.Table, points: pa.Table) -> RunSeries:
    """`series` with the rows of `app_steps` and `app_points` laid over it; a step read again replaces what was there.

    Points of steps without a summary are left for the next look, which will bring both.
    """
    if summaries.num_rows == 0:
        return series
    changed = _numbers(summaries, "step").astype(np.int64)
    steps = np.union1d(series.steps, changed)
    old, new = np.searchsorted(steps, series.steps), np.searchsorted(steps, changed)
    tokens, times = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    tokens[old], tokens[new] = series.tokens, _numbers(summaries, "tokens")
    times[old], times[new] = series.times, _seconds(summaries, "time")
    places = dict(_by_metric(points, steps))
    values = {}
    for metric in {*series.values, *places}:
        column = np.full(len(steps), np.nan)
        column[old] = series.column(metric)
        column[new] = np.nan  # a recomputed step that lost a value loses it here too
        at, fresh = places.get(metric, _NOTHING)
        column[at] = fresh
        values[metric] = column
    revision = max(series.revision, int(_numbers(summaries, "revision").max()))
    return RunSeries(series.run, revision, steps, tokens, values, times, series.read)


_NOTHING = (np.empty(0, dtype=np.int64), np.empty(0))


def _by_metric(points: pa.Table, steps: Steps) -> Iterator[tuple[str, tuple[Steps, Floats]]]:
    """Per metric: positions in `steps`, and values there. Steps that `steps` does not have are left out."""
    step, value = _numbers(points, "step").astype(np.int64), _numbers(points, "value")
    at = np.searchsorted(steps, step)
    listed = np.isin(step, steps)
    encoded = points["metric"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    for code, metric in enumerate(encoded.dictionary.to_pylist()):
        rows = listed & (codes == code)
        yield metric, (at[rows], value[rows])


def _numbers(table: pa.Table, name: str) -> Floats:
    """A column as float64; null and not finite become NaN."""
    numbers = floats(table[name])
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _seconds(table: pa.Table, name: str) -> Floats:
    """A column of times as seconds since the epoch; null becomes NaN."""
    micros = table[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.float64())
    return np.asarray(micros.to_numpy(zero_copy_only=False), dtype=np.float64) / 1e6


_RUNS: Final = 4  # about 1 MB per 1,000 steps each


class CatalogSeries:
    """Columns of whole runs, grown by what changed. Thread-safe; one serves all sessions."""

    def __init__(self, source: Source, metrics: Sequence[str] = KEYS) -> None:
        self._source = source
        self._metrics = list(metrics)
        self._read = frozenset(metrics)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, RunSeries] = OrderedDict()

    def of(self, run: str, revision: int) -> RunSeries:
        """Columns of `run`, read again where they are not those of `revision`.

        Raises:
            ServiceUnavailableError: the service does not answer.
            QueryError: see `Reader.read`.
        """
        with self._lock:
            series = self._known.get(run)
            if series is None or series.revision > revision:  # the store was recreated
                series = RunSeries(run, read=self._read)
            if series.revision != revision:
                series = self._grown(series)
            self._known[run] = series
            self._known.move_to_end(run)
            while len(self._known) > _RUNS:
                self._known.popitem(last=False)
            return series

    def _grown(self, series: RunSeries) -> RunSeries:
        # Steps first: a step recomputed between the two reads has newer points than its revision says, and is read
        # again.
        changed = {"run": series.run, "since": series.revision}
        summaries = queries.app_steps(self._source, **changed)
        return merge(series, summaries, queries.app_points(self._source, **changed, metrics=self._metrics))
