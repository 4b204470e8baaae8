"""What the live probe recorded of a run: how far the running engine is from what it reported, by step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

_RECENT: Final = 5  # looks: how it is now


@dataclass(frozen=True, slots=True)
class Probed:
    """One look; K3 of sequences with cached prompt tokens and of those without, None: there were none."""

    step: int
    k3: float
    tokens: float
    cached_k3: float | None = None
    uncached_k3: float | None = None


@dataclass(frozen=True, slots=True)
class Probes:
    """All looks, oldest first. `silence`: why the last one has no result; None: it has, or nothing is probed."""

    looks: tuple[Probed, ...] = ()
    silence: str | None = None

    def bad(self, limit: float) -> tuple[Probed, ...]:
        """The newest looks in a row whose K3 exceeds `limit`, at most five.

        >>> [look.step for look in Probes((Probed(1, 0.2, 9), Probed(2, 0.0, 9), Probed(3, 0.2, 9))).bad(0.1)]
        [3]
        """
        looks: list[Probed] = []
        for look in reversed(self.looks[-_RECENT:]):
            if not look.k3 > limit:
                break
            looks.insert(0, look)
        return tuple(looks)


def middle(values: list[float | None]) -> float | None:
    """Median of what is known."""
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
