"""Sums over groups of sequences, the input of the catalog's value functions.

A group is a step, or a slice of one. All groups are reduced together, so a value function maps arrays [G] to an array
[G]. NaN represents null ("not measurable") until the value is written.

Sums are exact and rounded once. A step's value is therefore bit-identical for any order of its sequences.

Dimensions: ``_S`` sequences, ``_V`` sequences with a valid token, ``_G`` groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logprobe.collectors.kernel.statistics import COLUMN_SPECS, Column, Statistics, empty
from logprobe.monitor.metrics import exact

Floats = NDArray[np.float64]
CLAMP: Final = 20.0  # of log-ratios of whole sequences before they are exponentiated, as for tokens


def divide(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Return the quotient, NaN if the denominator is not positive."""
    denominator = np.asarray(denominator, np.float64)
    positive = denominator > 0
    quotient: Floats = np.divide(numerator, denominator, out=np.full(positive.shape, np.nan), where=positive)
    return quotient


def exp_clamped(values: Floats) -> Floats:
    """Return ``exp(clamp(values, ±20))``."""
    return np.exp(np.clip(values, -CLAMP, CLAMP))


@dataclass(frozen=True)
class Groups:
    """Groups of sequences: `index` [S] in [0, size)."""

    index: NDArray[np.intp]
    size: int

    def sum(self, values_S: ArrayLike) -> Floats:
        """Return the sum per group, 0 for an empty one."""
        values = np.asarray(values_S)
        if values.dtype.kind in "biu":  # whole numbers need no rounding
            return np.bincount(self.index, values, self.size).astype(np.float64)
        return exact.sums(self.index, values.astype(np.float64, copy=False), self.size)

    def count(self) -> Floats:
        """Return the number of sequences per group."""
        return self.sum(np.ones(len(self.index), np.int64))

    def mean(self, values_S: ArrayLike) -> Floats:
        """Return the mean per group, NaN for an empty one."""
        return divide(self.sum(values_S), self.count())

    def max(self, values_S: ArrayLike) -> Floats:
        """Return the maximum per group, NaN for an empty one."""
        return self._finite(self.extreme(np.maximum, values_S, -np.inf))

    def min(self, values_S: ArrayLike) -> Floats:
        """Return the minimum per group, NaN for an empty one."""
        return self._finite(self.extreme(np.minimum, values_S, np.inf))

    def where(self, keep_S: NDArray[np.bool_]) -> Groups:
        """Return the same groups with only some of the sequences."""
        return Groups(self.index[keep_S], self.size)

    def extreme(self, ufunc: np.ufunc, values_S: ArrayLike, identity: float) -> Floats:
        """Return the extreme per group, `identity` for an empty one."""
        result = np.full(self.size, identity)
        ufunc.at(result, self.index, np.asarray(values_S, np.float64))
        result += 0.0  # no −0: which of two zeros is met first must not matter
        return result

    def _finite(self, values: Floats) -> Floats:
        return np.where(np.isfinite(values), values, np.nan)


class PairSums:
    """Sufficient statistics of one pair, per sequence and summed over groups."""

    def __init__(self, statistics: Mapping[str, NDArray[Any]], groups: Groups, step: StepSums) -> None:
        self._statistics = statistics
        self._groups = groups
        self.step = step

    @cached_property
    def tokens(self) -> Statistics:
        """Token sums, extremes and counts by column (`COLUMNS` → [G])."""
        return {c.name: self._merged(c) for c in COLUMN_SPECS}

    def _merged(self, column: Column) -> NDArray[Any]:
        values = np.asarray(self._statistics[column.name])
        if column.reduction == "sum":
            return self._groups.sum(values)
        return self._groups.extreme(column.ufunc, values, column.identity)

    @cached_property
    def compared(self) -> Floats:
        """Number of sequences with statistics of the pair [G]."""
        return self._groups.count()

    @property
    def measured(self) -> NDArray[np.bool_]:
        """True for groups with statistics of the pair [G]. Other groups have null, not 0, broken tokens."""
        return self.compared > 0

    @cached_property
    def _valid(self) -> NDArray[np.bool_]:
        return np.asarray(self._statistics["n"]) > 0

    @cached_property
    def sequences(self) -> Groups:
        """Groups of the sequences that have a valid token [V]."""
        return self._groups.where(self._valid)

    def column(self, name: str) -> Floats:
        """Return a column of the sequences that have a valid token [V]."""
        return np.asarray(self._statistics[name])[self._valid].astype(np.float64, copy=False)

    def per_token(self, name: str) -> Floats:
        """Return the mean of a summed column over each sequence's tokens [V]."""
        return self.column(name) / self.lengths

    @cached_property
    def lengths(self) -> Floats:
        """Number of valid tokens of each sequence [V]."""
        return self.column("n")

    @cached_property
    def mean_log_ratio(self) -> Floats:
        """Mean log-ratio of each sequence [V], the logarithm of its geometric ρ."""
        return self.per_token("sum_d")

    @cached_property
    def n(self) -> Floats:
        """Number of valid tokens [G]."""
        return np.asarray(self.tokens["n"], np.float64)

    def token_mean(self, name: str) -> Floats:
        """Return the mean over all valid tokens [G]."""
        return divide(self.tokens[name], self.n)

    def sequence_mean(self, name: str) -> Floats:
        """Return the mean over sequences' means, for sequences with a valid token [G]."""
        return self.sequences.mean(self.per_token(name))

    def counted(self, *names: str) -> Floats:
        """Return the sum of counts [G], NaN if the pair has no statistics."""
        total = np.sum([self.tokens[name] for name in names], axis=0, dtype=np.float64)
        return np.where(self.measured, total, np.nan)


