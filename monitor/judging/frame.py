"""Plain columns that the judge reads: rows by step and group, sums by step, settings, and a sample of tokens.

Dimensions: ``R`` rows of a table, ``G`` steps, ``N`` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.evidence import Gap, Joins, Series, Weights, gap_of, windows
from logprobe.monitor.diagnosis.evidence.measures import Floats, Mean, from_sums
from logprobe.monitor.diagnosis.evidence.setup import Setup
from logprobe.monitor.diagnosis.evidence.tokens import Tokens
from logprobe.monitor.diagnosis.evidence.weight_readings import Readings
from logprobe.monitor.diagnosis.result import Growth
from logprobe.monitor.judging.thresholds import number

Bools = NDArray[np.bool_]
Steps = NDArray[np.int64]
Groups = Mapping[str, NDArray[np.object_]]

_SUMS: Final = ("sequences", "tokens", "sum_k3", "sum_abs_d", "c_nn", "c_aa", "c_an")


@dataclass(frozen=True, eq=False)
class Strata:
    """Sums of the mismatch by step, weight lag and some group columns; arrays [R].

    Attributes:
        step: optimizer step.
        lag: weight lag in versions; NaN where unknown.
        groups: group columns by name; a value is None where it was not recorded.
        sequences: number of sequences.
        tokens: number of compared tokens.
        sum_k3: sum of K3.
        sum_abs_d: sum of |d|.
        c_nn: sum over sequences of n².
        c_aa: sum over sequences of (Σ|d|)².
        c_an: sum over sequences of Σ|d|·n.
    """

    step: Steps
    lag: Floats
    groups: Groups
    sequences: Floats
    tokens: Floats
    sum_k3: Floats
    sum_abs_d: Floats
    c_nn: Floats
    c_aa: Floats
    c_an: Floats

    def where(self, keep_R: Bools) -> Strata:
        """Return some of the rows."""
        return Strata(
            step=self.step[keep_R],
            lag=self.lag[keep_R],
            groups={name: values[keep_R] for name, values in self.groups.items()},
            **{name: getattr(self, name)[keep_R] for name in _SUMS},
        )

    def within(self, steps: Steps) -> Strata:
        """Return the rows of these steps."""
        return self.where(np.isin(self.step, steps))

    def is_value(self, column: str, value: object) -> Bools:
        """Return which rows have a value in a group column [R]; none if the column was not recorded."""
        values = self.groups.get(column)
        if values is None:
            return np.zeros(len(self.step), np.bool_)
        return np.array([known == value for known in values], np.bool_)

    def known(self, column: str) -> Bools:
        """Return which rows have any value in a group column [R]."""
        values = self.groups.get(column)
        if values is None:
            return np.zeros(len(self.step), np.bool_)
        return np.array([value is not None for value in values], np.bool_)

    @cached_property
    def own(self) -> Bools:
        """Rows of tokens that are not known to be older than the trainer's weights [R]."""
        fresh: Bools = ~(self.lag > 0)
        return fresh

    @cached_property
    def alike(self) -> Strata:
        """Rows of one weight lag: 0 or unknown, or the lag of most tokens where hardly any token has that."""
        own = self.own
        if own.all() or self.tokens[own].sum() > number("hardly_any") * self.tokens.sum():
            return self.where(own)
        lags, index = np.unique(self.lag[~own], return_inverse=True)
        return self.where(self.lag == lags[np.bincount(index, self.tokens[~own]).argmax()])

    @cached_property
    def steps(self) -> Steps:
        """Steps with a compared token, ascending."""
        steps: Steps = np.unique(self.step[self.tokens > 0])
        return steps

    def by_step(self, steps: Steps, sums: str = "sum_k3") -> Floats:
        """Return the mean of K3 (or of another sum) at each of these steps [G], all of which have tokens."""
        some = self.within(steps)
        index = np.searchsorted(steps, some.step)
        rates: Floats = np.bincount(index, getattr(some, sums), len(steps)) / np.bincount(
            index, some.tokens, len(steps)
        )
        return rates

    @property
    def n(self) -> int:
        """Number of tokens."""
        return int(self.tokens.sum())

    @property
    def k3(self) -> float:
        """Mean K3; NaN without a token."""
        return float(self.sum_k3.sum()) / float(self.tokens.sum()) if self.n else math.nan

    @property
    def abs_d(self) -> Mean:
        """Mean |d|, error clustered by sequence."""
        return from_sums(
            float(self.tokens.sum()),
            float(self.sum_abs_d.sum()),
            c_nn=float(self.c_nn.sum()),
            c_xx=float(self.c_aa.sum()),
            c_xn=float(self.c_an.sum()),
            sequences=int(self.sequences.sum()),
        )


