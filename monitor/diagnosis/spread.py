"""What two computations of the same tokens differ by: repeated contexts are a control experiment that every run carries with it.

Several answers to one prompt often begin with the same tokens. Same weights, same prompt, same tokens: both sides' log-probs should be
the same, bit for bit or to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.measures import Floats
from logprobe.monitor.diagnosis.tokens import Bools, Codes, Tokens

_FEWEST: Final = 30  # repeated tokens
_DEEPEST: Final = 64  # tokens of an answer that are compared with those of others
_SURE: Final = -1e-3  # tokens that are nearly certain vary too little to tell


@dataclass(frozen=True, slots=True)
class Spread:
    """Root mean square deviation within repeated contexts over that of the whole log-ratio.

    Attributes:
        engine: of r.
        trainer: of t.
        n: tokens in repeated contexts.
    """

    engine: float
    trainer: float
    n: int

    @property
    def both(self) -> float:
        """The smaller of the two."""
        return min(self.engine, self.trainer)


def spread_of(tokens: Tokens) -> Spread | None:
    """How much r and t vary where nothing else does; None where too few contexts are repeated."""
    usable = tokens.where((tokens.context >= 0) & (tokens.place < _DEEPEST))
    if not len(usable):
        return None
    context = _contexts(usable)
    known, varied = context >= 0, usable.r < _SURE
    repeated = known & varied
    _, index, counts = np.unique(context[repeated], return_inverse=True, return_counts=True)
    some = counts[index] > 1
    n = int(some.sum())
    size = math.sqrt(float(np.mean(usable.d[repeated][some] ** 2))) if n >= _FEWEST else 0.0
    if size <= 0:
        return None
    r, t = (_within(values[repeated], index, counts, some) for values in (usable.r, usable.t))
    return Spread(r / size, t / size, n)


def _contexts(tokens: Tokens) -> Codes:
    """A code of step, weights, prompt and all tokens up to and including each [N]; −1 where one before it is not at hand."""
    codes = np.full(len(tokens), -1, np.intp)
    seed = np.stack([tokens.context, tokens.version, tokens.step], axis=1)
    before: dict[int, int] = {}
    for place in range(int(tokens.place.max()) + 1):
        at = np.flatnonzero(tokens.place == place)
        if place:
            parents = np.array([before.get(sequence, -1) for sequence in tokens.sequence[at].tolist()])
            at, parents = at[parents >= 0], parents[parents >= 0]
            keys = np.stack([parents, tokens.token_id[at]], axis=1)
        else:
            keys = np.column_stack([seed[at], tokens.token_id[at]])
        if not len(at):
            break
        _, codes_at = np.unique(keys, axis=0, return_inverse=True)
        codes[at] = codes_at.reshape(-1) + codes.max() + 1
        before = dict(zip(tokens.sequence[at].tolist(), codes[at].tolist(), strict=True))
    return codes


def _within(values: Floats, index: Codes, counts: Codes, some: Bools) -> float:
    """Unbiased root mean square deviation from the mean of each context."""
    means = np.bincount(index, values) / counts
    squares = ((values - means[index]) ** 2)[some].sum()
    freedom = int(some.sum()) - len(np.unique(index[some]))
    return math.sqrt(float(squares) / freedom) if freedom > 0 else 0.0
