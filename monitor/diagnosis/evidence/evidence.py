"""What a diagnosis looks at: everything measured of a run, as plain data that rules read.

Numbers that come from per-sequence statistics are there for every run; `tokens` only where raw tokens were kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.measures import Floats, Mean, from_sums
from logprobe.monitor.diagnosis.evidence.once import once
from logprobe.monitor.diagnosis.evidence.replay import Replay
from logprobe.monitor.diagnosis.evidence.setup import Setup
from logprobe.monitor.diagnosis.evidence.strata import Strata, of_one_lag
from logprobe.monitor.diagnosis.evidence.tokens import Tokens, on_grid
from logprobe.monitor.diagnosis.evidence.weight_readings import Readings
from logprobe.monitor.diagnosis.result import Growth, Remembered

ROUNDING: Final = 1e-8  # K3 of two float32 computations of the same log-probs is below (recorded runs: 1e-12)
LEAST: Final = ROUNDING / 100  # K3 that counts where a logarithm is taken of less
SLIGHT: Final = 1e-5  # lower end of what is reported as healthy for dense models (slime)
WINDOW: Final = 40  # steps of the run's beginning and of today that are compared
_START_UP: Final = 20  # steps before the beginning, where there are enough
_LONG: Final = 120  # steps from which on there are
_QUARTER: Final = 4  # of a short run: its beginning and its end, with as much between them
_TEMPERATURES: Final = tuple(round(0.05 * i, 2) for i in range(2, 41))  # tried where unknown
_MOST: Final = 0.5  # of the tokens


@dataclass(frozen=True, eq=False)
class Series:
    """Columns of ``diagnosis_steps``, one value per step [G], oldest first."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @property
    def step(self) -> NDArray[np.int64]:
        """Optimizer steps."""
        steps: NDArray[np.int64] = self.columns["step"]
        return steps

    @cached_property
    def k3(self) -> Floats:
        """K3 per step; NaN where nothing could be compared."""
        means: Floats = np.divide(self["k3"], self["n"], out=np.full(len(self), np.nan), where=self["n"] > 0)
        return means

    def total(self, name: str) -> float:
        """Sum over all steps, nulls left out."""
        return float(np.nansum(self[name]))

    def within(self, steps: NDArray[np.int64]) -> Series:
        """Some steps."""
        keep = np.isin(self.step, steps)
        return Series({name: values[keep] for name, values in self.columns.items()})

    def between(self, first: int, last: int) -> Series:
        """Steps `first` to `last`, both included."""
        keep = (self.step >= first) & (self.step <= last)
        return Series({name: values[keep] for name, values in self.columns.items()})


@dataclass(frozen=True)
class Gap:
    """The gap between r and t over a window, from statistics or from a sample of tokens.

    Attributes:
        n: tokens.
        k3: mean K3; NaN without a token.
        ratio: mean of ρ − 1.
        d: mean d.
        correlation: of r and t.
        scale: standard deviation of t over that of r.
        min_d: smallest d.
        max_d: largest d.
        up: share of tokens with d > 0.
        down: share with d < 0.
    """

    n: int
    k3: float
    ratio: Mean
    d: Mean
    correlation: float
    scale: float
    min_d: float
    max_d: float
    up: float
    down: float

    @property
    def visible(self) -> bool:
        """Whether there is any beyond rounding."""
        return self.k3 > ROUNDING


def gap_of(series: Series) -> Gap:
    """The gap over all steps of a series."""
    n, total = series.total("n"), series.total
    sequences = int(total("compared"))

    def mean(column: str, squares: str, products: str) -> Mean:
        sums = {"c_nn": total("c_nn"), "c_xx": total(squares), "c_xn": total(products)}
        return from_sums(n, total(column), sequences=sequences, **sums)

    return Gap(
        n=int(n),
        k3=_share(total("k3"), n),
        ratio=mean("ratio_m1", "c_qq", "c_qn"),
        d=mean("d", "c_dd", "c_dn"),
        correlation=_moments(series)[0],
        scale=_moments(series)[1],
        min_d=float(np.nanmin(series["min_d"])) if n else math.nan,
        max_d=float(np.nanmax(series["max_d"])) if n else math.nan,
        up=_share(total("n_up"), n),
        down=_share(total("n_down"), n),
    )


