"""Arithmetic of the sufficient statistics: one run of tokens at a time, of numpy arrays or of torch tensors.

A chunk is a few thousand tokens of one pair, converted to float64 once and passed over while it lies in the processor's
cache; per-array passes over the whole batch are ten times slower. Chunks consist of *pieces*, sequences or parts
of long ones, and every column gets one value per piece; `statistics` merges pieces into sequences.

numpy and torch call the elementary functions by the same names and both write into an `out` that is given to them, so the
formulas stand here once. What the two do differently, sums over pieces above all, is behind `Table` and `Workspace`:
`kernel_numpy` and `kernel_torch`.

Dimensions: ``_K`` tokens of a chunk, ``_P`` pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

CHUNK: Final = 65_536  # nine float64 arrays of 512 KiB: large enough for threads not to queue for the GIL, still cached
CLAMP: Final = 20.0  # |d| inside the exponential; e^20 is 4.9e8
# HTTP servers write −9999 for −inf and NaN, and bfloat16 makes −9984 of it; nothing below that is a measured log-probability.
SENTINEL: Final = -9984.0
MAX_LOGPROB: Final = 1e-6  # rounding may lift a certain token's log-probability this far above 0
SERIES: Final = 1e-4  # below this |d|, expm1(d) − d has lost the digits that its series still has

Floats: TypeAlias = Any  # float64, numpy or torch
Bools: TypeAlias = Any
Values: TypeAlias = Any  # of any number type


class Table(Protocol):
    """Columns being filled, one value per piece of the chunk at hand."""

    def sum(self, name: str, values_K: Floats) -> None:
        """Σ over each piece."""

    def count(self, name: str, hits_K: Bools) -> None:
        """Number of hits in each piece."""

    def extremes(self, values_K: Floats) -> None:
        """`min_d` and `max_d` of each piece."""

    def lengths(self, name: str, total: int) -> None:
        """Number of tokens of each piece, when the chunk has `total`."""

    def rest(self, name: str, whole: str, *parts: str) -> None:
        """What of the column `whole` is in none of the `parts`."""

    def keep(self, keep_K: Bools) -> None:
        """From now on the chunk consists of these of its tokens only."""


class Workspace(Protocol):
    """Scratch arrays of one thread, reused from chunk to chunk."""

    @property
    def xp(self) -> Any:
        """Of numpy or of torch, whichever the arrays belong to."""

    def rows(self, size: int) -> list[Floats]:
        """Nine float64 arrays [size]."""

    def overwrite(self, target: Floats, values: Floats, where: Bools) -> None:
        """Write `values` into `target` where `where` is true."""


@dataclass(slots=True)
class Tokens:
    """The tokens of a chunk: log-probabilities and, where there are any, advantages and mask [K]."""

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


def zero_of_unlikely(behaviour: Any, policy: Any) -> Any:
    """Where `policy` gives certainty to a token that was far from certain: a placeholder, or a probability rounded to 1."""
    return (policy == 0.0) & (behaviour < -1.0)


def accumulate(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    """Fill every column of the chunk's pieces; `limits` are the bounds of ρ."""
    if tokens.mask is not None and not tokens.mask.all():
        table.keep(tokens.mask)
        tokens = tokens[tokens.mask]
    if not len(tokens):
        return
    table.lengths("n_expected", len(tokens))
    behaviour, policy, d = work.rows(len(tokens))[:3]
    _load(tokens, behaviour, policy, d, work)
    if not _is_clean(behaviour, policy, d):
        good = ~_count_broken(table, behaviour, policy, work.xp)
        table.keep(good)
        tokens = tokens[good]
        if not len(tokens):
            return
        behaviour, policy, d = work.rows(len(tokens))[:3]
        _load(tokens, behaviour, policy, d, work)
    table.lengths("n", len(tokens))
    _accumulate_valid(table, tokens, limits, work)


def _load(tokens: Tokens, behaviour: Floats, policy: Floats, d: Floats, work: Workspace) -> None:
    behaviour[:] = tokens.behaviour
    policy[:] = tokens.policy
    work.xp.subtract(policy, behaviour, out=d)


def _is_clean(behaviour: Floats, policy: Floats, d: Floats) -> bool:
    """Whether no token can be broken; NaN anywhere makes a comparison false."""
    lowest, ceiling = float(d.min()), float(behaviour.max())
    in_range = min(float(behaviour.min()), float(policy.min())) > SENTINEL
    in_range = in_range and max(ceiling, float(policy.max())) <= MAX_LOGPROB
    return in_range and math.isfinite(float(d.max()) - lowest) and (ceiling < 0 or lowest >= -1)


def _count_broken(table: Table, behaviour: Floats, policy: Floats, xp: Any) -> Bools:
    """Count broken tokens by kind, each under the first kind that applies; → which are broken."""
    kinds = {
        "n_nonfinite_behaviour": ~xp.isfinite(behaviour),
        "n_nonfinite_policy": ~xp.isfinite(policy),
        "n_sentinel_behaviour": (behaviour <= SENTINEL) | (behaviour == 1.0),
        "n_sentinel_policy": (policy <= SENTINEL) | (policy == 1.0),
        "n_positive_behaviour": behaviour > MAX_LOGPROB,
        "n_positive_policy": policy > MAX_LOGPROB,
        "n_zero_behaviour": (behaviour == 0.0) & (policy < -1.0),
    }
    broken = xp.zeros_like(kinds["n_nonfinite_behaviour"])
    for name, hits in kinds.items():
        table.count(name, hits & ~broken)
        broken |= hits
    return broken


