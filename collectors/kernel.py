"""Arithmetic of the sufficient statistics: one cache-sized run of tokens at a time.

A chunk is a few thousand tokens of one pair, converted to float64 once and passed over while it lies in the processor's
cache; per-array passes over the whole batch are ten times slower. Chunks consist of *pieces*, sequences or parts
of long ones, and every column gets one value per piece; `statistics` merges pieces into sequences.

Dimensions: ``_K`` tokens of a chunk, ``_P`` pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 65_536  # nine float64 arrays of 512 KiB: large enough for threads not to queue for the GIL, still cached
CLAMP: Final = 20.0  # |d| inside the exponential; e^20 is 4.9e8
SENTINEL: Final = -9999.0  # what HTTP servers write for -inf and NaN; nothing below it is a measured log-probability
MAX_LOGPROB: Final = 1e-6  # rounding may lift a certain token's log-probability this far above 0
SERIES: Final = 1e-4  # below this |d|, expm1(d) − d has lost the digits that its series still has

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(slots=True)
class Table:
    """Columns [P] being filled, one value per piece; `rows` selects the pieces of the chunk at hand."""

    columns: dict[str, NDArray[Any]]
    rows: slice | Indices = field(default_factory=lambda: slice(0))
    starts: Indices = field(default_factory=lambda: np.empty(0, np.intp))

    def sum(self, name: str, values_K: Floats) -> None:
        """Σ over each piece."""
        self.columns[name][self.rows] = np.add.reduceat(values_K, self.starts)

    def count(self, name: str, hits_K: Bools) -> None:
        """Number of hits in each piece."""
        self.columns[name][self.rows] = np.add.reduceat(hits_K, self.starts, dtype=np.int64)

    def extremes(self, values_K: Floats) -> None:
        """`min_d` and `max_d` of each piece."""
        self.columns["min_d"][self.rows] = np.minimum.reduceat(values_K, self.starts)
        self.columns["max_d"][self.rows] = np.maximum.reduceat(values_K, self.starts)

    def lengths(self, name: str, total: int) -> None:
        """Number of tokens of each piece, when the chunk has `total`."""
        self.columns[name][self.rows] = np.diff(self.starts, append=total)


@dataclass(slots=True)
class Tokens:
    """The tokens of a chunk: log-probabilities and, where there are any, advantages and mask [K]."""

    behaviour: NDArray[Any]
    policy: NDArray[Any]
    advantages: NDArray[Any] | None
    mask: Bools | None

    def __len__(self) -> int:
        return len(self.behaviour)

    def __getitem__(self, which: slice | Bools) -> Tokens:
        advantages = None if self.advantages is None else self.advantages[which]
        mask = None if self.mask is None else self.mask[which]
        return Tokens(self.behaviour[which], self.policy[which], advantages, mask)


@dataclass(slots=True)
class Terms:
    """What the sums of a chunk's valid tokens are made of [K]; `scratch` may be overwritten."""

    behaviour: Floats
    policy: Floats
    d: Floats
    absolute: Floats
    ratio_m1: Floats
    scratch: tuple[Floats, Floats, Floats, Floats]
    clamped: Bools | None = None


class Workspace:
    """Scratch arrays of one thread, reused from chunk to chunk."""

    def __init__(self) -> None:
        self._arrays = np.empty((9, CHUNK))

    def rows(self, size: int) -> list[Floats]:
        """Nine float64 arrays [size]."""
        return list(self._arrays[:, :size])