def _moments(series: Series) -> tuple[float, float]:
    """Correlation of r and t, and the standard deviation of t over that of r; NaN where one does not vary."""
    n, total = series.total("n"), series.total
    if n <= 1:
        return math.nan, math.nan
    t, r = total("t") / n, total("r") / n
    of_t, of_r = (math.sqrt(max(total(name) / n - mean * mean, 0.0)) for name, mean in (("t2", t), ("r2", r)))
    both = total("tr") / n - t * r
    return (both / (of_t * of_r), of_t / of_r) if of_t > 0 and of_r > 0 else (math.nan, math.nan)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


@dataclass(frozen=True)
class Slice:
    """One row of ``diagnosis_slices``: tokens that have these in common; None: unknown."""

    replica: str | None
    cached: bool | None
    in_flight: bool | None
    lag: int | None
    sequences: int
    n: int
    d: float
    abs_d: float
    k3: float
    c_nn: float
    c_aa: float
    c_an: float


@dataclass(frozen=True)
class Slices:
    """Slices of a window, which together are all of its compared tokens."""

    rows: tuple[Slice, ...] = ()

    def where(self, keep: Callable[[Slice], bool]) -> Slices:
        """Some of them."""
        return Slices(tuple(row for row in self.rows if keep(row)))

    @property
    def alike(self) -> Slices:
        """Those of one weight lag, see `of_one_lag`."""
        lag = np.array([math.nan if row.lag is None else row.lag for row in self.rows], np.float64)
        keep = of_one_lag(lag, np.array([row.n for row in self.rows], np.float64))
        return Slices(tuple(row for row, kept in zip(self.rows, keep.tolist(), strict=True) if kept))

    @property
    def n(self) -> int:
        """Tokens."""
        return sum(row.n for row in self.rows)

    @property
    def k3(self) -> float:
        """Mean K3; NaN without a token."""
        return _share(sum(row.k3 for row in self.rows), self.n)

    @property
    def abs_d(self) -> Mean:
        """Mean |d|, error clustered by sequence."""
        rows = self.rows
        sums = {name: math.fsum(getattr(row, name) for row in rows) for name in ("c_nn", "c_aa", "c_an")}
        return from_sums(
            self.n,
            math.fsum(row.abs_d for row in rows),
            c_nn=sums["c_nn"],
            c_xx=sums["c_aa"],
            c_xn=sums["c_an"],
            sequences=sum(row.sequences for row in rows),
        )


