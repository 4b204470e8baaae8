"""Plain data about a run for the judge: series by step, joins, weight records.

Numbers from per-sequence statistics are available for every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.measures import Floats, Mean, among, from_sums

WINDOW: Final = 40  # steps of the run's beginning and of today that are compared
_START_UP: Final = 20  # steps before the beginning, where there are enough
_LONG: Final = 120  # steps from which on there are
_QUARTER: Final = 4  # of a short run: its beginning and its end, with as much between them


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
        """K3 per step, NaN if nothing could be compared."""
        means: Floats = np.divide(self["k3"], self["n"], out=np.full(len(self), np.nan), where=self["n"] > 0)
        return means

    @cached_property
    def _totals(self) -> dict[str, float]:
        return {}

    def total(self, name: str) -> float:
        """Return the sum over all steps without nulls."""
        if name not in self._totals:
            values = self[name]
            self._totals[name] = float(np.nansum(values) if values.dtype.kind == "f" else values.sum())
        return self._totals[name]

    def within(self, steps: NDArray[np.int64]) -> Series:
        """Return the steps that are among `steps`, which ascend."""
        keep = among(self.step, steps)
        return Series({name: values[keep] for name, values in self.columns.items()})

    def by_order(self) -> Series:
        """Return the steps in their order."""
        order = np.argsort(self.step, kind="stable")
        return Series({name: values[order] for name, values in self.columns.items()})

    def and_later(self, later: Series) -> Series:
        """Return the steps of both series."""
        return Series({name: np.concatenate([values, later[name]]) for name, values in self.columns.items()})


@dataclass(frozen=True)
class Gap:
    """Mismatch between r and t over a window, from statistics or from a sample of tokens.

    Attributes:
        n: number of tokens.
        k3: mean K3, NaN without a token.
        ratio: mean of ρ − 1.
        correlation: correlation of r and t.
        scale: standard deviation of t over that of r.
        up: share of tokens with d > 0.
        down: share of tokens with d < 0.
        size: mean |d|.
        square: mean d².
    """

    n: int
    k3: float
    ratio: Mean
    correlation: float
    scale: float
    up: float
    down: float
    size: float
    square: float

    @property
    def even(self) -> float:
        """Ratio (mean |d|)² / mean d²: 2/π for normal d, and w times that if only a share w of the tokens differs."""
        return _share(self.size**2, self.square)


def gap_of(series: Series) -> Gap:
    """Return the mismatch over all steps of a series."""
    n, total = series.total("n"), series.total
    alike, scale = _moments(series)
    ratio = {"c_nn": total("c_nn"), "c_xx": total("c_qq"), "c_xn": total("c_qn")}
    return Gap(
        n=int(n),
        k3=_share(total("k3"), n),
        ratio=from_sums(n, total("ratio_m1"), sequences=int(total("compared")), **ratio),
        correlation=alike,
        scale=scale,
        up=_share(total("n_up"), n),
        down=_share(total("n_down"), n),
        size=_share(total("abs_d"), n),
        square=_share(max(total("t2") + total("r2") - 2 * total("tr"), 0.0), n),
    )


def _moments(series: Series) -> tuple[float, float]:
    """Return the correlation of r and t and the ratio of their standard deviations, NaN if one side is constant."""
    n, total = series.total("n"), series.total
    if n <= 1:
        return math.nan, math.nan
    t, r = total("t") / n, total("r") / n
    of_t, of_r = (math.sqrt(max(total(name) / n - mean * mean, 0.0)) for name, mean in (("t2", t), ("r2", r)))
    both = total("tr") / n - t * r
    return (both / (of_t * of_r), of_t / of_r) if of_t > 0 and of_r > 0 else (math.nan, math.nan)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def windows(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps of a run's beginning without its start-up, and of today. Of a short run, return a quarter each.

    >>> [window.tolist() for window in windows(np.arange(9))]
    [[0, 1], [7, 8]]
    """
    length = max(min(len(steps) // _QUARTER, WINDOW), min(len(steps), 1))
    begin = _START_UP if len(steps) >= _LONG else 0
    return steps[begin : begin + length], steps[len(steps) - length :]


@dataclass(frozen=True)
class VersionConflicts:
    """Weight versions stated by engine and trainer, in tokens, as a row of ``version_conflicts``."""

    compared: int
    differing: int
    engine_older: int
    engine_newer: int
    first_step: int | None


@dataclass(frozen=True)
class Joins:
    """Counts of sequences or tokens that show whether the two sides have the same tokens."""

    sequences: int = 0
    tokens: int = 0
    missing: int = 0
    missing_tokens: int = 0
    unaligned: int = 0
    received: int = 0
    seen_by_engine: int = 0
    other_ids: int = 0
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
    time: datetime | None = None
    elements: Sequence[tuple[str, int]] | None = None  # see `logprobe.collectors.fingerprint.rounding`


@dataclass(frozen=True, slots=True)
class Rounding:
    """Effect of rounding the trainer's weights to the dtype in which engines have them, in samples of their elements.

    Attributes:
        dtype: dtype of 16 bits.
        crossing: share of the elements changed by updates that changed after rounding, too.
        exact: shares of the elements that the dtype held at first and at last.
    """

    dtype: str
    crossing: float
    exact: tuple[float, float]


@dataclass(frozen=True)
class Weights:
    """Weight versions stated by trainer and engines, oldest first."""

    records: tuple[WeightRecord, ...] = ()

    @cached_property
    def updates(self) -> tuple[WeightRecord, ...]:
        """Weight updates of the engines, without the initial weights."""
        return tuple(r for r in self.records if r.source == "engine" and (r.loaded or r.step is not None))

    @cached_property
    def without_load(self) -> frozenset[str]:
        """Versions whose label reached engines without an observed load, empty if loads are never observed."""
        loaded = {record.version for record in self.updates if record.loaded}
        labels = {record.version for record in self.updates if record.version is not None}
        return frozenset(labels - loaded) if loaded else frozenset()

    def numbered(self, versions: Iterable[str]) -> list[int]:
        """Return the numbers of labels in `Strata.version`: a numeric label itself, or the index among all labels."""
        labels = dict.fromkeys(record.version for record in self.records if record.version is not None)
        places = {label: place for place, label in enumerate(labels, 1)}
        numbers = [places.get(label) if number_of(label) is None else number_of(label) for label in versions]
        return [number for number in numbers if number is not None]

    @cached_property
    def kept_cache(self) -> float:
        """Share of the engines' updates after which the prefix cache was not cleared, NaN without an update."""
        seen = [record for record in self.updates if record.loaded or record.cache_cleared is not None]
        return _share(sum(not record.cache_cleared for record in seen), len(seen))

    def rounding(self, dtype: str) -> Rounding | None:
        """Return the effect of rounding the trainer's weights to `dtype`, or None if no two versions were compared."""
        told = [dict(record.elements) for record in self.records if record.source == "trainer" and record.elements]
        changed, crossed = (sum(of.get(name, 0) for of in told) for name in ("changed", f"changed {dtype}"))
        if not changed or not all(of.get("sampled") for of in told):
            return None
        first, last = (of.get(f"exact {dtype}", 0) / of["sampled"] for of in (told[0], told[-1]))
        return Rounding(dtype, crossed / changed, (first, last))


def number_of(label: str | None) -> int | None:
    """Return the version number of a label, or None if it is not a whole number."""
    return int(label) if label is not None and label.lstrip("-").isdigit() else None
