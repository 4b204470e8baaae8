"""Declaration of a metric, the source for jobs, labels, alert validation and docs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import RATIO_PAIRS, SIDES
from logprobe.monitor.metrics.sums import PairSums, StepSums

Floats = NDArray[np.float64]
Worse = Literal["higher", "lower", "away from 0", "away from 1", "neither"]
Grain = Literal["token", "sequence", "count"]
SEQUENCE_MEAN = "Mean over sequences of their own means: a long sequence weighs no more than a short one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number per step or slice. `key`: public name in the store, thresholds and reports."""

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
    """Metric of a pair, stored as ``<pair>.<key>``."""

    value: Callable[[PairSums], Floats]
    pairs: tuple[str, ...] = RATIO_PAIRS

    def keys(self) -> tuple[str, ...]:
        """Return the stored keys."""
        return tuple(f"{pair}.{self.key}" for pair in self.pairs)

    def inputs(self, key: str) -> tuple[str, ...]:
        """Return the inputs that one of the stored keys needs."""
        return (*SIDES[key.partition(".")[0]], *self.needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetric(Metric):
    """Metric of a step without a pair."""

    value: Callable[[StepSums], Floats]

    def keys(self) -> tuple[str, ...]:
        """Return the stored key."""
        return (self.key,)

    def inputs(self, key: str) -> tuple[str, ...]:  # noqa: ARG002 - as of a pair's metric
        """Return the inputs that the metric needs."""
        return self.needs


def means(
    key: str,
    column: str,
    *,
    label: str,
    words: str,
    formula: str,
    worse: Worse,
    unit: str = "",
    source: str = "",
    scale: float = 1.0,
    shift: float = 0.0,
    pairs: tuple[str, ...] = RATIO_PAIRS,
) -> tuple[PairMetric, PairMetric]:
    """Declare ``scale · mean(column) + shift`` over all tokens, and the same over sequences' means."""
    over_tokens = PairMetric(
        key=key,
        label=label,
        words=words,
        formula=formula,
        unit=unit,
        worse=worse,
        grain="token",
        source=source,
        pairs=pairs,
        value=lambda pair: scale * pair.token_mean(column) + shift,
    )
    over_sequences = replace(
        over_tokens,
        key=f"{key.removesuffix('_mean')}_seq_mean",
        label=f"{label}, sequence mean",
        words=f"{words} {SEQUENCE_MEAN}",
        formula=f"mean over sequences of {formula}",
        grain="sequence",
        value=lambda pair: scale * pair.sequence_mean(column) + shift,
    )
    return over_tokens, over_sequences
