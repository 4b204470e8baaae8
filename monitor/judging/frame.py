"""Plain columns that the judge reads: rows by step and group, sums by step, settings, and a sample of tokens.

Dimensions: ``R`` rows of a table, ``G`` steps, ``N`` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.discarding import Sampled
from logprobe.monitor.judging.judgement import Growth, Remembered
from logprobe.monitor.judging.measures import Floats, Mean, among, from_sums, k3_of
from logprobe.monitor.judging.records import Gap, Joins, Series, Weights, gap_of, windows
from logprobe.monitor.judging.replay import Replay
from logprobe.monitor.judging.setup import HALF_DTYPES, Setup
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Tokens, of_one_lag
from logprobe.monitor.judging.weight_readings import Readings

Bools = NDArray[np.bool_]
Steps = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """Group column in coded form.

    Attributes:
        codes: index of each row's value in `values` [R], −1 where it was not recorded.
        values: distinct values.
    """

    codes: NDArray[np.intp]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Column:
        """Encode an array of values, None and NaN for "not recorded".

        >>> Column.of(np.array(["a", None, "b", "a"], object)).codes.tolist()
        [0, -1, 1, 0]
        """
        if values.dtype == np.object_:
            names = {
                value: code for code, value in enumerate(dict.fromkeys(v for v in values.tolist() if _is_known(v)))
            }
            return cls(np.array([names.get(value, -1) for value in values.tolist()], np.intp), tuple(names))
        known, codes = np.unique(values, return_inverse=True)
        if known.dtype.kind == "f" and len(known) and np.isnan(known[-1]):
            known, codes = known[:-1], np.where(codes == len(known) - 1, -1, codes)
        return cls(codes.astype(np.intp).ravel(), tuple(known.tolist()))

    def where(self, keep_R: Bools | NDArray[np.intp]) -> Column:
        """Return the selected rows."""
        return Column(self.codes[keep_R], self.values)

    def and_later(self, later: Column) -> Column:
        """Return the rows of both columns."""
        values = tuple(dict.fromkeys([*self.values, *later.values]))
        codes = np.array([*(values.index(value) for value in later.values), -1], np.intp)  # the last one is −1
        return Column(np.concatenate([self.codes, codes[later.codes]]), values)

    @property
    def known(self) -> Bools:
        """Rows with a value [R]."""
        known: Bools = self.codes >= 0
        return known

    def isin(self, values: Iterable[object]) -> Bools:
        """Return a mask of the rows with one of these values [R]."""
        wanted = set(values)
        chosen = np.array([value in wanted for value in self.values] + [False], np.bool_)  # the last one is −1
        inside: Bools = chosen[self.codes]
        return inside

    @property
    def present(self) -> list[Any]:
        """Values that occur, in the order of their codes."""
        return [self.values[code] for code in np.unique(self.codes[self.codes >= 0]).tolist()]

    @property
    def numbers(self) -> Floats:
        """Values as numbers [R], NaN if not recorded."""
        numbers: Floats = np.array([*map(float, self.values), math.nan])[self.codes]
        return numbers


def _is_known(value: object) -> bool:
    return value is not None and value == value  # noqa: PLR0124 - NaN


Groups = Mapping[str, Column]

SUMS: Final = ("sequences", "tokens", "sum_k3", "sum_abs_d", "c_nn", "c_aa", "c_an")


@dataclass(frozen=True, eq=False)
class Strata:
    """Sums of the mismatch by step, weight lag and some group columns, as arrays [R].

    Attributes:
        step: optimizer step.
        lag: weight lag in versions, NaN where unknown.
        groups: group columns by name.
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
        """Return the selected rows."""
        return self if keep_R.all() else self._take(np.flatnonzero(keep_R))

    def by_order(self) -> Strata:
        """Return the rows in the order of steps. Rows of one step keep their order."""
        return self._take(np.argsort(self.step, kind="stable"))

    def _take(self, rows: NDArray[np.intp]) -> Strata:
        return Strata(
            step=self.step[rows],
            lag=self.lag[rows],
            groups={name: column.where(rows) for name, column in self.groups.items()},
            **{name: getattr(self, name)[rows] for name in SUMS},
        )

    def within(self, steps: Steps) -> Strata:
        """Return the rows of these steps, which ascend."""
        return self.where(among(self.step, steps))

    def and_later(self, later: Strata) -> Strata:
        """Return the rows of both tables."""

        def column(table: Strata, name: str) -> Column:
            return table.groups.get(name) or Column(np.full(len(table.step), -1, np.intp), ())

        both = {name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in ("step", "lag", *SUMS)}
        names = dict.fromkeys([*self.groups, *later.groups])
        return Strata(**both, groups={name: column(self, name).and_later(column(later, name)) for name in names})

    def is_value(self, column: str, value: object) -> Bools:
        """Return a mask of the rows with a value in a group column [R], all false if the column was not recorded."""
        found = self.groups.get(column)
        return np.zeros(len(self.step), np.bool_) if found is None else found.isin((value,))

    def known(self, column: str) -> Bools:
        """Return a mask of the rows with any value in a group column [R]."""
        found = self.groups.get(column)
        return np.zeros(len(self.step), np.bool_) if found is None else found.known

    @cached_property
    def own(self) -> Bools:
        """Mask of the rows whose tokens are not known to be older than the trainer's weights [R]."""
        fresh: Bools = ~(self.lag > 0)
        return fresh

    @cached_property
    def alike(self) -> Strata:
        """Rows of one weight lag: 0 or unknown, or the most frequent lag if hardly any token has the former."""
        return self.where(of_one_lag(self.lag, self.tokens))

    @cached_property
    def steps(self) -> Steps:
        """Steps with a compared token, ascending."""
        steps: Steps = np.unique(self.step[self.tokens > 0])
        return steps

    def by_step(self, steps: Steps, sums: str = "sum_k3") -> Floats:
        """Return the mean of K3 (or of another sum) at each of these steps [G]. All must have tokens."""
        some = self.within(steps)
        index = np.searchsorted(steps, some.step)
        rates: Floats = np.bincount(index, getattr(some, sums), len(steps)) / np.bincount(
            index, some.tokens, len(steps)
        )
        return rates

    @cached_property
    def n(self) -> int:
        """Number of tokens."""
        return int(self.tokens.sum())

    @property
    def k3(self) -> float:
        """Mean K3, NaN without a token."""
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
    step_N: Steps, lag_N: Floats, sequence_N: NDArray[np.intp], d_N: Floats, groups: Mapping[str, Column]
) -> Strata:
    """Return sums of log-ratios by step, lag and group columns.

    Args:
        step_N: optimizer step of each token.
        lag_N: weight lag, NaN if unknown.
        sequence_N: number of each token's sequence, unique in the run.
        d_N: log-ratio t − r, all finite.
        groups: group columns of the tokens.
    """
    k3_N, abs_N = k3_of(d_N), np.abs(d_N)
    key_N = np.zeros(len(step_N), np.int64)
    for values in (step_N, np.nan_to_num(lag_N, nan=-np.inf)):
        known, code_N = np.unique(values, return_inverse=True)
        key_N = key_N * len(known) + code_N.ravel()
    for column in groups.values():
        key_N = key_N * (len(column.values) + 1) + column.codes + 1
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
        groups={name: Column(column.codes[first], column.values) for name, column in groups.items()},
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


