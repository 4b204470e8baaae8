"""Sufficient statistics of a log-ratio per sequence, from which every metric is computed.

A *pair* compares the log-probabilities of the same tokens under a behaviour policy and a policy. Its log-ratio is
``d = policy − behaviour``, and ``ρ = exp(clamp(d, ±20))``.

========  =========  ======  ===============================================
pair      behaviour  policy  answers
========  =========  ======  ===============================================
backend   rollout    old     do engine and trainer agree about the tokens?
update    old        current how far has the optimizer moved in this step?
total     rollout    current what an objective without old log-probs sees
reference old        reference how far is the policy from the reference policy?
teacher   old        teacher how far is a student from its teacher (on-policy distillation)?
========  =========  ======  ===============================================

Every column is a sum, a count, a minimum or a maximum over tokens in float64, so shards, micro-batches, ranks and
windows merge exactly. Ratios are summed as ``ρ − 1``, which near agreement keeps the digits that
``ρ² − 1`` would lose.

Broken tokens (see `BROKEN`) are counted by kind and excluded from every sum. Values under ``mask = 0`` have no effect.

Dimensions: ``_N`` tokens, ``_S`` sequences, ``_S1`` sequences + 1, ``_G`` groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logprobe.collectors.errors import ConfigurationError, InputError
from logprobe.collectors.kernel import arithmetic as kernel

Statistics = dict[str, NDArray[Any]]
Reduction = Literal["sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of ρ. A token outside the closed interval [lower, upper] counts as clipped."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise ConfigurationError(f"bounds of ρ are [{self.lower}, {self.upper}]; use 0 ≤ lower ≤ upper")


# What truncated and masked importance sampling use by default (verl, slime, ms-swift: 2.0, and its inverse), and PPO's
# ε = 0.2.
DEFAULT_BOUNDS: Final[dict[str, Bounds]] = {
    "backend": Bounds(0.5, 2.0),
    "update": Bounds(0.8, 1.2),
    "total": Bounds(0.8, 1.2),
    "reference": Bounds(0.5, 2.0),
    "teacher": Bounds(0.5, 2.0),
}

# Pairs whose policy another model computed: its exact zeros on unlikely tokens are arrays that were not filled.
ZERO_IS_PLACEHOLDER: Final = frozenset({"reference", "teacher"})


@dataclass(frozen=True, slots=True)
class Column:
    """One sufficient statistic: name, merge function and meaning."""

    name: str
    reduction: Reduction
    count: bool  # a whole number (int64, BIGINT); otherwise float64, DOUBLE
    words: str

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the column as an array."""
        return np.dtype(np.int64 if self.count else np.float64)

    @property
    def identity(self) -> float:
        """Value of the column without tokens, the identity of its merge."""
        return {"sum": 0, "min": np.inf, "max": -np.inf}[self.reduction]

    @property
    def ufunc(self) -> np.ufunc:
        """Function that merges two values of the column."""
        return {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.reduction]


def _sums(**words: str) -> tuple[Column, ...]:
    return tuple(Column(name, "sum", count=False, words=text) for name, text in words.items())


def _counts(**words: str) -> tuple[Column, ...]:
    return tuple(Column(name, "sum", count=True, words=text) for name, text in words.items())


# Kinds of broken token, each token counted once, under the first that applies.
BROKEN: Final = (
    "n_nonfinite_behaviour",
    "n_nonfinite_policy",
    "n_sentinel_behaviour",
    "n_sentinel_policy",
    "n_positive_behaviour",
    "n_positive_policy",
    "n_zero_behaviour",
)

# A single token may be certain to the last digit, and so may be the few of a short answer. So many in a row, with
# nothing else before or after them, are an array that nobody filled: as a measurement they would look like perfect
# agreement.
BLANK_TOKENS: Final = 32
UNFILLED_TOKENS: Final = 4  # of a sequence, all exactly 0 on the trainer's side: fewer may be certain by chance

