"""The first layer that drifts, from the relative errors of hidden states. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LEAST: Final = 1e-5  # float32 rounding stays below
_JUMPS: Final = 4.0  # times what the layers before it have


def jumps(layers: Sequence[tuple[str, float]]) -> list[str]:
    """Layers at which the relative error grows by more than rounding does, the first of them first.

    >>> jumps([("embedding", 0.0), ("layer 0", 2e-7), ("layer 1", 3e-3), ("layer 2", 4e-3)])
    ['layer 1']
    """
    found, before = [], 0.0
    for name, error in layers:
        if error > _LEAST and error > _JUMPS * before:
            found.append(name)
        before = max(before, error)
    return found
