"""Sufficient statistics of a log-ratio, per sequence: the numbers every metric is computed from.

A *pair* compares two log-probabilities of the same tokens: what a behaviour policy gave them and what a policy gives
them, with ``d = policy − behaviour`` and ``ρ = exp(clamp(d, ±20))``:

========  =========  ======  ===============================================
pair      behaviour  policy  answers
========  =========  ======  ===============================================
backend   rollout    old     do engine and trainer agree about the tokens?
update    old        current how far has the optimizer moved in this step?
total     rollout    current what an objective without old log-probs sees
========  =========  ======  ===============================================

Every column is a sum, a count, a minimum or a maximum over tokens in float64, so shards, micro-batches, ranks and windows
merge exactly. Ratios are summed as ``ρ − 1``: near agreement that keeps the digits which ``ρ² − 1`` would lose.

Broken tokens (see `BROKEN`) are counted by kind and left out of every sum; what stands under ``mask = 0`` changes nothing.

Dimensions: ``_N`` tokens, ``_S`` sequences, ``_S1`` sequences + 1, ``_G`` groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Statistics = dict[str, NDArray[np.generic]]

Reduction = Literal["sum", "min", "max"]

PAIRS: Final = ("backend", "update", "total")
CLAMP: Final = 20.0  # |d| inside the exponential; e^20 is 4.9e8
SENTINEL: Final = -9999.0  # what HTTP servers write for -inf and NaN; nothing below it is a measured log-probability
MAX_LOGPROB: Final = 1e-6  # rounding may lift a certain token's log-probability this far above 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of ρ beyond which a token counts as clipped: outside the closed interval [lower, upper]."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 ≤ lower ≤ upper."""
        if not 0 <= self.lower <= self.upper:
            msg = f"bounds of ρ must satisfy 0 ≤ lower ≤ upper, not [{self.lower}, {self.upper}]"
            raise ValueError(msg)


# What truncated and masked importance sampling use by default (verl, slime, ms-swift: 2.0, and its inverse), and PPO's ε = 0.2.
DEFAULT_BOUNDS: Final[dict[str, Bounds]] = {
    "backend": Bounds(0.5, 2.0),
    "update": Bounds(0.8, 1.2),
    "total": Bounds(0.8, 1.2),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One sufficient statistic: its name, how it merges, and what it is."""

    name: str
    reduction: Reduction
    count: bool  # a whole number (int64, BIGINT); otherwise float64, DOUBLE
    words: str

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the column as an array."""
        return np.dtype(np.int64 if self.count else np.float64)

    @property
    def sql_type(self) -> str:
        """Type of the column in the store."""
        return "BIGINT" if self.count else "DOUBLE"

    @property
    def identity(self) -> float:
        """Value of the column when there is no token: merging it changes nothing."""
        return {"sum": 0.0, "min": np.inf, "max": -np.inf}[self.reduction]


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
    "n_zero_policy",
)

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
        n_nonfinite_behaviour="behaviour is NaN or infinite",
        n_nonfinite_policy="policy is NaN or infinite",
        n_sentinel_behaviour="behaviour is ≤ −9999 or exactly +1.0: a placeholder",
        n_sentinel_policy="policy is ≤ −9999 or exactly +1.0: a placeholder",
        n_positive_behaviour="behaviour > 1e-6: a probability above 1",
        n_positive_policy="policy > 1e-6: a probability above 1",
        n_zero_behaviour="behaviour is exactly 0 where policy < −1",
        n_zero_policy="policy is exactly 0 where behaviour < −1",
    ),
)
COLUMNS: Final[tuple[str, ...]] = tuple(column.name for column in COLUMN_SPECS)


def sql_columns() -> str:
    """Column definitions of the store's ``statistics`` table, one per line, without a trailing comma."""
    width = max(len(name) for name in COLUMNS)
    return ",\n    ".join(f"{c.name:<{width}} {c.sql_type} NOT NULL" for c in COLUMN_SPECS)


def sequence_statistics(
    behaviour_N: ArrayLike,
    policy_N: ArrayLike,
    mask_N: ArrayLike | None,
    offsets_S1: ArrayLike,
    *,
    bounds: Bounds = DEFAULT_BOUNDS["backend"],
    advantages_N: ArrayLike | None = None,
    threads: int = 1,
) -> Statistics:
    """Sufficient statistics of every sequence of one pair.

    Args:
        behaviour_N: log-probabilities, flat, any float dtype; NaN and infinities are allowed anywhere.
        policy_N: log-probabilities of the same tokens.
        mask_N: true or non-zero where the token was sampled and trained on; None: everywhere.
        offsets_S1: sequence s is the tokens ``[offsets_S1[s], offsets_S1[s + 1])``; empty sequences are allowed.
        bounds: what `n_above` and `n_below` count, and PPO's clip range for `n_pg_clipped`.
        advantages_N: per token; without it `n_advantage` and `n_pg_clipped` are 0.
        threads: sequences are spread over this many threads.

    Returns:
        `COLUMNS` → array [S], int64 or float64. A sequence without a valid token has sums of 0, `min_d` +inf, `max_d` −inf.

    Raises:
        ValueError: lengths differ, or the offsets do not run from 0 to N in non-decreasing order.
    """
    raise NotImplementedError


def merge(a: Mapping[str, NDArray[np.generic]], b: Mapping[str, NDArray[np.generic]]) -> Statistics:
    """Statistics of the union of disjoint token sets, column by column; arrays of the same shape."""
    raise NotImplementedError


def reduce_groups(columns: Mapping[str, NDArray[np.generic]], group_S: ArrayLike, groups: int) -> Statistics:
    """Merge sequences into groups: `group_S` [S] holds each sequence's group in [0, groups); → columns [G]."""
    raise NotImplementedError


def empty(size: int) -> Statistics:
    """Statistics of `size` sequences without tokens."""
    return {c.name: np.full(size, c.identity, dtype=c.dtype) if not c.count else np.zeros(size, np.int64) for c in COLUMN_SPECS}