COLUMN_SPECS: Final[tuple[Column, ...]] = (
    *_counts(
        n="valid tokens: under the mask and not broken; every sum below is over these",
        n_expected="tokens under the mask = n + broken tokens",
    ),
    *_sums(
        sum_d="Σ d",
        sum_d2="Σ d²",
        sum_abs_d="Σ |d|",
        sum_ratio_m1="Σ (ρ − 1)",
        sum_ratio_m1_sq="Σ (ρ − 1)²",
        sum_k3="Σ (ρ − 1 − d)",
        sum_reverse_kl="Σ (ρ·d − ρ + 1)",
        sum_abs_prob_diff="Σ |e^policy − e^behaviour|",
        sum_exp_abs_d="Σ e^min(|d|, 20)",
    ),
    Column("min_d", "min", count=False, words="min d; +inf without a valid token"),
    Column("max_d", "max", count=False, words="max d; −inf without a valid token"),
    *_sums(
        sum_policy="Σ policy",
        sum_behaviour="Σ behaviour",
        sum_policy2="Σ policy²",
        sum_behaviour2="Σ behaviour²",
        sum_policy_behaviour="Σ policy·behaviour",
        sum_policy_prob="Σ e^policy",
        sum_behaviour_prob="Σ e^behaviour",
        sum_policy_prob2="Σ e^2·policy",
        sum_behaviour_prob2="Σ e^2·behaviour",
        sum_policy_behaviour_prob="Σ e^(policy + behaviour)",
    ),
    *_counts(
        n_positive_d="d > 0",
        n_negative_d="d < 0",
        n_zero_d="d == 0: bit-identical",
        n_above="ρ above the upper bound",
        n_below="ρ below the lower bound",
        n_clamped="|d| > 20",
        n_advantage="valid tokens with a finite advantage",
        n_pg_clipped="of these, where PPO's minimum takes the clipped branch",
        n_zero_policy="policy is exactly 0 where behaviour < −1: suspicious, but a probability can round to 1",
        n_nonfinite_behaviour="behaviour is NaN or infinite",
        n_nonfinite_policy="policy is NaN or infinite",
        n_sentinel_behaviour="behaviour is ≤ −9984 (−9999 in bfloat16) or exactly +1.0: a placeholder",
        n_sentinel_policy="policy is ≤ −9984 (−9999 in bfloat16) or exactly +1.0: a placeholder; or all of a "
        f"sequence's {UNFILLED_TOKENS} tokens or more are exactly 0 and behaviour < −1 for most",
        n_positive_behaviour="behaviour > 1e-6: a probability above 1",
        n_positive_policy="policy > 1e-6: a probability above 1",
        n_zero_behaviour="behaviour is exactly 0 where policy < −1, or in all of a sequence where policy < −1 for most, "
        f"or in all of a sequence's {BLANK_TOKENS} tokens or more on both sides",
    ),
)
COLUMNS: Final[tuple[str, ...]] = tuple(column.name for column in COLUMN_SPECS)


def sequence_statistics(
    behaviour_N: ArrayLike,
    policy_N: ArrayLike,
    mask_N: ArrayLike | None,
    offsets_S1: ArrayLike,
    *,
    bounds: Bounds = DEFAULT_BOUNDS["backend"],
    advantages_N: ArrayLike | None = None,
    zero_is_placeholder: bool = False,
) -> Statistics:
    """Return sufficient statistics of every sequence of one pair.

    Args:
        behaviour_N: log-probabilities, flat, any float dtype. NaN and infinities are allowed anywhere.
        policy_N: log-probabilities of the same tokens.
        mask_N: true or non-zero for sampled and trained tokens, or None for all tokens.
        offsets_S1: boundaries of the sequences. Sequence s is the tokens ``[offsets_S1[s], offsets_S1[s + 1])``. Empty
            sequences are allowed.
        bounds: bounds of ρ for `n_above` and `n_below`, and PPO's clip range for `n_pg_clipped`.
        advantages_N: advantage per token, or None, which sets `n_advantage` and `n_pg_clipped` to 0.
        zero_is_placeholder: true if a policy of exactly 0 where behaviour < −1 is broken, and the same with sides
            exchanged. See `ZERO_IS_PLACEHOLDER`.

    Returns:
        `COLUMNS` → numpy array [S], int64 or float64. A sequence without a valid token has sums of 0, `min_d` +inf,
        `max_d` −inf.

    Raises:
        InputError: lengths differ, or the offsets do not run from 0 to N in non-decreasing order.
    """
    offsets_S1 = np.asarray(offsets_S1, np.int64)
    tokens = _checked_tokens(behaviour_N, policy_N, mask_N, advantages_N)
    if zero_is_placeholder:
        tokens.policy = _with_placeholders(tokens)
    _check_offsets(offsets_S1, len(tokens))
    pieces, first = _pieces(offsets_S1)
    limits = (bounds.lower, bounds.upper)
    table = _filled(pieces, tokens, limits)
    table["n_zero_d"] = table["n"] - table["n_positive_d"] - table["n_negative_d"]
    return _without_blanks(_pieces_to_sequences(table, first, offsets_S1))


def _with_placeholders(tokens: kernel.Tokens) -> Any:
    """Return the policy with a sentinel where it is exactly 0 and behaviour is far from certain."""
    placeholder = kernel.zero_of_unlikely(tokens.behaviour, tokens.policy)
    if not bool(placeholder.any()):
        return tokens.policy
    policy = tokens.policy.copy()
    policy[placeholder] = kernel.SENTINEL
    return policy


