"""What the Mismatch page reads beside step metrics: densities, profiles and slices. Each read is bounded, whatever the
run is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.stale_cache import Cached, StaleCache
from logprobe.app.dashboard.data.visible import Visible
from logprobe.monitor import queries
from logprobe.monitor.analysis import log_ratio_density, profiles, slices
from logprobe.monitor.analysis.log_ratio_density import Density
from logprobe.monitor.analysis.slices import against_rest
from logprobe.monitor.metrics.catalog import CATALOG
from logprobe.monitor.metrics.definition import PairMetric, StepMetric

MOST_SEQUENCES: Final = 8192  # that slices are made of: about half a second of one core
MOST_TAGS: Final = 20  # to choose from, the most frequent; that there are others is said
LAG: Final = "weight_lag"
_PROFILES: Final[tuple[profiles.Dimension, ...]] = ("position", "turn", "probability")


@dataclass(frozen=True)
class Side:
    """One range of steps. `buckets`: per dimension a table with `label`, `tokens` and the measures; `lag_steps`: those
    of the lag."""

    name: str
    seen: Visible
    buckets: Mapping[str, pa.Table]
    lag_steps: Visible


@dataclass(frozen=True)
class Sliced:
    """What was computed of one dimension.

    Attributes:
        dimension: as `logprobe.monitor.analysis.slices` names it.
        steps: that it stands on: the newest in view, as many as were affordable.
        sequences: how many there are in them.
        table: as `slices.split` gives it, every metric of the chosen pair and of the step.
        gaps: as `slice_gaps.against_rest` gives it.
        trend: K3 of the pair, one row per slice and step.
        tags: names of the tags that there are.
    """

    dimension: str
    steps: Visible
    sequences: int
    table: pa.Table
    gaps: pa.Table
    trend: pa.Table
    tags: Sequence[str]


@dataclass(frozen=True)
class _Loaded:
    """The newest sequences in view, of whole steps, at most `MOST_SEQUENCES`; the names of the tags of all in view."""

    steps: Visible
    count: int
    sequences: slices.Sequences
    tags: Sequence[str]


class MismatchData:
    """Reads for all sessions of the app, and remembers. Thread-safe.

    All methods raise `ServiceUnavailableError` when the service does not answer, `QueryError` as `Reader.read` does.
    """

    def __init__(self, source: queries.Source, cache: StaleCache, loads: StaleCache) -> None:
        """`cache`: for what is shown; `loads`: for the sequences that it is made of, some 10 MB each, so that few
        should be kept."""
        self._source = source
        self._cache = cache
        self._loads = loads

    def profiled(self, run: str) -> Hashable:
        """Becomes another value whenever a step of the run was profiled."""
        return tuple(queries.app_mismatch_profiled(self._source, run=run).to_pylist()[0].values())

    def density(self, run: RunSeries, pair: str, seen: Visible, profiled: Hashable) -> Cached[Density]:
        """The density of log-ratios. `profiled`: as the method of that name gave it."""
        columns = log_ratio_density.columns_of(run.steps, run.tokens, seen.first, seen.last)
        key = ("density", run.run, pair, seen.key)
        return self._cache.get(
            key, (profiled, columns), lambda: log_ratio_density.read(self._source, run.run, pair, columns)
        )

    def side(self, run: RunSeries, pair: str, name: str, seen: Visible, profiled: Hashable) -> Cached[Side]:
        """Profiles of one range of steps. `profiled`: as the method of that name gave it."""
        key = (run.run, pair, seen.key)
        cached = self._cache.get(
            ("profiles", *key), (profiled, seen), lambda: (seen, self._buckets(run.run, pair, seen))
        )
        loaded = self._loaded(run, seen)
        lags = self._cache.get(("lag", *key, loaded.state), None, lambda: _by_lag(loaded.value.sequences, pair))
        shown, buckets = cached.value
        side = Side(name, shown, {**buckets, LAG: lags.value}, loaded.value.steps)
        return Cached(side, (cached.state, loaded.state), cached.old or loaded.old)

    def sliced(self, run: RunSeries, pair: str, asked: str | None, seen: Visible) -> Cached[Sliced]:
        """Slices by the dimension that was asked for, or by weight lag where there is no such."""
        loaded = self._loaded(run, seen)
        dimension = dimension_of(asked, loaded.value.tags)
        place = ("slices", run.run, pair, dimension, seen.key, loaded.state)
        made = self._cache.get(place, None, lambda: _split(loaded.value, pair, dimension))
        return Cached(made.value, loaded.state, loaded.old)

    def _buckets(self, run: str, pair: str, seen: Visible) -> dict[str, pa.Table]:
        steps = (seen.first, seen.last)
        return {profile: profiles.of(self._source, run, profile, pair=pair, steps=steps) for profile in _PROFILES}

    def _loaded(self, run: RunSeries, seen: Visible) -> Cached[_Loaded]:
        return self._loads.get((run.run, seen.key), (run.revision, seen), lambda: self._load(run.run, seen))

    def _load(self, run: str, seen: Visible) -> _Loaded:
        bounds = {"run": run, "first": seen.first, "last": seen.last}
        (window,) = queries.app_mismatch_window(self._source, most=MOST_SEQUENCES, **bounds).to_pylist()
        steps = Visible(window["first"], window["last"], whole=False)
        return _Loaded(
            steps=steps,
            count=window["sequences"],
            sequences=slices.load(self._source, run, (steps.first, steps.last)),
            tags=queries.app_mismatch_tags(self._source, most=MOST_TAGS + 1, **bounds)["name"].to_pylist(),
        )


def dimension_of(asked: str | None, tags: Sequence[str]) -> str:
    """The dimension that was asked for; the weight lag for what there is not."""
    dimensions = {*slices.DIMENSIONS, *(f"{slices.TAG}{name}" for name in tags)}
    return asked if asked in dimensions else LAG


def _split(loaded: _Loaded, pair: str, dimension: str) -> Sliced:
    sequences = loaded.sequences
    return Sliced(
        dimension=dimension,
        steps=loaded.steps,
        sequences=loaded.count,
        table=slices.split(sequences, dimension, metrics=_keys(pair)),
        gaps=against_rest(sequences, dimension, pair),
        trend=slices.split(sequences, dimension, metrics=[f"{pair}.k3_kl"], per_step=True),
        tags=loaded.tags,
    )


def _keys(pair: str) -> list[str]:
    """Every metric of a pair, and of the step."""
    of_pair = [f"{pair}.{metric.key}" for metric in CATALOG if isinstance(metric, PairMetric) and pair in metric.pairs]
    return of_pair + [metric.key for metric in CATALOG if isinstance(metric, StepMetric)]


def _by_lag(sequences: slices.Sequences, pair: str) -> pa.Table:
    """The slices of the weight lag with the columns of `logprobe.monitor.analysis.profiles.of`."""
    keys = {name: f"{pair}.{name}" for name in ("logprob_abs_diff_mean", "kl", "k3_kl")}
    table = slices.split(sequences, LAG, metrics=list(keys.values()))
    columns: Mapping[str, Any] = {
        "label": table["slice"].fill_null("unknown"),
        "tokens": table["tokens"],
        "logprob_abs_diff_mean": table[keys["logprob_abs_diff_mean"]],
        "log_ratio_mean": pc.negate(table[keys["kl"]]),  # k1 is mean(−d)
        "k3_kl": table[keys["k3_kl"]],
    }
    return pa.table(columns)