def windows(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps of a run's beginning, less its start-up, and of today; of short runs a quarter each.

    >>> [window.tolist() for window in windows(np.arange(9))]
    [[0, 1], [7, 8]]
    """
    length = max(min(len(steps) // _QUARTER, WINDOW), min(len(steps), 1))
    begin = _START_UP if len(steps) >= _LONG else 0
    return steps[begin : begin + length], steps[len(steps) - length :]


def strata_of(series: Series) -> Strata:
    """Steps of which only their sums are known."""
    measured = series["n"] > 0
    unknown = np.full(int(measured.sum()), -1, np.int64)

    def column(name: str) -> Floats:
        return np.nan_to_num(series[name][measured].astype(np.float64))

    return Strata(
        step=series.step[measured],
        lag=np.full(len(unknown), np.nan),
        cached=unknown,
        in_flight=unknown,
        replica=np.full(len(unknown), None, np.object_),
        version=np.full(len(unknown), np.nan),
        sequences=column("compared"),
        tokens=column("n"),
        sum_k3=column("k3"),
        sum_abs_d=column("abs_d"),
        c_nn=column("c_nn"),
        c_aa=column("c_aa"),
        c_an=column("c_an"),
    )


@dataclass(frozen=True)
class VersionConflicts:
    """What engine and trainer both say about tokens' weight versions, in tokens: a row of ``version_conflicts``."""

    compared: int
    differing: int
    engine_older: int
    engine_newer: int
    first_step: int | None


@dataclass(frozen=True)
class Joins:
    """Whether the two sides are of the same tokens; counts of sequences unless they say tokens."""

    sequences: int = 0
    tokens: int = 0
    missing: int = 0
    missing_tokens: int = 0
    unaligned: int = 0
    received: int = 0
    seen_by_engine: int = 0
    other_ids: int = 0
    other_lengths: int = 0
    reduced: int = 0
    ambiguous: int = 0
    routed: int = 0
    conflicts: VersionConflicts | None = None


@dataclass(frozen=True)
class WeightRecord:
    """One observation of a weight version, see ``diagnosis_weights``."""

    version: str | None
    step: int | None
    source: str | None
    replica: str | None
    loaded: bool
    pause_mode: str | None
    cache_cleared: bool | None
    tensors: int | None
    checksum: str | None


_HABIT: Final = 3  # updates that say how updates are made


@dataclass(frozen=True)
class Weights:
    """What trainer and engines said of weight versions, oldest first."""

    records: tuple[WeightRecord, ...] = ()

    @cached_property
    def updates(self) -> tuple[WeightRecord, ...]:
        """Updates as engines saw them: not the weights they started with."""
        return tuple(r for r in self.records if r.source == "engine" and (r.loaded or r.step is not None))

    @cached_property
    def without_load(self) -> frozenset[str]:
        """Versions of which engines got the label but not, as far as was seen, the weights; none where loads are never
        seen."""
        loaded = {record.version for record in self.updates if record.loaded}
        labels = {record.version for record in self.updates if record.version is not None}
        return frozenset(labels - loaded) if loaded else frozenset()

    def numbered(self, versions: Iterable[str]) -> list[int]:
        """Of labels, what `Strata.version` has: the number itself, or the place among all labels."""
        labels = dict.fromkeys(record.version for record in self.records if record.version is not None)
        places = {label: place for place, label in enumerate(labels, 1)}
        numbers = [places.get(label) if number_of(label) is None else number_of(label) for label in versions]
        return [number for number in numbers if number is not None]

    @cached_property
    def kept_cache(self) -> float:
        """Share of the engines' updates after which the prefix cache was not cleared; NaN without an update."""
        return _share(sum(not record.cache_cleared for record in self._seen), len(self._seen))

    @cached_property
    def kept_since(self) -> int | None:
        """Step of the first update since which none cleared the cache any more, where those before did; None: there is
        none."""
        cleared = [index for index, record in enumerate(self._seen) if record.cache_cleared]
        kept = self._seen[cleared[-1] + 1 :] if len(cleared) >= _HABIT else ()
        before = self._seen[: cleared[-1] + 1] if kept else ()
        habit = sum(bool(record.cache_cleared) for record in before) > len(before) / 2
        return kept[0].step if len(kept) >= _HABIT and habit else None

    @cached_property
    def _seen(self) -> tuple[WeightRecord, ...]:
        return tuple(record for record in self.updates if record.loaded or record.cache_cleared is not None)


def number_of(label: str | None) -> int | None:
    """The version that a label says; None: it is no whole number."""
    return int(label) if label is not None and label.lstrip("-").isdigit() else None


@dataclass(frozen=True)
class Evidence:
    """Everything that rules read.

    Attributes:
        run: name of the run.
        series: the backend gap of each step of the window, from statistics.
        slices: the same by replica, prefix cache, update in flight and lag.
        joins: whether both sides are of the same tokens.
        setup: configuration.
        weights: weight versions.
        readings: fingerprints of weights.
        growth: the verdict on K3 over the whole run.
        tokens: a sample of raw tokens with a usable log-ratio, less what findings have explained; None: none are kept.
        recorded: the same sample, as it was recorded, broken and missing ones included.
        update: K3 of the pair "update" per step (step → value), where the trainer recorded current log-probs.
        scaled: whether a finding has explained that r and t are of different distributions: what is left of d is
            approximate.
        history: the series from the run's first step to the end of the window; None: the window begins with the run.
        strata: the gap by step, lag, cache, update in flight and replica, of the run's beginning, of today and of some
            steps between; None: not known.
        blurred: whether that was done without repeated contexts, by a mean at each r.
        explained: causes that have been taken out so far.
        separated: those of them whose steps or requests were taken out of the strata, so that nothing of theirs is left
            there.
        hidden: whether what was found leaves nothing to compare: r and t are no log-probs of the same tokens.
        rise_explained: whether a cause was found that also makes the gap rise at a step.
        rise_left: whether what one of these made is still in the strata.
        replay: routes of a mixture of experts, as they were sampled and as they were trained.
        settings: what decides log-probs, by name; empty: too little is recorded to tell whether another run has the
            same setup.
        remembered: what known-good runs of that setup, or of a similar one, had; None: there are none.
    """

    run: str
    series: Series
    slices: Slices = field(default_factory=Slices)
    joins: Joins = field(default_factory=Joins)
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    readings: Readings = field(default_factory=Readings)
    growth: Growth = field(default_factory=lambda: Growth("no_data"))
    tokens: Tokens | None = None
    recorded: Tokens | None = None
    update: Mapping[int, float] = field(default_factory=dict)
    scaled: bool = False
    blurred: bool = False
    history: Series | None = None
    strata: Strata | None = None
    explained: frozenset[str] = frozenset()
    separated: frozenset[str] = frozenset()
    hidden: bool = False
    rise_explained: bool = False
    rise_left: bool = False
    replay: Replay = field(default_factory=Replay)
    settings: Mapping[str, str] = field(default_factory=dict)
    remembered: Remembered | None = None

    @property
    def unknown_versions(self) -> float:
        """Share of the tokens whose weight lag is not known; 1 without any token."""
        tokens_with_lag = self.slices.where(lambda row: row.lag is not None).n
        return 1 - tokens_with_lag / self.slices.n if self.slices.n else 1.0

    @property
    def older(self) -> bool:
        """Whether hardly any token may be of the trainer's own weights."""
        return self.own is not None and bool(self.own.n) and bool((self.own.lag > 0).all())

    @property
    def versions_known(self) -> bool:
        """Whether the weight lag of most tokens is known."""
        return self.unknown_versions <= _MOST

    @property
    def start(self) -> int | None:
        """First step of the window; None: there is none."""
        return int(self.series.step[0]) if len(self.series) else None

    @cached_property
    def gap(self) -> Gap:
        """The gap of the window as it was measured, whatever has been explained."""
        return gap_of(self.series)

    @property
    def whole(self) -> Series:
        """All steps from the run's first to the end of the window."""
        return self.series if self.history is None else self.history

    @cached_property
    def first(self) -> Strata:
        """The gap of the run's beginning."""
        return self.all_steps.within(windows(self._measured)[0])

    @cached_property
    def now(self) -> Strata:
        """The gap of today: the end of the window."""
        return self.all_steps.within(windows(self._measured)[1])

    @cached_property
    def all_steps(self) -> Strata:
        """The gap of all steps that were looked at."""
        return strata_of(self.whole) if self.strata is None else self.strata

    @cached_property
    def lately(self) -> Strata:
        """The gap since it began to grow; of today where it does not, or began later than that."""
        since = self.growth.since_step
        return self.now if since is None else self.all_steps.where(self.all_steps.step >= since)

    @cached_property
    def own(self) -> Strata | None:
        """The gap of tokens of one weight lag (`of_one_lag`), within the window; None where the series says the same.

        It says the same where no token is known to be older and no finding has taken some out.
        """
        if self.strata is None or not ((self.strata.lag > 0).any() or self.explained):
            return None
        return _of_one_lag(self.strata, self.series)

    @property
    def _measured(self) -> NDArray[np.int64]:
        return self.whole.step[self.whole["n"] > 0]

    @cached_property
    def grids(self) -> tuple[float, float]:
        """Shares of 16-bit logits at engine and trainer; NaN where it is unknown."""
        if self.recorded is None or not len(self.recorded.valid):
            return math.nan, math.nan
        usable, temperatures = self.recorded.valid, {1.0, *(self.setup.temperatures or _TEMPERATURES)}
        return on_grid(usable, usable.r, temperatures), on_grid(usable, usable.t, temperatures)

    def left(
        self,
        cause: str,
        *,
        tokens: Tokens | None = None,
        slices: Slices | None = None,
        strata: Strata | None = None,
        scaled: bool = False,
    ) -> Evidence:
        """What is left to look at once `cause` has explained its part."""
        return replace(
            self,
            tokens=self.tokens if tokens is None else tokens,
            slices=self.slices if slices is None else slices,
            strata=self.strata if strata is None else strata,
            scaled=self.scaled or scaled,
            explained=self.explained | {cause},
            separated=self.separated if strata is None else self.separated | {cause},
        )


@once
def _of_one_lag(strata: Strata, series: Series) -> Strata:
    """Those of the series' steps; evidence of which a part was explained has the same ones."""
    return strata.within(series.step).alike
