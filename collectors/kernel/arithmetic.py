"""Arithmetic of the sufficient statistics for one run of tokens at a time.

A chunk is a few thousand tokens of one pair. It is converted to float64 once and processed while it fits in the
processor's cache. Separate passes over the whole batch would be ten times slower. Chunks consist of *pieces*, which are
sequences or parts of long ones. Every column gets one value per piece, and `statistics` merges pieces into sequences.

Summands are rows of one array, so that one call processes several rows. A thread needs the GIL between two calls, so
the number of calls determines the overhead of a chunk. Checks that the range of the log-ratio makes unnecessary are
skipped.

Dimensions: ``_K`` tokens of a chunk, ``_P`` pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE: Final = 65_536  # tokens: another number changes the last digits of what is stored
CHUNK: Final = 16_384  # tokens: ten float64 rows of 128 KiB stay in a core's second cache
CLAMP: Final = 20.0  # |d| inside the exponential; e^20 is 4.9e8
# HTTP servers write −9999 for −inf and NaN, and bfloat16 makes −9984 of it; nothing below that is a measured
# log-probability.
SENTINEL: Final = -9984.0
MAX_LOGPROB: Final = 1e-6  # rounding may lift a certain token's log-probability this far above 0
_MARGIN: Final = 1e-6  # of a log-ratio, far beyond what rounding makes of it
SERIES: Final = 1e-4  # below this |d|, expm1(d) − d has lost the digits that its series still has

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Values: TypeAlias = NDArray[Any]  # of any number type
Indices: TypeAlias = NDArray[np.intp]


@dataclass(slots=True)
class Table:
    """Columns with one value per piece of the current chunk. `n` and `n_expected` start as the lengths of the pieces.

    `rows` of `columns` are the pieces with tokens, and `starts` are their positions in the chunk. `blocks` are columns
    that are filled together, as the rows of one array.
    """

    columns: dict[str, NDArray[Any]]
    blocks: dict[tuple[str, ...], Floats]
    rows: slice | Indices
    starts: Indices

    def sums(self, names: tuple[str, ...], rows_RK: Floats) -> None:
        """Write Σ of each row over each piece into the column of the same name."""
        self.blocks[names][:, self.rows] = np.add.reduceat(rows_RK, self.starts, axis=1)

    def count(self, name: str, hits_K: Bools) -> None:
        """Count the hits in each piece."""
        self.columns[name][self.rows] = np.add.reduceat(
            hits_K, self.starts, dtype=np.int32
        )  # a chunk has no 2³¹ tokens

    def extremes(self, values_K: Floats) -> tuple[float, float]:
        """Write `min_d` and `max_d` of each piece and return those of all pieces."""
        lowest, highest = np.minimum.reduceat(values_K, self.starts), np.maximum.reduceat(values_K, self.starts)
        self.columns["min_d"][self.rows], self.columns["max_d"][self.rows] = lowest, highest
        return float(np.minimum.reduce(lowest)), float(np.maximum.reduce(highest))

    def keep(self, keep_K: Bools, *names: str) -> None:
        """Restrict the chunk to these tokens and write their number per piece into the columns `names`."""
        kept_P = np.add.reduceat(keep_K, self.starts, dtype=np.intp)
        for name in names:
            self.columns[name][self.rows] = kept_P
        ends_P = np.cumsum(kept_P)
        filled = kept_P > 0  # reduceat returns the next piece's first token for an empty piece
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        self.rows, self.starts = rows[filled], (ends_P - kept_P)[filled]


class Workspace:
    """Scratch arrays of one thread, reused for each chunk."""

    def __init__(self, size: int) -> None:
        self._memory = np.empty(ROWS * size)

    def rows(self, size: int) -> Floats:
        """Return contiguous float64 [`ROWS`, size], so that a small chunk occupies little of the cache."""
        return self._memory[: ROWS * size].reshape(ROWS, size)


@dataclass(slots=True)
class Tokens:
    """Tokens of a chunk: log-probabilities and, if present, advantages and mask [K]."""

    behaviour: Values
    policy: Values
    advantages: Values | None
    mask: Bools | None

    def __len__(self) -> int:
        return len(self.behaviour)

    def __getitem__(self, which: slice | Bools) -> Tokens:
        advantages = None if self.advantages is None else self.advantages[which]
        mask = None if self.mask is None else self.mask[which]
        return Tokens(self.behaviour[which], self.policy[which], advantages, mask)


# The rows of a workspace, by the column that each is summed into. The second group is made of the first five rows of
# the first, and takes their place.
LOGPROB_SUMS: Final[tuple[str, ...]] = (
    "sum_behaviour",
    "sum_policy",
    "sum_d",
    "sum_ratio_m1",
    "sum_abs_d",
    "sum_behaviour2",
    "sum_policy2",
    "sum_d2",
    "sum_ratio_m1_sq",
    "sum_policy_behaviour",
)
PROBABILITY_SUMS: Final[tuple[str, ...]] = (
    "sum_behaviour_prob2",
    "sum_policy_prob2",
    "sum_reverse_kl",
    "sum_abs_prob_diff",
    "sum_k3",
    "sum_policy_behaviour_prob",
    "sum_behaviour_prob",
    "sum_exp_abs_d",
    "sum_policy_prob",
)
ROWS: Final = len(LOGPROB_SUMS)


def zero_of_unlikely(other: Any, side: Any) -> Any:
    """Return where `side` is exactly 0 for a token far from certain: a placeholder, or a probability rounded to 1."""
    return (side == 0.0) & (other < -1.0)


def accumulate(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    """Fill every column of the chunk's pieces. `limits` are the bounds of ρ."""
    if tokens.mask is not None and not tokens.mask.all():
        table.keep(tokens.mask, "n", "n_expected")
        tokens = tokens[tokens.mask]
    if not len(tokens):
        return
    if not _is_clean(tokens):
        good = ~_count_broken(table, *_loaded(tokens, work.rows(len(tokens))))
        table.keep(good, "n")
        tokens = tokens[good]
        if not len(tokens):
            return
    _accumulate_valid(table, tokens, limits, work)


