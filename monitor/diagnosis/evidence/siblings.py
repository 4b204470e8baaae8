"""Repeated contexts: a control experiment that runs with several answers to a prompt carry with them.

Answers to one prompt often begin with the same tokens. Where they part, two tokens were drawn from one and the same distribution, so
whatever is common to a distribution (the normaliser of a softmax, of a nucleus, of a grammar) cancels in the difference of their
log-probs. With Δ over such siblings:

- two temperatures of the same logits: Δt = β·Δr exactly, however the normalisers differ;
- a truncation, a mask, a padded vocabulary: Δt = Δr exactly;
- logits in bfloat16: Δ is a multiple of a coarse power of two;
- other weights, other caches, noise: none of these.

And where they do not part, the same token was computed twice: any difference is the batch's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.evidence.measures import Floats
from logprobe.monitor.diagnosis.evidence.tokens import Bools, Codes, Tokens

_FEWEST: Final = 20  # tokens with a sibling
_GRID: Final = (
    2.0**-8
)  # bfloat16 numbers above 1/2 in size are multiples of it; logits of a vocabulary are mostly larger
_NEAR: Final = 1e-5  # float32 rounding of a log-prob near −10, several times; of random numbers 2 · 1e-5 / 2^-8 = 0.5 % are as near
_CERTAIN: Final = -1e-3  # tokens nearer to 0 vary too little to tell
_OUTER: Final = 0.99


@dataclass(frozen=True, eq=False)
class Siblings:
    """Tokens that share their context with a different token.

    Attributes:
        tokens: the tokens [K].
        r: their rollout log-probs less the mean of their context's [K].
        t: likewise of the trainer.
    """

    tokens: Tokens
    r: Floats
    t: Floats

    @property
    def slope(self) -> float:
        """β of Δt = β·Δr, by total least squares through 0: neither side is the exact one."""
        rr, tt, rt = float(self.r @ self.r), float(self.t @ self.t), float(self.r @ self.t)
        if rt == 0:
            return math.nan
        return (tt - rr + math.sqrt((tt - rr) ** 2 + 4 * rt * rt)) / (2 * rt)

    def misfit(self, slope: float) -> float:
        """Root mean square of Δt − slope·Δr over that of Δr; the worst 1 % left out: a few tokens of a second fault decide nothing."""
        left, size = np.abs(self.t - slope * self.r), math.sqrt(float(np.mean(self.r**2)))
        kept = np.sort(left)[: max(int(len(left) * _OUTER), 1)]
        return math.sqrt(float(np.mean(kept**2))) / size if size > 0 else math.nan

    def scaled(self, slope: float) -> Tokens:
        """The tokens with what a common normaliser and this slope leave of their log-ratio."""
        return self.tokens.with_d(self.t - slope * self.r)


def siblings_of(tokens: Tokens) -> Siblings | None:
    """Tokens that share their context with a different token; None where there are too few."""
    usable = tokens.repeated
    parent = usable.parent
    repeated = _parting(parent, usable.token_id)
    if repeated.sum() < _FEWEST:
        return None
    some = usable.where(repeated)
    _, index = np.unique(parent[repeated], return_inverse=True)
    return Siblings(some, _centred(some.r, index), _centred(some.t, index))


def on_grid(tokens: Tokens, values_N: Floats, temperatures: Iterable[float]) -> float:
    """Share of siblings whose difference to another one is a difference of bfloat16 logits; NaN where too few have a sibling.

    Args:
        tokens: that the values belong to.
        values_N: log-probs of one side.
        temperatures: that this side's logits may have been divided by; the one with the largest share counts.
    """
    shared = tokens.parent >= 0
    parent, values, ids = tokens.parent[shared], values_N[shared], tokens.token_id[shared]
    order = np.lexsort((values, parent))
    parent, values, ids = parent[order], values[order], ids[order]
    steps = np.diff(values)[(np.diff(parent) == 0) & (np.diff(ids) != 0)]
    if len(steps) < _FEWEST:
        return math.nan
    return max(_grid_share(steps * temperature, max(temperature, 1.0)) for temperature in temperatures)


def _grid_share(steps: Floats, scale: float) -> float:
    return float(np.mean(np.abs(steps - np.round(steps / _GRID) * _GRID) < _NEAR * scale))


@dataclass(frozen=True, slots=True)
class Spread:
    """Root mean square deviation of a token computed several times over that of its log-ratio.

    Attributes:
        engine: of r.
        trainer: of t.
        n: tokens computed more than once.
    """

    engine: float
    trainer: float
    n: int


def spread_of(tokens: Tokens) -> Spread | None:
    """How much r and t vary where nothing else does; None where too few tokens are computed twice."""
    usable = tokens.repeated
    parent, keep = usable.parent, usable.r < _CERTAIN
    code = parent[keep] * (int(usable.token_id.max(initial=0)) + 1) + usable.token_id[keep]
    _, index, counts = np.unique(code, return_inverse=True, return_counts=True)
    twice = counts[index] > 1
    n = int(twice.sum())
    size = math.sqrt(float(np.mean(usable.d[keep][twice] ** 2))) if n >= _FEWEST else 0.0
    if size <= 0:
        return None
    r, t = (math.sqrt(float(np.mean(_centred(side[keep], index)[twice] ** 2))) for side in (usable.r, usable.t))
    return Spread(r / size, t / size, n)


def _parting(parent: Codes, token_id: Codes) -> Bools:
    """Tokens whose context was followed by different tokens [N]."""
    known = np.flatnonzero(parent >= 0)
    result = np.zeros(len(parent), np.bool_)
    if len(known):
        _, index = np.unique(parent[known], return_inverse=True)
        low, high = np.full(index.max() + 1, np.iinfo(np.intp).max), np.full(index.max() + 1, -1)
        np.minimum.at(low, index, token_id[known])
        np.maximum.at(high, index, token_id[known])
        result[known] = (high > low)[index]
    return result


def _centred(values: Floats, index: Codes) -> Floats:
    centred: Floats = values - (np.bincount(index, values) / np.bincount(index))[index]
    return centred