@dataclass(frozen=True, eq=False)
class Placed:
    """Tokens with their group columns, as arrays [N].

    Attributes:
        step: optimizer step.
        lag: weight lag.
        sequence: number of the token's sequence, unique in the run.
        d: log-ratio t − r, all finite.
        groups: group columns by name.
    """

    step: Steps
    lag: Floats
    sequence: NDArray[np.intp]
    d: Floats
    groups: Mapping[str, Column]

    def within(self, steps: Steps) -> Placed:
        """Return the tokens of these steps, which ascend."""
        keep_N = among(self.step, steps)
        groups = {name: column.where(keep_N) for name, column in self.groups.items()}
        return Placed(self.step[keep_N], self.lag[keep_N], self.sequence[keep_N], self.d[keep_N], groups)

    @cached_property
    def k3(self) -> Floats:
        """K3 of each token [N]."""
        return k3_of(self.d)

    @cached_property
    def strata(self) -> Strata:
        """Sums by step, lag and the group columns."""
        return strata_of(self.step, self.lag, self.sequence, self.d, self.groups)

    @property
    def uneven(self) -> bool:
        """True if some values of a column hold most of K3 in few tokens. Otherwise, `strata` is not needed."""
        return any(self._is_uneven(column) for column in self.groups.values())

    def _is_uneven(self, column: Column) -> bool:
        known = column.known
        codes, size = column.codes[known], len(column.values)
        n, k3 = np.bincount(codes, minlength=size), np.bincount(codes, self.k3[known], size)
        kinds = (("place_lift", "place_share"), ("place_wide_lift", "place_nearly_all"))
        return any(
            k3[(n > 0) & (k3 * n.sum() > number(lift) * k3.sum() * n)].sum()
            >= number(share) * number("place_first_look") * k3.sum()
            > 0
            for lift, share in kinds
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """K3 of a pair other than engine and trainer.

    Attributes:
        step: measured optimizer steps [G], at least one.
        k3: mean K3 [G].
    """

    step: Steps
    k3: Floats


@dataclass(frozen=True, eq=False)
class Frame:
    """Data about a run for one judgement.

    Attributes:
        series: sums by step, oldest first.
        strata: sums by step, lag and the group columns of whole requests (cached, in_flight, replica, version, tag …).
        places: tokens of the sample by group columns that belong together (from_start; from_end and finish; rank …).
        setup: settings of both sides.
        weights: records of weight versions.
        readings: fingerprints of weights.
        joins: counts of sequences and tokens that do not match.
        growth: state of the growth tracker after the last step.
        recorded: sample of tokens as recorded, or None if no tokens are kept.
        replicas: names of the replicas in the order of the sample's codes.
        pairs: other pairs by name ("update", "reference").
        independent: true if two processes computed the two sides, or None if unknown.
        replay: sampled and trained routes of a mixture of experts.
        run: name of the run.
        settings: settings that decide log-probs, by name, empty if too few are recorded to compare setups.
        remembered: K3 of known-good runs of this setup, or None without any.
        setups: first step and name of each engine setup, empty if there was only one.
        history: sums of all steps up to the last one, or None if `series` begins with the run.
        sampled: requests of the engines, trained or not, or None if they were not read.
        unmoved_since: first step from which on every learning rate is 0, read if K3 grows, or None without such a step.
    """

    series: Series
    strata: Strata
    places: tuple[Placed, ...] = ()
    setup: Setup = field(default_factory=Setup)
    setups: tuple[tuple[int, str | None], ...] = ()
    weights: Weights = field(default_factory=Weights)
    readings: Readings = field(default_factory=Readings)
    joins: Joins = field(default_factory=Joins)
    growth: Growth = field(default_factory=lambda: Growth("calibrating"))
    recorded: Tokens | None = None
    replicas: tuple[str, ...] = ()
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    independent: bool | None = None
    replay: Replay = field(default_factory=Replay)
    run: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    remembered: Remembered | None = None
    history: Series | None = None
    sampled: Sampled | None = None
    unmoved_since: int | None = None

    @cached_property
    def tokens(self) -> Tokens | None:
        """Tokens of the sample with a usable log-ratio, or None if no tokens are kept."""
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
    def measured(self) -> Steps:
        """Steps with a compared token, from the run's first one on, which define its normal."""
        whole = self.series if self.history is None else self.history
        return whole.step[whole["n"] > 0]

    @cached_property
    def first(self) -> Strata:
        """Rows of the run's beginning."""
        return self.strata.within(windows(self.measured)[0])

    @cached_property
    def now(self) -> Strata:
        """Rows of the last steps, called today."""
        return self.strata.within(windows(self.measured)[1])

    @cached_property
    def today(self) -> Frame:
        """Frame of the last steps alone, in which a fault that began late is more visible."""
        return replace(self.within(windows(self.series.step)[1]), history=None)

    def within(self, steps: Steps) -> Frame:
        """Return the frame of these steps alone, which ascend."""
        recorded = self.recorded
        return replace(
            self,
            series=self.series.within(steps),
            strata=self.strata.within(steps),
            places=tuple(place.within(steps) for place in self.places),
            recorded=None if recorded is None else recorded.where(among(recorded.step, steps)),
            history=None if self.history is None else self.history.within(steps),
        )

    @property
    def weights_dtype(self) -> str | None:
        """Dtype of 16 bits to which the trainer's weights are rounded for the engines, or None without one."""
        if "quantization" in self.setup.quantizations:
            return None
        low = self.setup.engine_low_dtype
        return self.readings.rounded if low is None else "float16" if low in HALF_DTYPES else "bfloat16"

    @cached_property
    def older(self) -> bool:
        """True if hardly any token can be of the trainer's own weights."""
        alike = self.strata.alike
        return bool(alike.n) and bool((alike.lag > 0).all())

    @cached_property
    def versions_known(self) -> bool:
        """True if the weight lag of most tokens is known."""
        known = self.strata.where(np.isfinite(self.strata.lag)).n
        return known >= number("most") * self.strata.n > 0

    def without_lags(self) -> Frame:
        """Return the frame with every weight lag unknown, because the versions contradict each other."""
        return replace(
            self,
            strata=_unlabelled(self.strata),
            places=tuple(replace(place, lag=np.full(len(place.step), math.nan)) for place in self.places),
            recorded=None
            if self.recorded is None
            else replace(self.recorded, lag=np.full(len(self.recorded), math.nan)),
        )


def _unlabelled(table: Strata) -> Strata:
    groups = {name: values for name, values in table.groups.items() if name != "version"}
    return replace(table, lag=np.full(len(table.step), math.nan), groups=groups)