def strata_of(
    step_N: Steps, lag_N: Floats, sequence_N: NDArray[np.intp], d_N: Floats, groups: Mapping[str, NDArray[Any]]
) -> Strata:
    """Sum log-ratios by step, lag and group columns.

    Args:
        step_N: optimizer step of each token.
        lag_N: weight lag; NaN where unknown.
        sequence_N: number of each token's sequence, unique in the run.
        d_N: log-ratio t − r, all finite.
        groups: group columns of the tokens; of objects where a value may be None.
    """
    clamped = np.clip(d_N, -number("clamp"), number("clamp"))
    k3_N, abs_N = np.expm1(clamped) - d_N, np.abs(d_N)
    key_N = np.zeros(len(step_N), np.int64)
    for values in (step_N, np.nan_to_num(lag_N, nan=-np.inf), *map(_codes, groups.values())):
        known, code_N = np.unique(values, return_inverse=True)
        key_N = key_N * len(known) + code_N.ravel()
    _, first, row_N = np.unique(key_N, return_index=True, return_inverse=True)
    row_N, rows = row_N.ravel(), len(first)
    span = int(sequence_N.max(initial=0)) + 1
    cells, cell_N = np.unique(row_N * span + sequence_N, return_inverse=True)
    cell_row = cells // span
    n_C = np.bincount(cell_N.ravel()).astype(np.float64)
    a_C = _sums(cell_N.ravel(), abs_N, len(cells))
    return Strata(
        step=step_N[first].astype(np.int64),
        lag=lag_N[first].astype(np.float64),
        groups={name: values[first].astype(np.object_) for name, values in groups.items()},
        sequences=np.bincount(cell_row, minlength=rows).astype(np.float64),
        tokens=np.bincount(row_N, minlength=rows).astype(np.float64),
        sum_k3=_sums(row_N, k3_N, rows),
        sum_abs_d=_sums(row_N, abs_N, rows),
        c_nn=_sums(cell_row, n_C * n_C, rows),
        c_aa=_sums(cell_row, a_C * a_C, rows),
        c_an=_sums(cell_row, a_C * n_C, rows),
    )


def _sums(key_N: NDArray[np.intp], values_N: NDArray[np.float64], keys: int) -> NDArray[np.float64]:
    """Return the sum of the values of each key, [keys]."""
    return np.bincount(key_N, values_N, keys).astype(np.float64)


