"""Which sequences keep their raw tokens when a recorder ships statistics for all others.

A *sample* by name: the first eight bytes of the SHA-256 of the sample id (UTF-8), read as a big-endian whole number h,
lie below ``raw_fraction · 2⁶⁴``. So every process, every step and every language chooses the same samples, a larger
fraction contains a smaller one, and nothing in a sequence decides whether it is looked at.

And the *worst* of each step, because they are what someone will want to see: broken tokens first, then the largest Σ K3
of the pair `backend`. They are no fair sample: statistics over raw tokens should use those chosen by name.
"""

from __future__ import annotations

import hashlib
import heapq
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel.statistics import Statistics
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.labels import text

_HASH_BYTES: Final = 8
_SPACE: Final = 1 << (8 * _HASH_BYTES)
Badness = tuple[int, float]  # broken tokens, Σ K3


def sample_hash(sample_id: str) -> int:
    """Where a sample id lies in [0, 2⁶⁴).

    >>> hex(sample_hash("sample"))
    '0xaf2bdbe1aa9b6ec1'
    """
    return int.from_bytes(hashlib.sha256(sample_id.encode()).digest()[:_HASH_BYTES], "big")


class RawSample:
    """Chooses for one recorder. `worst`: how many sequences of each step are kept whatever their names are.

    The worst are chosen among what the step has brought so far: at the end all the worst of the step have been kept,
    and of each rank and writer its own, together with some that looked bad for a while.
    """

    def __init__(self, fraction: float, worst: int) -> None:
        self._below = int(fraction * _SPACE)
        self._worst = worst
        self._step: int | None = None
        self._kept: list[Badness] = []  # a heap: the least bad of the kept is its first

    @property
    def everything(self) -> bool:
        """Whether every sequence keeps its raw tokens."""
        return self._below >= _SPACE

    def choose(self, batch: Batch, backend: Statistics) -> NDArray[np.bool_]:
        """True for the sequences [S] of a call that keep their raw tokens; `backend` are their statistics."""
        names = (text(name) or "" for name in batch.values["sample_ids"])
        chosen = np.fromiter((sample_hash(name) < self._below for name in names), np.bool_, batch.sequences)
        chosen[self._worst_of(batch.step, backend)] = True
        return chosen

    def _worst_of(self, step: int | None, backend: Statistics) -> list[int]:
        if step != self._step:
            self._step, self._kept = step, []
        broken, k3 = backend["n_expected"] - backend["n"], backend["sum_k3"]
        candidates = np.lexsort((k3, broken))[::-1][: self._worst].tolist()
        return [row for row in candidates if self._is_among_the_worst((int(broken[row]), float(k3[row])))]

    def _is_among_the_worst(self, badness: Badness) -> bool:
        if len(self._kept) < self._worst:
            heapq.heappush(self._kept, badness)
            return True
        return badness > heapq.heappushpop(self._kept, badness)
