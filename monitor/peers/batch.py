"""A batch as another framework sees it, and the formulas that several of them share.

Arrays are [batch, time], or [batch, 1] where a sequence has one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Metrics: TypeAlias = dict[str, float]

EPSILON: Final = 1e-8  # what some add to a denominator
SAFE: Final = 20.0  # most clamp a log-ratio to ±20 before they exponentiate it
NAN: Final = float("nan")
_K3_LIMIT: Final = 10.0  # where K3 is clamped at all


@dataclass(frozen=True)
class Option:
    """A setting of a framework. Without `choices` a number, or a flag where the default is one."""

    default: Any
    words: str
    choices: tuple[Any, ...] = ()
    positive: bool = False  # a number above 0, or None where the framework allows it
    text: bool = False  # the framework reads it as text itself, such as ``"0.5_2.0"``


@dataclass(frozen=True)
class Batch:
    """Tokens as a framework's loss function holds them, in one float type, and the way in which it averages.

    A product with the mask lets a NaN under the mask through (0 · NaN is NaN), a selection does not.
    """

    rollout: Array
    trainer: Array
    mask: Array  # 1.0 or 0.0
    current: Array | None = None
    advantages: Array | None = None
    reference: Array | None = None
    selects: bool = False  # means are of a selection, not of a product with the mask
    epsilon: float = 0.0  # added to denominators; with 0 they are at least 1

    @property
    def valid(self) -> Array:
        """Tokens under the mask."""
        return self.mask > 0

    @property
    def filled(self) -> Array:
        """Sequences [batch, 1] with a token under the mask."""
        return np.asarray(self.valid.any(axis=-1, keepdims=True))

    @property
    def d(self) -> Array:
        """Log-ratio of the pair `backend`: t − r."""
        return self.trainer - self.rollout

    @property
    def newest(self) -> Array:
        """Log-probs of the policy being trained: c if given, else t."""
        return self.trainer if self.current is None else self.current

    def sums(self, values: Array) -> Array:
        """Return the sum of each sequence [batch, 1]."""
        return np.asarray(self._masked(values).sum(axis=-1, keepdims=True))

    def means(self, values: Array) -> Array:
        """Return the mean of each sequence [batch, 1], 0 for an empty one."""
        return np.asarray(self.sums(values) / self._count(self.mask.sum(axis=-1, keepdims=True)))

    def mean(self, values: Array) -> float:
        """Return the mean over all tokens, 0 without any."""
        return float(self._masked(values).sum() / self._count(self.mask.sum()))

    def highest(self, values: Array) -> Array:
        """Return the maximum of each sequence [batch, 1], 0 for an empty one."""
        return np.where(self.filled, np.where(self.valid, values, -np.inf).max(axis=-1, keepdims=True), 0.0)

    def _masked(self, values: Array) -> Array:
        return np.asarray((np.where(self.valid, values, 0.0) if self.selects else values) * self.mask)

    def _count(self, tokens: Any) -> Any:
        return tokens + self.epsilon if self.epsilon else np.maximum(tokens, 1.0)


@dataclass(frozen=True)
class Reading:
    """Metrics that a framework logs for a batch, and what it does to the loss."""

    metrics: Mapping[str, float]
    weights: Array | None = None  # factors on the loss before it masks tokens; None: it applies none
    mask: Array | None = None  # its loss mask after rejection; None: unchanged


@dataclass(frozen=True)
class Peer:
    """One framework."""

    name: str
    read: Callable[[Batch, Any], Reading]
    prefixes: tuple[str, ...]  # its logger puts these before the names in its code
    headline: tuple[str, ...]  # keys that a table shows by default
    options: Mapping[str, Option]  # under its own names
    selects: bool = False  # see `Batch`
    epsilon: float = 0.0


def clamp(values: Array) -> Array:
    """Return the values within ±20."""
    return np.clip(values, -SAFE, SAFE)


def safe_ratio(log_ratio: Array) -> Array:
    """Return ρ of log-ratios within ±20; NaN stays NaN."""
    return np.exp(clamp(log_ratio))


def k2(log_ratio: Array) -> Array:
    """Return d²/2."""
    return np.square(log_ratio) / 2.0


def k3(log_ratio: Array) -> Array:
    """Return exp(d) − d − 1 as everybody writes it: unclamped, and cancelling when d is small."""
    return np.exp(log_ratio) - log_ratio - 1.0


def limited_k3(log_ratio: Array) -> Array:
    """Return K3 of log-ratios within ±20, at most 10."""
    return np.clip(k3(clamp(log_ratio)), -_K3_LIMIT, _K3_LIMIT)


def inside(values: Array, lower: float, upper: float) -> Array:
    """Return where values are within bounds, themselves included."""
    return np.asarray((values >= lower) & (values <= upper))


def clipped(ratio: Array, advantages: Array, low: float, high: float) -> Array:
    """Return where the PPO minimum takes its clipped branch."""
    return np.asarray(-advantages * np.clip(ratio, 1 - low, 1 + high) > -advantages * ratio)


def deviation(values: Array) -> float:
    """Return the standard deviation with n − 1 in the denominator, NaN for fewer than two values."""
    return float(values.std(ddof=1)) if values.size > 1 else NAN


def statistics(values: Array, *names: str, empty: float = NAN) -> Metrics:
    """Return mean, min or max of the values by name, `empty` without any."""
    return {name: float(getattr(values, name)()) if values.size else empty for name in names}


def perplexities(b: Batch) -> dict[str, Array]:
    """Return those of each sequence [batch, 1]; an empty one has perplexity 1."""
    trainer, rollout = b.means(b.trainer), b.means(b.rollout)
    return {
        "training_ppl": np.exp(-trainer),
        "training_log_ppl": -trainer,
        "rollout_ppl": np.exp(-rollout),
        "rollout_log_ppl": -rollout,
        "log_ppl_diff": rollout - trainer,
        "log_ppl_abs_diff": np.abs(rollout - trainer),
        "ppl_ratio": np.exp(rollout - trainer),
    }


def mean_perplexities(b: Batch) -> Metrics:
    """Return the means of `perplexities`, and the extremes of their gap."""
    values = perplexities(b)
    extremes = prefixed("log_ppl_diff_", statistics(values["log_ppl_diff"], "max", "min"))
    return {name: float(of_sequences.mean()) for name, of_sequences in values.items()} | extremes


def prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with a prefix before each name."""
    return {prefix + name: value for name, value in values.items()}
