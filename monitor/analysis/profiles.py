"""Token-level profiles of the mismatch by position in the sequence, probability and size of the log-ratio.

A profile consists of sums over the tokens of each bucket, so shards, steps and runs merge by addition. This module has
the arithmetic and converts stored sums to values. `profile_job` computes the sums from raw tokens.

============  =========================================================================================
dimension     bucket of a token
============  =========================================================================================
position      decile of its place among the sequence's tokens under the mask, 0 to 9
turn          place in its turn, 0 to 4, or 5 for all later ones; a turn starts with the sequence's first token, or with
              the first under the mask after one that is not (tool output)
probability   probability that the behaviour policy gave it, between `PROBABILITIES`
log_ratio     sign and size of d: 0 below 1e-12, else ± the number of a logarithmic bin of relative width 2 × `ERROR`
============  =========================================================================================

The value of a bin approximates its |d| within a factor 1 ± `ERROR` (DDSketch mapping, C. Masson et al., VLDB 2019).

Dimensions: ``_N`` flat tokens, ``_K`` tokens of a pair under the mask, ``_S`` sequences, ``_S1`` sequences + 1, ``_G``
steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel import arithmetic as kernel
from logprobe.monitor import queries
from logprobe.monitor.queries import Source

Floats = NDArray[np.float64]
Buckets = NDArray[np.int32]
Dimension = Literal["position", "turn", "probability"]  # of a profile by buckets that have names

ERROR: Final = 0.01  # relative, of |d| in a bin
SMALLEST: Final = 1e-12  # |d| below is 0: float32 log-probs that differ at all differ by more
TURN_TOKENS: Final = 5
DECILES: Final = 10
PROBABILITIES: Final = (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 0.999)
_GAMMA: Final = (1 + ERROR) / (1 - ERROR)
LOG_GAMMA: Final = float(np.log(_GAMMA))
LARGEST_BIN: Final = int(np.ceil(np.log(1e4 / SMALLEST) / LOG_GAMMA))  # |d| up to 1e4; sentinels below that are broken
CHUNK: Final = 262_144  # tokens at a time: enough for the tables of their steps to be cheap beside them
_FINEST: Final = 10_000  # every end in PROBABILITIES is a multiple of its inverse
_PROBABILITY_BUCKETS: Final = (
    np.searchsorted(PROBABILITIES, (np.arange(_FINEST + 1) + 0.5) / _FINEST, side="right").astype(np.int32) - 1
)
SUMS: Final = ("sum_d", "sum_abs_d", "sum_k3")

# Dimension → its smallest bucket and how many there are.
RANGES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "position": (0, DECILES),
        "turn": (0, TURN_TOKENS + 1),
        "probability": (0, len(PROBABILITIES)),
        "log_ratio": (-LARGEST_BIN, 2 * LARGEST_BIN + 1),
    }
)


@dataclass(frozen=True)
class Tokens:
    """Positions of the tokens of some sequences, as arrays [N]."""

    step: NDArray[np.intp]  # in [0, G)
    mask: NDArray[np.bool_]
    position: Buckets
    turn: Buckets


def place(step_S: NDArray[np.intp], lengths_S: NDArray[np.int64], mask_N: NDArray[np.bool_]) -> Tokens:
    """Return the buckets that depend only on a token's position. `step_S`: step of each sequence in [0, G)."""
    starts_S = np.cumsum(lengths_S) - lengths_S
    ranks_N1 = np.concatenate([np.zeros(1, np.int32), np.cumsum(mask_N, dtype=np.int32)])
    before_S = ranks_N1[starts_S]
    expected_S = np.maximum(ranks_N1[starts_S + lengths_S] - before_S, 1)
    rank_N = ranks_N1[:-1] - np.repeat(before_S, lengths_S)
    decile_N = (DECILES * rank_N) // np.repeat(expected_S, lengths_S)
    return Tokens(np.repeat(step_S, lengths_S), mask_N, decile_N, _turn_offsets(mask_N, starts_S[lengths_S > 0]))


def _turn_offsets(mask_N: NDArray[np.bool_], starts: NDArray[np.int64]) -> Buckets:
    """Return each token's position in its turn, at most `TURN_TOKENS`. `starts`: first token of each non-empty
    sequence."""
    fresh_N = mask_N.copy()
    fresh_N[1:] &= ~mask_N[:-1]
    fresh_N[starts] = mask_N[starts]
    turns = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(fresh_N)])
    first_N = np.repeat(turns, np.diff(turns, append=len(mask_N)))
    offsets_N: Buckets = np.minimum(np.arange(len(mask_N)) - first_N, TURN_TOKENS).astype(np.int32)
    return offsets_N