def accumulate(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    """Fill the pieces `table.rows` that start at `table.starts` with every column; `limits` are the bounds of ρ."""
    if tokens.mask is not None and not tokens.mask.all():
        _compress(table, tokens.mask)
        tokens = tokens[tokens.mask]
    if not len(tokens):
        return
    table.lengths("n_expected", len(tokens))
    behaviour, policy, d = work.rows(len(tokens))[:3]
    _load(tokens, behaviour, policy, d)
    if not _is_clean(behaviour, policy, d):
        good = ~_count_broken(table, behaviour, policy)
        _compress(table, good)
        tokens = tokens[good]
        if not len(tokens):
            return
        behaviour, policy, d = work.rows(len(tokens))[:3]
        _load(tokens, behaviour, policy, d)
    table.lengths("n", len(tokens))
    _accumulate_valid(table, tokens, limits, work)


def _load(tokens: Tokens, behaviour: Floats, policy: Floats, d: Floats) -> None:
    behaviour[:] = tokens.behaviour
    policy[:] = tokens.policy
    np.subtract(policy, behaviour, out=d)


def _compress(table: Table, keep_K: Bools) -> None:
    """Point `table` at the pieces that keep tokens, and at where those start among the kept ones."""
    kept_P = np.add.reduceat(keep_K, table.starts, dtype=np.intp)
    ends_P = np.cumsum(kept_P)
    filled = kept_P > 0  # reduceat returns the next piece's first token for an empty piece
    rows = np.arange(table.rows.start, table.rows.stop) if isinstance(table.rows, slice) else table.rows
    table.rows, table.starts = rows[filled], (ends_P - kept_P)[filled]


def _is_clean(behaviour: Floats, policy: Floats, d: Floats) -> bool:
    """Whether no token can be broken; NaN anywhere makes a comparison false."""
    lowest, ceiling = d.min(), behaviour.max()
    in_range = min(behaviour.min(), policy.min()) > SENTINEL and max(ceiling, policy.max()) <= MAX_LOGPROB
    return bool(in_range and np.isfinite(d.max() - lowest) and (ceiling < 0 or lowest >= -1))


def _count_broken(table: Table, behaviour: Floats, policy: Floats) -> Bools:
    """Count broken tokens by kind, each under the first kind that applies; → which are broken."""
    kinds = {
        "n_nonfinite_behaviour": ~np.isfinite(behaviour),
        "n_nonfinite_policy": ~np.isfinite(policy),
        "n_sentinel_behaviour": (behaviour <= SENTINEL) | (behaviour == 1.0),
        "n_sentinel_policy": (policy <= SENTINEL) | (policy == 1.0),
        "n_positive_behaviour": behaviour > MAX_LOGPROB,
        "n_positive_policy": policy > MAX_LOGPROB,
        "n_zero_behaviour": (behaviour == 0.0) & (policy < -1.0),
    }
    broken = np.zeros(len(behaviour), np.bool_)
    for name, hits in kinds.items():
        table.count(name, hits & ~broken)
        broken |= hits
    return broken


def _accumulate_valid(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    behaviour, policy, d, absolute, ratio_m1, *scratch = work.rows(len(tokens))
    terms = Terms(behaviour, policy, d, absolute, ratio_m1, (scratch[0], scratch[1], scratch[2], scratch[3]))
    _prepare(terms)
    table.extremes(d)
    _log_ratio(table, terms)
    _signs(table, d)
    _ratio(table, terms)
    _clipping(table, tokens.advantages, ratio_m1, limits)
    _logprobs(table, terms)
    _probabilities(table, terms)


def _prepare(terms: Terms) -> None:
    np.abs(terms.d, out=terms.absolute)
    if terms.absolute.max() > CLAMP:
        terms.clamped = terms.absolute > CLAMP
        np.expm1(np.clip(terms.d, -CLAMP, CLAMP, out=terms.ratio_m1), out=terms.ratio_m1)
    else:
        np.expm1(terms.d, out=terms.ratio_m1)


def _log_ratio(table: Table, terms: Terms) -> None:
    d, (square, k3, series, _) = terms.d, terms.scratch
    table.sum("sum_d", d)
    table.sum("sum_abs_d", terms.absolute)
    np.multiply(d, d, out=square)
    table.sum("sum_d2", square)
    np.subtract(terms.ratio_m1, d, out=k3)
    small = terms.absolute < SERIES
    if small.any():
        np.copyto(k3, _k3_series(d, square, series), where=small)
    table.sum("sum_k3", k3)
    np.multiply(d, terms.ratio_m1, out=square)
    np.subtract(square, k3, out=square)  # ρd − ρ + 1 = d(ρ − 1) − (ρ − 1 − d)
    table.sum("sum_reverse_kl", square)


def _k3_series(d: Floats, square: Floats, out: Floats) -> Floats:
    """``d²(1/2 + d/6 + d²/24)``: relative error d³/60."""
    np.multiply(d, 1 / 24, out=out)
    out += 1 / 6
    out *= d
    out += 0.5
    out *= square
    return out


def _signs(table: Table, d: Floats) -> None:
    table.count("n_positive_d", d > 0)
    table.count("n_negative_d", d < 0)
    columns, rows = table.columns, table.rows
    columns["n_zero_d"][rows] = columns["n"][rows] - columns["n_positive_d"][rows] - columns["n_negative_d"][rows]


def _ratio(table: Table, terms: Terms) -> None:
    scratch = terms.scratch[0]
    table.sum("sum_ratio_m1", terms.ratio_m1)
    table.sum("sum_ratio_m1_sq", np.multiply(terms.ratio_m1, terms.ratio_m1, out=scratch))
    exponent = terms.absolute
    if terms.clamped is not None:
        exponent = np.minimum(exponent, CLAMP, out=scratch)
        table.count("n_clamped", terms.clamped)
    table.sum("sum_exp_abs_d", np.exp(exponent, out=scratch))


def _clipping(table: Table, advantages: NDArray[Any] | None, ratio_m1: Floats, limits: tuple[float, float]) -> None:
    below, above = ratio_m1 < limits[0] - 1.0, ratio_m1 > limits[1] - 1.0
    table.count("n_above", above)
    table.count("n_below", below)
    if advantages is not None:
        table.count("n_advantage", np.isfinite(advantages))
        table.count("n_pg_clipped", (above & (advantages > 0)) | (below & (advantages < 0)))


def _logprobs(table: Table, terms: Terms) -> None:
    behaviour, policy, a = terms.behaviour, terms.policy, terms.scratch[0]
    table.sum("sum_behaviour", behaviour)
    table.sum("sum_policy", policy)
    table.count("n_zero_policy", (policy == 0.0) & (behaviour < -1.0))
    table.sum("sum_behaviour2", np.multiply(behaviour, behaviour, out=a))
    table.sum("sum_policy2", np.multiply(policy, policy, out=a))
    table.sum("sum_policy_behaviour", np.multiply(policy, behaviour, out=a))


def _probabilities(table: Table, terms: Terms) -> None:
    p, difference, q, a = terms.scratch
    np.exp(terms.behaviour, out=p)
    np.multiply(p, terms.ratio_m1, out=difference)  # e^policy − e^behaviour, without cancellation
    if terms.clamped is not None:
        difference[terms.clamped] = np.exp(terms.policy[terms.clamped]) - p[terms.clamped]
    np.add(p, difference, out=q)
    table.sum("sum_abs_prob_diff", np.abs(difference, out=a))
    table.sum("sum_behaviour_prob", p)
    table.sum("sum_policy_prob", q)
    table.sum("sum_behaviour_prob2", np.multiply(p, p, out=a))
    table.sum("sum_policy_prob2", np.multiply(q, q, out=a))
    table.sum("sum_policy_behaviour_prob", np.multiply(p, q, out=a))