def _accumulate_valid(table: Table, tokens: Tokens, limits: tuple[float, float], work: Workspace) -> None:
    behaviour, policy, d, absolute, ratio_m1, *scratch = work.rows(len(tokens))
    terms = Terms(behaviour, policy, d, absolute, ratio_m1, (scratch[0], scratch[1], scratch[2], scratch[3]))
    _prepare(terms, work.xp)
    table.extremes(d)
    _log_ratio(table, terms, work)
    _signs(table, d)
    _ratio(table, terms, work.xp)
    _clipping(table, tokens.advantages, ratio_m1, limits, work.xp)
    _logprobs(table, terms, work.xp)
    _probabilities(table, terms, work.xp)


def _prepare(terms: Terms, xp: Any) -> None:
    xp.abs(terms.d, out=terms.absolute)
    if float(terms.absolute.max()) > CLAMP:
        terms.clamped = terms.absolute > CLAMP
        xp.expm1(xp.clip(terms.d, -CLAMP, CLAMP, out=terms.ratio_m1), out=terms.ratio_m1)
    else:
        xp.expm1(terms.d, out=terms.ratio_m1)


def _log_ratio(table: Table, terms: Terms, work: Workspace) -> None:
    xp, d, (square, k3, series, _) = work.xp, terms.d, terms.scratch
    table.sum("sum_d", d)
    table.sum("sum_abs_d", terms.absolute)
    xp.multiply(d, d, out=square)
    table.sum("sum_d2", square)
    xp.subtract(terms.ratio_m1, d, out=k3)
    small = terms.absolute < SERIES
    if small.any():
        work.overwrite(k3, _k3_series(d, square, series, xp), where=small)
    table.sum("sum_k3", k3)
    xp.multiply(d, terms.ratio_m1, out=square)
    xp.subtract(square, k3, out=square)  # ρd − ρ + 1 = d(ρ − 1) − (ρ − 1 − d)
    table.sum("sum_reverse_kl", square)


def _k3_series(d: Floats, square: Floats, out: Floats, xp: Any) -> Floats:
    """``d²(1/2 + d/6 + d²/24)``: relative error d³/60."""
    xp.multiply(d, 1 / 24, out=out)
    out += 1 / 6
    out *= d
    out += 0.5
    out *= square
    return out


def _signs(table: Table, d: Floats) -> None:
    table.count("n_positive_d", d > 0)
    table.count("n_negative_d", d < 0)
    table.rest("n_zero_d", "n", "n_positive_d", "n_negative_d")


def _ratio(table: Table, terms: Terms, xp: Any) -> None:
    scratch = terms.scratch[0]
    table.sum("sum_ratio_m1", terms.ratio_m1)
    table.sum("sum_ratio_m1_sq", xp.multiply(terms.ratio_m1, terms.ratio_m1, out=scratch))
    exponent = terms.absolute
    if terms.clamped is not None:
        exponent = xp.clip(exponent, 0.0, CLAMP, out=scratch)
        table.count("n_clamped", terms.clamped)
    table.sum("sum_exp_abs_d", xp.exp(exponent, out=scratch))


def _clipping(table: Table, advantages: Values | None, ratio_m1: Floats, limits: tuple[float, float], xp: Any) -> None:
    below, above = ratio_m1 < limits[0] - 1.0, ratio_m1 > limits[1] - 1.0
    table.count("n_above", above)
    table.count("n_below", below)
    if advantages is not None:
        table.count("n_advantage", xp.isfinite(advantages))
        table.count("n_pg_clipped", (above & (advantages > 0)) | (below & (advantages < 0)))


def _logprobs(table: Table, terms: Terms, xp: Any) -> None:
    behaviour, policy, a = terms.behaviour, terms.policy, terms.scratch[0]
    table.sum("sum_behaviour", behaviour)
    table.sum("sum_policy", policy)
    table.count("n_zero_policy", zero_of_unlikely(behaviour, policy))
    table.sum("sum_behaviour2", xp.multiply(behaviour, behaviour, out=a))
    table.sum("sum_policy2", xp.multiply(policy, policy, out=a))
    table.sum("sum_policy_behaviour", xp.multiply(policy, behaviour, out=a))


def _probabilities(table: Table, terms: Terms, xp: Any) -> None:
    p, difference, q, a = terms.scratch
    xp.exp(terms.behaviour, out=p)
    xp.multiply(p, terms.ratio_m1, out=difference)  # e^policy − e^behaviour, without cancellation
    if terms.clamped is not None:
        difference[terms.clamped] = xp.exp(terms.policy[terms.clamped]) - p[terms.clamped]
    xp.add(p, difference, out=q)
    table.sum("sum_abs_prob_diff", xp.abs(difference, out=a))
    table.sum("sum_behaviour_prob", p)
    table.sum("sum_policy_prob", q)
    table.sum("sum_behaviour_prob2", xp.multiply(p, p, out=a))
    table.sum("sum_policy_prob2", xp.multiply(q, q, out=a))
    table.sum("sum_policy_behaviour_prob", xp.multiply(p, q, out=a))
