"""Common prefixes of prompts, which an engine's prefix cache may have held. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def shared_prefixes(prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the longest prefix that each prompt shares with another.

    >>> shared_prefixes([(1, 2, 3), (1, 2, 4), (5, 6)])
    {(1, 2, 3): (1, 2), (1, 2, 4): (1, 2), (5, 6): ()}
    """
    ordered = sorted(set(prompts))  # neighbours have the longest common prefix
    common = [0, *(_in_common(*pair) for pair in itertools.pairwise(ordered)), 0]
    return {prompt: prompt[: max(common[at : at + 2])] for at, prompt in enumerate(ordered)}


def _in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
