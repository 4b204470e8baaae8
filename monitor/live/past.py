"""In-memory index of the stored records of a run. It tells which of them new records may concern.

Steps are read back by number, and rollout records by name; see `recall`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.live.rows import NONE


class Names:
    """Index of steps by name, with 16 bytes per entry. A hash collision only costs an extra read."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.int64)
        self._steps = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, names: Sequence[str], steps: Sequence[int] | NDArray[np.int64]) -> None:
        """Add names, each with its step."""
        if not len(names):
            return
        hashes = np.concatenate([self._hashes, _hashes(names)])
        places = np.concatenate([self._steps, np.asarray(steps, np.int64)])
        order = np.lexsort((places, hashes))
        hashes, places = hashes[order], places[order]
        new = np.ones(len(hashes), np.bool_)
        new[1:] = (hashes[1:] != hashes[:-1]) | (places[1:] != places[:-1])
        self._hashes, self._steps = hashes[new], places[new]

    def has(self, names: Iterable[str]) -> list[str]:
        """Return the given names that the index contains."""
        some = list(names)
        if not len(self._hashes) or not some:
            return []
        first, end = self._range(some)
        return [name for name, is_here in zip(some, (first < end).tolist(), strict=True) if is_here]

    def steps(self, names: Iterable[str]) -> set[int]:
        """Return the steps of the given names."""
        some = list(names)
        if not len(self._hashes) or not some:
            return set()
        first, end = self._range(some)
        return {
            step
            for start, stop in zip(first.tolist(), end.tolist(), strict=True)
            if start < stop
            for step in self._steps[start:stop].tolist()
        }

    def _range(self, names: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        hashes = _hashes(names)
        return np.searchsorted(self._hashes, hashes, "left"), np.searchsorted(self._hashes, hashes, "right")


def _hashes(names: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, names), np.int64, len(names))


@dataclass(frozen=True, slots=True)
class PastStep:
    """A step whose records are only in the store.

    `begun`: time of the oldest record that no later attempt replaced. `newest`: time of the newest of all records.
    """

    begun: int
    newest: int
    met: bool
    by_tokens: bool


@dataclass(eq=False)
class Past:
    """Records of a run that are only in the store."""

    steps: dict[int, PastStep] = field(default_factory=dict)
    trained: Names = field(default_factory=Names)  # names of training records and of their parts
    sampled: Names = field(default_factory=Names)  # names of rollout records and of trajectories; no steps
    labels: dict[str, set[int]] = field(default_factory=dict)  # version → steps that it matters to
    last: int = NONE  # when the last step of a rollout record began that says so, on its machine's clock
    wall: int = NONE  # and on the wall clock

    def __len__(self) -> int:
        """Return the number of known names."""
        return len(self.trained) + len(self.sampled)

    def reached(self, moment: int, wall: int) -> bool:
        """Return whether rollout records had not ended when a mark was made, by either clock."""
        return self.last >= moment or self.wall >= wall

    def since(self, step: int | None, time: int) -> set[int]:
        """Return the steps from one on with records no older than `time`."""
        return {n for n, past in self.steps.items() if step is not None and n >= step and past.newest >= time}

    def label(self, step: int, labels: Iterable[str]) -> None:
        """Record the versions that a step depends on."""
        for label in labels:
            self.labels.setdefault(label, set()).add(step)

    def first_met(self) -> int | None:
        """Return the first step in which names of both sides matched."""
        return min((n for n, past in self.steps.items() if past.met), default=None)