def _loaded(tokens: Tokens, rows: Floats) -> tuple[Floats, Floats]:
    """Return behaviour and policy as the first two rows."""
    rows[0, :] = tokens.behaviour
    rows[1, :] = tokens.policy
    return rows[0], rows[1]


def _is_clean(tokens: Tokens) -> bool:
    """Return whether no token can be broken. NaN makes a comparison false."""
    ranges = [_range(tokens.behaviour), _range(tokens.policy)]
    if not all(lowest > SENTINEL and highest <= MAX_LOGPROB for lowest, highest in ranges):
        return False
    return (
        ranges[0][1] < 0 or _range(tokens.policy - tokens.behaviour)[0] >= -1
    )  # what is exactly 0 beside less than −1


def _range(values_K: Values) -> tuple[float, float]:
    """Return the lowest and the highest value, or NaN if a value is NaN."""
    return float(np.minimum.reduce(values_K)), float(np.maximum.reduce(values_K))


def is_sentinel(logprob: Any) -> Any:
    """Return which values are placeholders for a log-prob."""
    return (logprob <= SENTINEL) | (logprob == 1.0)


def sound(behaviour: Any, policy: Any) -> Any:
    """Return where both values are valid log-probs, those without a kind in `broken_kinds`. NaN fails every comparison.

    The arrays are of numpy or torch.
    """
    within = (behaviour > SENTINEL) & (behaviour <= MAX_LOGPROB) & (policy > SENTINEL) & (policy <= MAX_LOGPROB)
    return within & ~zero_of_unlikely(policy, behaviour)


def broken_kinds(behaviour: Any, policy: Any) -> dict[str, Any]:
    """Return where tokens are broken, by kind in the order of `statistics.BROKEN`, each under the first that applies.

    The arrays are of numpy or torch. Two comparisons find finite values, since torch's `isfinite` takes ten times as
    long on a CPU.
    """
    kinds = {
        "n_nonfinite_behaviour": ~((behaviour > -math.inf) & (behaviour < math.inf)),
        "n_nonfinite_policy": ~((policy > -math.inf) & (policy < math.inf)),
        "n_sentinel_behaviour": is_sentinel(behaviour),
        "n_sentinel_policy": is_sentinel(policy),
        "n_positive_behaviour": behaviour > MAX_LOGPROB,
        "n_positive_policy": policy > MAX_LOGPROB,
        "n_zero_behaviour": zero_of_unlikely(policy, behaviour),
    }
    seen = kinds["n_nonfinite_behaviour"]
    for name, hits in list(kinds.items())[1:]:
        kinds[name], seen = hits & ~seen, seen | hits
    return kinds