def _codes(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype != np.object_:
        return values
    names = {value: code for code, value in enumerate(dict.fromkeys(values.tolist()))}
    return np.array([names[value] for value in values.tolist()], np.intp)


@dataclass(frozen=True, eq=False)
class Pair:
    """K3 of another pair than engine and trainer, by step.

    Attributes:
        step: optimizer step [G].
        k3: mean K3 [G]; NaN where it was not measured.
        first_pass: true if the trainer's weights have not moved when it is measured, so that the ratio must be 1.
    """

    step: Steps
    k3: Floats
    first_pass: bool = False


@dataclass(frozen=True, eq=False)
class Frame:
    """Everything that is known of a run when it is judged.

    Attributes:
        series: sums by step, oldest first.
        strata: sums by step, lag and the group columns of whole requests (cached, in_flight, replica, version, tag …).
        places: further tables, each by step, lag and some group columns of tokens (from_start, from_end, rank, turn …).
        setup: settings of both sides.
        weights: records of weight versions.
        readings: fingerprints of weights.
        joins: counts of sequences and tokens that do not match.
        growth: state of the growth tracker after the last step.
        recorded: sample of tokens as it was recorded; None if no tokens are kept.
        pairs: other pairs by name ("update", "reference").
        independent: whether two processes computed the two sides; None if unknown.
        routing_agreement: share of (token, layer) with the same experts on both sides; None if not recorded.
    """

    series: Series
    strata: Strata
    places: tuple[Strata, ...] = ()
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    readings: Readings = field(default_factory=Readings)
    joins: Joins = field(default_factory=Joins)
    growth: Growth = field(default_factory=lambda: Growth("calibrating"))
    recorded: Tokens | None = None
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    independent: bool | None = None
    routing_agreement: float | None = None

    @cached_property
    def tokens(self) -> Tokens | None:
        """Tokens of the sample with a usable log-ratio; None if no tokens are kept."""
        return None if self.recorded is None else self.recorded.valid

    @cached_property
    def gap(self) -> Gap:
        """Mismatch over all steps of the frame."""
        return gap_of(self.series)

    @property
    def start(self) -> int | None:
        """First step of the frame, or None if it has none."""
        return int(self.series.step[0]) if len(self.series) else None

    @property
    def last(self) -> int | None:
        """Last step of the frame, or None if it has none."""
        return int(self.series.step[-1]) if len(self.series) else None

    @property
    def measured(self) -> Steps:
        """Steps with a compared token."""
        return self.series.step[self.series["n"] > 0]

    @cached_property
    def first(self) -> Strata:
        """Rows of the run's beginning."""
        return self.strata.within(windows(self.measured)[0])

    @cached_property
    def now(self) -> Strata:
        """Rows of today: the last steps."""
        return self.strata.within(windows(self.measured)[1])

    @cached_property
    def lately(self) -> Strata:
        """Rows since K3 began to grow, or of today if it does not grow."""
        since = self.growth.since_step
        return self.now if since is None else self.strata.where(self.strata.step >= since)

    @cached_property
    def today(self) -> Frame:
        """The last steps alone. A fault that began late is a small part of the whole window."""
        steps = windows(self.series.step)[1]
        return replace(
            self,
            series=self.series.within(steps),
            strata=self.strata.within(steps),
            places=tuple(table.within(steps) for table in self.places),
            recorded=None if self.recorded is None or not len(steps) else self.recorded.since(int(steps[0])),
        )

    def total(self, column: str) -> float:
        """Return the sum of a column of the series; 0 if the column was not recorded."""
        return self.series.total(column) if column in self.series.columns else 0.0

    @cached_property
    def older(self) -> bool:
        """Whether hardly any token may be of the trainer's own weights."""
        alike = self.strata.alike
        return bool(alike.n) and bool((alike.lag > 0).all())

    @cached_property
    def versions_known(self) -> bool:
        """Whether the weight lag of most tokens is known."""
        known = self.strata.where(np.isfinite(self.strata.lag)).n
        return known >= number("most") * self.strata.n > 0

    def without_lags(self) -> Frame:
        """Return the frame with every weight lag unknown, because the versions contradict each other."""
        return replace(
            self,
            strata=_unlabelled(self.strata),
            places=tuple(_unlabelled(table) for table in self.places),
            recorded=None
            if self.recorded is None
            else replace(self.recorded, lag=np.full(len(self.recorded), math.nan)),
        )


def _unlabelled(table: Strata) -> Strata:
    groups = {name: values for name, values in table.groups.items() if name != "version"}
    return replace(table, lag=np.full(len(table.step), math.nan), groups=groups)