@dataclass(frozen=True)
class Lag:
    """Token-weighted weight lag, one row per weight version and sequence, or group of equal sequences.

    `versions`, `steps` and `seconds` are the trainer's minus the token's, NaN where unknown.
    """

    groups: Groups  # of the rows
    sequence: NDArray[
        np.intp
    ]  # which sequence, or which that are alike, a row belongs to, numbered from 0 without gaps
    tokens: Floats
    known: NDArray[np.bool_]  # the token's version is known
    versions: Floats
    steps: Floats
    seconds: Floats
    alike: Floats | None = None  # of how many sequences a row tells; None: of one


@dataclass(frozen=True)
class Publications:
    """Durations of weight publications, one row per version and replica, in seconds, NaN if unknown."""

    groups: Groups  # of the rows: the step whose result the weights are
    delay: Floats  # until they were in place
    resume_delay: Floats  # until generation went on with them
    pause: Floats  # how long generation stood still


@dataclass(eq=False)
class StepSums:
    """Inputs of each group besides log-probabilities, as arrays [S] with NaN for null."""

    groups: Groups
    n_expected: Floats  # tokens under the mask
    reward: Floats
    advantage_abs_sum: Floats
    entropy_sum: Floats
    entropy_n: Floats
    token_match: Floats  # 1 the engine's ids, 0 not, NaN no rollout record
    length_match: Floats
    lag: Lag | None = None
    publications: Publications | None = None
    routes: Mapping[str, Floats] = field(
        default_factory=dict
    )  # columns of `logprobe.monitor.live.sequence_rows`, where known
    versions: Mapping[str, Floats] = field(default_factory=dict)  # tokens of which engine and trainer say the version
    scalars: Mapping[str, Floats] = field(default_factory=dict)  # what the trainer reported for the whole step [G]
    pairs: dict[str, PairSums] = field(default_factory=dict)

    def add_pair(self, pair: str, statistics: Mapping[str, NDArray[Any]], groups: Groups) -> None:
        """Attach the statistics of one pair."""
        self.pairs[pair] = PairSums(statistics, groups, self)

    def pair(self, name: str) -> PairSums:
        """Return the sums of a pair, or empty sums without statistics."""
        if name not in self.pairs:
            self.add_pair(name, empty(0), Groups(np.empty(0, np.intp), self.groups.size))
        return self.pairs[name]

    @cached_property
    def expected(self) -> Floats:
        """Number of tokens under the mask [G], measurable or not."""
        return self.groups.sum(self.n_expected)

    @cached_property
    def entropy(self) -> Floats:
        """Mean entropy over tokens, or the trainer's scalar of that name [G]."""
        return self.reported(self.known_ratio(self.entropy_sum, self.entropy_n), "entropy")

    def known_mean(self, values_S: Floats) -> Floats:
        """Return the mean over the sequences that have the value [G]."""
        given = ~np.isnan(values_S)
        return self.groups.where(given).mean(values_S[given])

    def known_ratio(self, numerator_S: Floats, denominator_S: Floats) -> Floats:
        """Return Σ numerator / Σ denominator over the sequences that have the numerator [G]."""
        given = ~np.isnan(numerator_S)
        groups = self.groups.where(given)
        return divide(groups.sum(numerator_S[given]), groups.sum(denominator_S[given]))

    def routed(self, name: str) -> Floats:
        """Return a column of routes [S], NaN throughout if none was recorded."""
        return self.routes.get(name, np.full(len(self.n_expected), np.nan))

    def version_count(self, name: str) -> Floats:
        """Return a count of tokens by weight version [S], NaN if the trainer stated none."""
        return self.versions.get(name, np.full(len(self.n_expected), np.nan))

    def stated(self, name: str) -> Floats:
        """Return the trainer's statement about the whole step, null if missing [G]."""
        return self.reported(np.full(self.groups.size, np.nan), name)

    def reported(self, computed: Floats, *names: str) -> Floats:
        """Return `computed`, or if it is null, the first of these scalars that the trainer reported [G]."""
        for name in names:
            if name in self.scalars:
                computed = np.where(np.isnan(computed), self.scalars[name], computed)
        return computed
