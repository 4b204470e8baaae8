"""What a metric is: one declaration with everything that jobs, labels, alert validation and docs derive from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.metrics.sums import PairSums, StepSums

Floats = NDArray[np.float64]
Worse = Literal["higher", "lower", "away from 0", "away from 1", "neither"]
Grain = Literal["token", "sequence", "count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number per step (or slice). `key` is public: it stands in the store, in alert rules and in reports."""

    key: str
    label: str
    words: str  # one or two sentences for tooltips and docs
    formula: str
    worse: Worse
    unit: str = ""  # "" for a pure number
    grain: Grain = "token"  # what a mean or an extreme is taken over
    source: str = ""  # who reports the same number
    needs: tuple[str, ...] = ()  # inputs without which it is null


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMetric(Metric):
    """A metric of a pair; stored as ``<pair>.<key>``."""

    value: Callable[[PairSums], Floats]
    pairs: tuple[str, ...] = ("backend", "update", "total")

    def keys(self) -> tuple[str, ...]:
        """The stored keys."""
        return tuple(f"{pair}.{self.key}" for pair in self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetric(Metric):
    """A metric of a step that belongs to no pair."""

    value: Callable[[StepSums], Floats]

    def keys(self) -> tuple[str, ...]:
        """The stored key."""
        return (self.key,)