class Accumulator:
    """Sums of one pair over the tokens of `steps` steps. `zero_is_placeholder`: see `sequence_statistics`."""

    def __init__(self, steps: int, *, zero_is_placeholder: bool = False) -> None:
        self._steps = steps
        self._zero_is_placeholder = zero_is_placeholder
        self._broken = np.zeros(steps, np.int64)
        self._n = {name: np.zeros((steps, size), np.int64) for name, (_, size) in RANGES.items()}
        self._sums = {name: np.zeros((len(SUMS), steps, size)) for name, (_, size) in RANGES.items()}

    def add(self, tokens: Tokens, behaviour_N: NDArray[Any], policy_N: NDArray[Any], use_N: NDArray[np.bool_]) -> None:
        """Add the tokens under the mask. `use_N`: true if both sides were recorded."""
        chosen = np.flatnonzero(tokens.mask & use_N)
        for start in range(0, len(chosen), CHUNK):
            which = chosen[start : start + CHUNK]
            behaviour, policy = behaviour_N[which].astype(np.float64), policy_N[which].astype(np.float64)
            with np.errstate(invalid="ignore"):  # NaN and infinities are counted, not warned about
                broken = ~kernel.sound(behaviour, policy)
                if self._zero_is_placeholder:
                    broken |= kernel.zero_of_unlikely(behaviour, policy)
            if broken.any():
                self._broken += np.bincount(tokens.step[which[broken]], minlength=self._steps)
                which, behaviour, policy = which[~broken], behaviour[~broken], policy[~broken]
            self._add_valid(tokens, which, behaviour, policy - behaviour)

    def _add_valid(self, tokens: Tokens, which: NDArray[np.intp], behaviour: Floats, d: Floats) -> None:
        if not len(d):
            return
        step = tokens.step[which]
        first, last = int(step.min()), int(step.max()) + 1  # sequences come ordered by step: these are few of many
        values = (d, np.abs(d), k3(d))
        buckets = {
            "position": tokens.position[which],
            "turn": tokens.turn[which],
            "probability": probability_bucket(behaviour),
            "log_ratio": log_ratio_bucket(d),
        }
        for name, bucket in buckets.items():
            low, size = RANGES[name]
            cell = (step - first) * size + (bucket - low)
            shape = (last - first, size)
            self._n[name][first:last] += np.bincount(cell, minlength=shape[0] * size).reshape(shape)
            for total, value in zip(self._sums[name], values, strict=True):
                total[first:last] += np.bincount(cell, value, minlength=shape[0] * size).reshape(shape)

    def rows(self) -> pa.Table:
        """Return the rows to store for non-empty buckets: ``place`` (step in [0, G)), ``dimension``, ``bucket``, ``n``
        and `SUMS`."""
        return pa.concat_tables([self._rows(name) for name in RANGES])

    def _rows(self, name: str) -> pa.Table:
        step, cell = np.nonzero(self._n[name])
        with_broken = np.flatnonzero(self._broken)
        pad = np.zeros(len(with_broken))
        bucket = np.concatenate([cell + RANGES[name][0], pad.astype(np.int64)])
        return pa.table(
            {
                "place": np.concatenate([step, with_broken]),
                "dimension": pa.repeat(name, len(bucket)),
                "bucket": pa.array(bucket.astype(np.int32), mask=np.arange(len(bucket)) >= len(cell)),
                "n": np.concatenate([self._n[name][step, cell], self._broken[with_broken]]),
                **{
                    column: np.concatenate([total[step, cell], pad])
                    for column, total in zip(SUMS, self._sums[name], strict=True)
                },
            }
        )


def k3(d: Floats) -> Floats:
    """Return ``exp(clamp(d, ±20)) − d − 1``, with a series near 0."""
    exact = np.expm1(np.clip(d, -kernel.CLAMP, kernel.CLAMP)) - d
    return np.where(np.abs(d) < kernel.SERIES, d * d * (0.5 + d * (1 / 6 + d / 24)), exact)


def probability_bucket(behaviour_K: Floats) -> Buckets:
    """Return the place of e^behaviour between `PROBABILITIES`. A lower end belongs to its bucket."""
    return _PROBABILITY_BUCKETS[(np.exp(behaviour_K) * _FINEST).astype(np.int32)]


def log_ratio_bucket(d: Floats) -> Buckets:
    """Return ± the number of the bin of |d|, or 0 below `SMALLEST`."""
    size = np.abs(d)
    with np.errstate(divide="ignore"):
        number = np.ceil(np.log(size / SMALLEST) / LOG_GAMMA)
    number = np.clip(number, 1, LARGEST_BIN)
    return np.where(size < SMALLEST, 0, np.copysign(number, d)).astype(np.int32)


def bin_value(bucket: NDArray[Any]) -> Floats:
    """Return the representative |d| of a bin of `log_ratio`, within a factor 1 ± `ERROR` of each value in the bin."""
    number = np.abs(bucket).astype(np.float64)
    return np.where(number == 0, 0.0, SMALLEST * 2 * _GAMMA**number / (_GAMMA + 1))


# --- Reading ---


def of(source: Source, run: str, dimension: Dimension, *, pair: str = "backend", steps: tuple[int, int]) -> pa.Table:
    """Return a profile of the steps from the first to the last of `steps`, as far as they were profiled before the
    removal of their raw tokens.

    Returns:
        One row per bucket in order: ``bucket`` (null for broken tokens, the last one), ``label``, ``tokens``,
        ``logprob_abs_diff_mean``, ``log_ratio_mean``, ``k3_kl`` (null for broken tokens).

    Raises:
        QueryError: the store refused (see `Reader.read`).
    """
    first, last = steps
    rows = queries.profile_read(source, run=run, dimension=dimension, pair=pair, first=first, last=last)
    labels = [_label(dimension, bucket) for bucket in rows["bucket"].to_pylist()]
    return rows.append_column("label", pa.array(labels, pa.string()))


def _label(dimension: str, bucket: int | None) -> str:
    if bucket is None:
        return "broken"
    if dimension == "position":
        return f"{100 // DECILES * bucket}–{100 // DECILES * (bucket + 1)} %"
    if dimension == "turn":
        return str(bucket) if bucket < TURN_TOKENS else f"≥ {TURN_TOKENS}"
    return f"{PROBABILITIES[bucket]:g}–{[*PROBABILITIES, 1.0][bucket + 1]:g}"