def _without_blanks(table: Statistics) -> Statistics:
    """Count all tokens of a sequence as broken if a side was never filled.

    An unfilled side has exact zeros on both sides (see `BLANK_TOKENS`), or on one side where the other rates most
    tokens unlikely. The few likely tokens would otherwise pass for measurements.
    """
    n, zero_r, zero_t = table["n"], table["sum_behaviour2"] == 0, table["sum_policy2"] == 0
    rollout_S = zero_r & ((zero_t & (n >= BLANK_TOKENS)) | (table["n_zero_behaviour"] > n))
    trainer_S = zero_t & ~rollout_S & (2 * table["n_zero_policy"] > n) & (n >= UNFILLED_TOKENS)
    kept = ("n_expected", *BROKEN)
    for unfilled_S, kind in ((rollout_S, "n_zero_behaviour"), (trainer_S, "n_sentinel_policy")):
        if unfilled_S.any():
            table[kind][unfilled_S] += n[unfilled_S]
            for c in COLUMN_SPECS:
                if c.name not in kept:
                    table[c.name][unfilled_S] = c.identity
    return table


def _pieces(offsets_S1: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts of the pieces, and the first piece of each sequence with tokens.

    Sequences are cut at multiples of `LONGEST_PIECE` from their own start. Their sums are therefore bit-identical in
    every batch, shard and segment.
    """
    lengths = np.diff(offsets_S1)
    starts, lengths = offsets_S1[:-1][lengths > 0], lengths[lengths > 0]
    counts = -(-lengths // kernel.LONGEST_PIECE)
    first = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(first, counts)
    return np.repeat(starts, counts) + within * kernel.LONGEST_PIECE, first


def _chunks(pieces: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield groups of consecutive pieces that fit into a chunk. A piece that is too long forms its own chunk."""
    first = 0
    while first < len(pieces):
        last = max(int(np.searchsorted(ends, pieces[first] + kernel.CHUNK, side="right")), first + 1)
        yield first, last
        first = last


def _checked_tokens(
    behaviour_N: ArrayLike, policy_N: ArrayLike, mask_N: ArrayLike | None, advantages_N: ArrayLike | None
) -> kernel.Tokens:
    advantages = None if advantages_N is None else np.asarray(advantages_N)
    mask = None if mask_N is None else np.asarray(mask_N).astype(np.bool_, copy=False)
    tokens = kernel.Tokens(np.asarray(behaviour_N), np.asarray(policy_N), advantages, mask)
    arrays = (tokens.behaviour, tokens.policy, tokens.mask, tokens.advantages)
    shapes = {tuple(x.shape) for x in arrays if x is not None}
    if len(shapes) != 1 or tokens.behaviour.ndim != 1:
        raise InputError(
            f"behaviour, policy, mask and advantages have shapes {sorted(shapes)}; pass flat arrays of one length"
        )
    return tokens


def _check_offsets(offsets_S1: NDArray[np.int64], size: int) -> None:
    if offsets_S1.ndim != 1 or not len(offsets_S1) or offsets_S1[0] != 0 or offsets_S1[-1] != size:
        raise InputError(f"offsets do not run from 0 to {size}; pass the sequence starts and the number of tokens")
    if (np.diff(offsets_S1) < 0).any():
        raise InputError("offsets decrease; pass them in ascending order")


def _filled(pieces: NDArray[np.int64], tokens: kernel.Tokens, limits: tuple[float, float]) -> Statistics:
    """Return the columns of all pieces."""
    ends = np.append(pieces[1:], len(tokens))
    blocks = {names: np.zeros((len(names), len(pieces))) for names in (kernel.LOGPROB_SUMS, kernel.PROBABILITY_SUMS)}
    columns = empty(len(pieces)) | {
        name: row for names, rows in blocks.items() for name, row in zip(names, rows, strict=True)
    }
    columns["n"][:] = columns["n_expected"][:] = ends - pieces
    chunks = list(_chunks(pieces, ends))
    largest = max((int(ends[last - 1] - pieces[first]) for first, last in chunks), default=0)
    work = kernel.Workspace(largest)
    with np.errstate(all="ignore"):  # NaN and infinities are counted, not warned about
        for first, last in chunks:
            start, end = int(pieces[first]), int(ends[last - 1])
            table = kernel.Table(columns, blocks, slice(first, last), pieces[first:last] - start)
            kernel.accumulate(table, tokens[start:end], limits, work)
    return columns


def _pieces_to_sequences(table: Statistics, first: NDArray[np.int64], offsets_S1: NDArray[np.int64]) -> Statistics:
    filled = np.diff(offsets_S1) > 0
    if filled.all() and len(table["n"]) == len(filled):
        return table  # every sequence is one piece
    result = empty(len(filled))
    if filled.any():
        for c in COLUMN_SPECS:
            result[c.name][filled] = c.ufunc.reduceat(table[c.name], first)
    return result


def merge(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> Statistics:
    """Return the statistics of the union of disjoint token sets, column by column, for arrays of the same shape."""
    return {c.name: c.ufunc(a[c.name], b[c.name]) for c in COLUMN_SPECS}


def empty(size: int) -> Statistics:
    """Return the statistics of `size` sequences without tokens."""
    return {
        c.name: np.zeros(size, c.dtype) if c.reduction == "sum" else np.full(size, c.identity, dtype=c.dtype)
        for c in COLUMN_SPECS
    }