def _count_broken(table: Table, behaviour: Floats, policy: Floats) -> Bools:
    """Count broken tokens by kind and return where tokens are broken."""
    broken: Bools = np.zeros(len(behaviour), np.bool_)
    for name, hits in broken_kinds(behaviour, policy).items():
        table.count(name, hits)
        broken |= hits
    return broken


def _accumulate_valid(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    rows = work.rows(len(tokens))
    behaviour, policy = _loaded(tokens, rows)
    d, ratio_m1, absolute = rows[2:5]
    np.subtract(policy, behaviour, out=d)
    lowest, highest = table.extremes(d)
    np.abs(d, out=absolute)
    clamped = absolute > CLAMP if max(-lowest, highest) > CLAMP else None
    np.expm1(d if clamped is None else np.clip(d, -CLAMP, CLAMP), out=ratio_m1)
    np.square(rows[:4], out=rows[5:9])  # half the reading of a product
    np.multiply(policy, behaviour, out=rows[9])
    table.sums(LOGPROB_SUMS, rows)
    _signs(table, d, lowest, highest)
    _clipping(table, tokens.advantages, ratio_m1, limits, (lowest, highest))
    if tokens.advantages is not None:
        table.count("n_advantage", np.isfinite(tokens.advantages))
    if highest > 1:  # else no policy is 0 beside less than −1
        table.count("n_zero_policy", zero_of_unlikely(behaviour, policy))
    if clamped is not None:
        table.count("n_clamped", clamped)
    _probabilities(rows, clamped)
    table.sums(PROBABILITY_SUMS, rows[:9])


def _signs(table: Table, d: Floats, lowest: float, highest: float) -> None:
    if highest > 0:
        table.count("n_positive_d", d > 0)
    if lowest < 0:
        table.count("n_negative_d", d < 0)


def _clipping(
    table: Table,
    advantages: Values | None,
    ratio_m1: Floats,
    limits: tuple[float, float],
    extremes: tuple[float, float],
) -> None:
    if extremes[0] > _log(limits[0]) + _MARGIN and extremes[1] < _log(limits[1]) - _MARGIN:
        return  # no ratio is near its limit
    below, above = ratio_m1 < limits[0] - 1.0, ratio_m1 > limits[1] - 1.0
    table.count("n_above", above)
    table.count("n_below", below)
    if advantages is not None:
        table.count("n_pg_clipped", (above & (advantages > 0)) | (below & (advantages < 0)))


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _probabilities(rows: Floats, clamped: Bools | None) -> None:
    """Compute the rows of `PROBABILITY_SUMS` from log-probabilities and log-ratio."""
    _, policy, d, ratio_m1, absolute, both, p, _, q = rows[:9]
    small = np.flatnonzero(absolute < SERIES)
    if clamped is not None:
        np.clip(absolute, 0.0, CLAMP, out=absolute)
    np.exp(rows[0:5:4], out=rows[6:8])  # of behaviour and |d|
    k3 = np.subtract(ratio_m1, d, out=absolute)
    if len(small):
        k3[small] = _k3_series(d[small])
    reverse = np.multiply(d, ratio_m1, out=d)
    np.subtract(reverse, k3, out=reverse)  # ρd − ρ + 1 = d(ρ − 1) − (ρ − 1 − d)
    difference = np.multiply(p, ratio_m1, out=ratio_m1)  # e^policy − e^behaviour, without cancellation
    if clamped is not None:
        difference[clamped] = np.exp(policy[clamped]) - p[clamped]
    np.add(p, difference, out=q)
    np.abs(difference, out=difference)
    np.square(rows[6:9:2], out=rows[:2])
    np.multiply(p, q, out=both)


def _k3_series(d: Floats) -> Floats:
    """Return ``d²(1/2 + d/6 + d²/24)``, with a relative error of d³/60."""
    return ((d * (1 / 24) + 1 / 6) * d + 0.5) * (d * d)
