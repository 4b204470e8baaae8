"""Report of a correction, whose numbers are read from the device on first use.

A report consists of sums, counts, minima and maxima over tokens and sequences. Reports of micro-batches, steps and
ranks therefore merge exactly: `merge` equals the report of the concatenated batches.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Self

import array_api_compat

from logprobe.collectors.correction.arithmetic import Array
from logprobe.collectors.kernel.statistics import BROKEN

Sums = dict[str, float]

BROKEN_KINDS: Final = tuple(name.removeprefix("n_") for name in BROKEN)
_MINIMA: Final = ("weight_min", "ratio_min")
_MAXIMA: Final = ("weight_max", "ratio_max")


class Report(Mapping[str, float | None]):
    """Numbers of `derived` for one correction, None for undefined ones.

    The first read waits once for the device. Until then no data is copied, and the caller must not change its arrays in
    place. `start` queues the remaining computation and thereby lifts this restriction.

    Args:
        sums: 0-d arrays by name, from which the numbers are derived and merged, or a function that computes them.
    """

    def __init__(self, sums: Callable[[], dict[str, Array]] | Sums) -> None:
        self._compute = sums if callable(sums) else None
        self._sums = None if callable(sums) else dict(sums)
        self._names: tuple[str, ...] = ()
        self._copied: Any = None  # all sums on their way to the host: one small tensor, one copy
        self._event: Any = None

    def start(self) -> None:
        """Queue the computation on the caller's stream without waiting. Any thread may then read the numbers."""
        if self._compute is None:
            return
        sums, self._compute = self._compute(), None
        arrays = list(sums.values())
        xp = array_api_compat.array_namespace(arrays[0])
        device = array_api_compat.device(arrays[0])
        wide = xp.float32 if str(device).startswith("mps") else xp.float64
        self._names, self._copied = tuple(sums), xp.stack([xp.astype(array, wide) for array in arrays])
        if getattr(self._copied, "is_cuda", False):
            self._event = sys.modules["torch"].cuda.Event()
            self._event.record()

    @property
    def sums(self) -> Sums:
        """Sums from which the numbers are derived and merged. Reading them waits for the device."""
        if self._sums is None:
            self.start()
            if self._event is not None:
                self._event.synchronize()
            self._sums = dict(zip(self._names, map(float, self._copied.tolist()), strict=True))
        return self._sums

    @classmethod
    def merge(cls, first: Self, *others: Self) -> Self:
        """Return the numbers of all batches together. All must have one configuration."""
        every = [first.sums, *(other.sums for other in others)]
        return cls({name: _merged(name, [sums[name] for sums in every]) for name in first.sums})

    @cached_property
    def _numbers(self) -> dict[str, float | None]:
        return derived(self.sums)

    def __getitem__(self, key: str) -> float | None:
        return self._numbers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        if self._sums is None:
            return f"{type(self).__name__}(not read yet)"
        shown = ", ".join(f"{name}={value:.6g}" for name, value in self.items() if value is not None)
        return f"{type(self).__name__}({shown})"


def _merged(name: str, values: list[float]) -> float:
    if name in _MINIMA:
        return min(values)
    return max(values) if name in _MAXIMA else math.fsum(values)


def derived(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Return the numbers of a report.

    Token fractions are relative to `tokens`, those under the mask before the correction. Sequence fractions are
    relative to the `sequences` with such a token. Ratios are those of the configured level, before bounds, repeated
    over the tokens of a sequence. Weights are the applied ones, 0 where dropped.

    Returns:
        tokens, sequences: numbers under the mask before the correction.
        is_weight_mean: mean applied weight over `tokens`.
        weight_min, weight_max: extreme applied weights of the kept tokens.
        ratio_mean, ratio_min, ratio_max: ρ before bounds, over measurable tokens.
        ess_before: (Σw)² / (N·Σw²) of ρ over measurable tokens.
        ess_after: the same of applied weights over `tokens`.
        clipped_frac: fraction of truncated, clipped or dropped tokens.
        clipped_seq_frac: fraction of sequences with such a token.
        masked_frac: fraction of dropped tokens.
        masked_seq_frac: fraction of sequences without a kept token.
        masked_advantage_frac: dropped share of Σ|advantage|, or None without advantages.
        is_above_frac, is_below_frac: fractions of tokens whose ρ is above the upper or below the lower bound of
            weights.
        rs_above_frac, rs_below_frac: fractions of tokens that rejection dropped at its upper or lower bound.
        veto_seq_frac: fraction of sequences that the veto dropped.
        clamped_tokens: number of tokens whose log-ratio is beyond ±20.
        broken_tokens, broken_frac: number and fraction of dropped tokens under the mask without valid log-probs, also
            by kind (behaviour: rollout side, policy: trainer side).
        normalizer: divisor of the weights, 1 without `normalize`.
    """
    n, s = sums["tokens"], sums["sequences"]
    measured = sums["measured_tokens"]
    broken = math.fsum(sums[kind] for kind in BROKEN_KINDS)
    return {
        "tokens": n,
        "sequences": s,
        "is_weight_mean": quotient(sums["weight_sum"], n),
        "weight_min": finite(sums["weight_min"]),
        "weight_max": finite(sums["weight_max"]),
        "ratio_mean": quotient(sums["ratio_sum"], measured),
        "ratio_min": finite(sums["ratio_min"]),
        "ratio_max": finite(sums["ratio_max"]),
        "ess_before": quotient(sums["ratio_sum"] ** 2, measured * sums["ratio_square_sum"]),
        "ess_after": quotient(sums["weight_sum"] ** 2, n * sums["weight_square_sum"]),
        "clipped_frac": quotient(sums["clipped_tokens"], n),
        "clipped_seq_frac": quotient(sums["clipped_sequences"], s),
        "masked_frac": quotient(sums["masked_tokens"], n),
        "masked_seq_frac": quotient(sums["masked_sequences"], s),
        "masked_advantage_frac": quotient(sums["masked_advantage"], sums["advantage"]),
        "is_above_frac": quotient(sums["is_above"], n),
        "is_below_frac": quotient(sums["is_below"], n),
        "rs_above_frac": quotient(sums["rs_above"], n),
        "rs_below_frac": quotient(sums["rs_below"], n),
        "veto_seq_frac": quotient(sums["veto_sequences"], s),
        "clamped_tokens": sums["clamped_tokens"],
        "broken_tokens": broken,
        "broken_frac": quotient(broken, n),
        **{kind: sums[kind] for kind in BROKEN_KINDS},
        "normalizer": quotient(sums["normalizer_tokens"], n),
    }


def quotient(numerator: float, denominator: float) -> float | None:
    """Return the quotient, or None if it is undefined or not finite."""
    return finite(numerator / denominator) if denominator > 0 else None


def finite(value: float) -> float | None:
    """Return `value`, or None if it is not finite."""
    return value if math.isfinite(value) else None
