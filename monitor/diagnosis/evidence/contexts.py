"""Which tokens of a sample share their context: step, weights, prompt, and all tokens before.

Dimensions: ``_N`` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.intp]

DEEPEST: Final = 256  # tokens of an answer that are compared with those of others


@dataclass(frozen=True, eq=False)
class Places:
    """What decides a token's context; arrays [N], see `logprobe.monitor.diagnosis.evidence.tokens.Tokens`."""

    context: Codes
    version: Codes
    step: NDArray[np.int64]
    sequence: Codes
    place: Codes
    token_id: Codes


def contexts(tokens: Places) -> Codes:
    """A code of step, weights, prompt and all tokens before each [N]; −1 where one of these is not at hand, or nobody shares it."""
    codes = np.full(len(tokens.place), -1, np.intp)
    if not len(codes):
        return codes
    current = np.full(int(tokens.sequence.max()) + 1, -1, np.intp)
    width = int(tokens.token_id.max()) + 1
    order = np.argsort(tokens.place, kind="stable")
    begins = np.searchsorted(tokens.place[order], np.arange(min(int(tokens.place.max()), DEEPEST) + 2))
    for place in range(len(begins) - 1):
        at = order[begins[place] : begins[place + 1]]
        parent = _roots(tokens, at) if place == 0 else current[tokens.sequence[at]]
        at, parent = _shared(at[tokens.context[at] >= 0], parent[tokens.context[at] >= 0])
        if not len(at):
            break
        codes[at] = parent + codes.max() + 1
        _, following = np.unique(parent * width + tokens.token_id[at], return_inverse=True)
        current[:] = -1
        current[tokens.sequence[at]] = following
    return codes


def _roots(tokens: Places, at: Codes) -> Codes:
    """A code of what a sequence starts from."""
    keys = np.stack([tokens.context[at], tokens.version[at], tokens.step[at]])
    _, root = np.unique(keys, axis=1, return_inverse=True)
    return root.reshape(-1).astype(np.intp)


def _shared(at: Codes, parent: Codes) -> tuple[Codes, Codes]:
    """Those that are not alone with their parent, which are numbered from 0."""
    at, parent = at[parent >= 0], parent[parent >= 0]
    _, index, counts = np.unique(parent, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    _, number = np.unique(index[several], return_inverse=True)
    return at[several], number.astype(np.intp)
