"""Data of the Mismatch page other than step metrics: quantiles, profiles and slices.

Each read is bounded and rate-limited in a live run. A stale value is returned with its last step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from logprobe.app.dashboard import data
from logprobe.app.runs import Run
from logprobe.monitor import queries
from logprobe.monitor.analysis import log_ratio_quantiles, profiles, slices
from logprobe.monitor.analysis.log_ratio_quantiles import Quantiles
from logprobe.monitor.analysis.slices import against_rest
from logprobe.monitor.metrics.catalog import CATALOG
from logprobe.monitor.metrics.definition import PairMetric, StepMetric

MOST_SEQUENCES: Final = 8192  # that slices are made of: about half a second of one core
MOST_TAGS: Final = 20  # to choose from, the most frequent; that there are others is said
LAG: Final = "weight_lag"
PACE: Final = 20.0  # times what a read took: a twentieth of one core at most
_PROFILES: Final[tuple[profiles.Dimension, ...]] = ("position", "turn", "probability")


@dataclass(frozen=True)
class Seen:
    """Steps `first` to `last`, both included. `whole`: true if the range covers the run and grows with it."""

    first: int
    last: int
    whole: bool = True

    @property
    def key(self) -> tuple[int, int] | None:
        """Key of the range, or None for a whole run, which may continue."""
        return None if self.whole else (self.first, self.last)

    @property
    def words(self) -> str:
        """Return the range of steps in words."""
        return f"steps {self.first:,}–{self.last:,}" if self.first < self.last else f"step {self.first:,}"


@dataclass(frozen=True)
class Sliced:
    """Slices of one dimension.

    Attributes:
        steps: steps covered, the newest in view within the limit.
        sequences: number of sequences in them that are kept.
        table: result of `slices.split`, with every metric of the pair and of the step.
        gaps: result of `slices.against_rest`.
        trend: K3 of the pair, one row per slice and step.
    """

    steps: Seen
    sequences: int
    table: pa.Table
    gaps: pa.Table
    trend: pa.Table


@dataclass(frozen=True)
class _Loaded:
    """The newest sequences in view, at most `MOST_SEQUENCES`, of whole steps. `tags`: names of their tags."""

    steps: Seen
    sequences: slices.Sequences
    tags: Sequence[str]


def newest(frame: pl.DataFrame, seen: Seen, count: str, most: int) -> Seen:
    """Return the newest of the steps in view that have at most `most` of the column `count` together, at least one."""
    inside = frame.filter(pl.col("step").is_between(seen.first, seen.last))
    steps = inside["step"].to_numpy()
    known = np.cumsum(np.nan_to_num(data.column(inside, count))[::-1])[::-1]
    chosen = steps[(known <= most) | (steps == steps[-1])]
    return Seen(int(chosen[0]), int(chosen[-1]), whole=seen.whole and len(chosen) == len(frame))


def quantiles(run: Run, frame: pl.DataFrame, pair: str, seen: Seen) -> tuple[Hashable, Quantiles, int | None]:
    """Return the version and the quantiles of log-ratios, and their last step if newer steps exist."""
    tokens = data.column(frame, "tokens")
    columns = log_ratio_quantiles.columns_of(frame["step"].to_numpy(), tokens, seen.first, seen.last)
    version = (_profiled(run), columns)
    place = ("quantiles", run.name, pair, seen.key)
    of, made = data.versioned(
        place, version, lambda: log_ratio_quantiles.read(data.reader(), run.name, pair, columns), pace=PACE
    )
    return of, made, None if of == version else made.columns.last


def _profiled(run: Run) -> Hashable:
    """Return a value that changes whenever a step of the run is profiled."""
    rows = data.kept(
        ("profiled", run.name),
        data.version_of(run),
        lambda: queries.app_mismatch_profiled(data.reader(), run=run.name),
        pace=1,
    )
    return tuple(rows.to_pylist()[0].values())


def profiles_of(run: Run, pair: str, seen: Seen) -> tuple[Seen, Mapping[str, pa.Table], int | None]:
    """Return profiles of the steps in view: their steps, a table by dimension, and the last step if newer ones exist.

    The tables have `label`, `tokens` and the measures.
    """
    version = (_profiled(run), seen)

    def read() -> tuple[Seen, Mapping[str, pa.Table]]:
        bounds = (seen.first, seen.last)
        return seen, {name: profiles.of(data.reader(), run.name, name, pair=pair, steps=bounds) for name in _PROFILES}

    of, (shown, tables) = data.versioned(("profiles", run.name, pair, seen.key), version, read, pace=PACE)
    return shown, tables, None if of == version else shown.last


def sliced(run: Run, frame: pl.DataFrame, pair: str, dimension: str, seen: Seen) -> tuple[Sliced, int | None]:
    """Return slices by a dimension, and their last step if newer steps exist."""
    version, loaded = _loaded(run, frame, seen)

    def split() -> Sliced:
        return Sliced(
            steps=loaded.steps,
            sequences=loaded.sequences.table.num_rows,
            table=slices.split(loaded.sequences, dimension, metrics=_keys(pair)),
            gaps=against_rest(loaded.sequences, dimension, pair),
            trend=slices.split(loaded.sequences, dimension, metrics=[f"{pair}.k3_kl"], per_step=True),
        )

    made = data.kept(("sliced", run.name, pair, dimension, seen.key), version, split)
    return made, loaded.steps.last if seen.whole and loaded.steps.last < seen.last else None


def tags(run: Run, frame: pl.DataFrame, seen: Seen) -> Sequence[str]:
    """Return the names of the tags of the sequences that can be sliced, the most frequent first."""
    return _loaded(run, frame, seen)[1].tags


def _loaded(run: Run, frame: pl.DataFrame, seen: Seen) -> tuple[Hashable, _Loaded]:
    def load() -> _Loaded:
        steps = replace(newest(frame, seen, "sequences", MOST_SEQUENCES), whole=False)
        sequences = slices.load(data.reader(), run.name, (steps.first, steps.last))
        names = Counter(name for each in sequences.table["tags"].to_pylist() for name, _ in each or ())
        return _Loaded(steps, sequences, [name for name, _ in names.most_common()])

    return data.loaded(("sequences", run.name, seen.key), (run.revision, seen), load, pace=PACE)


def _keys(pair: str) -> list[str]:
    """Return the keys of all metrics of a pair and of the step."""
    of_pair = [f"{pair}.{metric.key}" for metric in CATALOG if isinstance(metric, PairMetric) and pair in metric.pairs]
    return of_pair + [metric.key for metric in CATALOG if isinstance(metric, StepMetric)]
