"""Reduction of raw training batches to rows of the `statistics` kind, for raw tokens that are not written.

The rows have about 2 % of the raw bytes and suffice for all metrics. They equal, bit for bit, what ingest computes from
the raw tokens.

The sequences of a sample keep their raw tokens. They are chosen by name. The first eight bytes of the SHA-256 of the
sample id (UTF-8), read as a big-endian whole number h, must lie below ``raw_fraction · 2⁶⁴``. Every process, step and
language therefore chooses the same samples, and a larger fraction contains a smaller one. The content of a sequence has
no influence.

The *worst* sequences of each step also keep their raw tokens, for inspection. Broken tokens rank first, then the
largest Σ K3 of the pair `backend`. They are no fair sample, so statistics over raw tokens should use only the sequences
chosen by name.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import SIDES
from logprobe.collectors.kernel.statistics import DEFAULT_BOUNDS, ZERO_IS_PLACEHOLDER, Statistics, sequence_statistics
from logprobe.collectors.recorder.arrays import Array, offsets_of, segment_sums, text
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.tables import batch_table, column
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.schema import STATISTICS

_HASH_BYTES: Final = 8
_SPACE: Final = 1 << (8 * _HASH_BYTES)
Badness = tuple[int, float]  # broken tokens, Σ K3


@dataclass(frozen=True, slots=True)
class Reduced:
    """Batch as rows of the `statistics` kind, and the statistics [S] of every pair of its call."""

    table: pa.Table
    pairs: dict[str, Statistics]

    def rows(self, keep_S: NDArray[np.bool_]) -> pa.Table:
        """Copy these rows of the table. `Table.filter` would import pyarrow.compute in the recorder's thread."""
        edges = np.flatnonzero(np.diff(keep_S.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()
        slices = [self.table.slice(first, last - first) for first, last in edges]
        return pa.concat_tables(slices or [self.table.slice(0, 0)]).combine_chunks()


def reduce(batch: Batch, rank: int | None) -> Reduced:
    """Reduce one batch to its statistics.

    Raises:
        InputError: a value per sequence does not have its column's type.
    """
    mask = batch.full_mask()
    pairs = {pair: sums for pair in SIDES if (sums := _sums_of_pair(batch, mask, pair)) is not None}
    expected = segment_sums(mask, batch.offsets).astype(np.int64)
    entropy_sum, entropy_n = _finite_sums(batch, "entropy", mask)
    advantage_abs_sum, _ = _finite_sums(batch, "advantages", mask, absolute=True)
    computed = {
        "n_total": column(np.diff(batch.offsets).astype(np.int32), pa.int32()),
        "n_expected": column(expected.astype(np.int32), pa.int32()),
        "advantage_abs_sum": advantage_abs_sum,
        "entropy_sum": entropy_sum,
        "entropy_n": entropy_n,
        "token_hash": column(token_hash(batch.token_ids[mask], offsets_of(expected)), pa.uint64()),
        **{pair: _structs(pair, pairs.get(pair), batch.sequences) for pair in SIDES},
    }
    return Reduced(batch_table("statistics", [batch], rank, computed), pairs)


def _sums_of_pair(batch: Batch, mask: Array, pair: str) -> Statistics | None:
    behaviour, policy = (batch.floats.get(name) for name in SIDES[pair])
    if behaviour is None or policy is None:
        return None
    return sequence_statistics(
        behaviour,
        policy,
        mask,
        batch.offsets,
        bounds=DEFAULT_BOUNDS[pair],
        advantages_N=batch.floats.get("advantages"),
        zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER,
    )


def _structs(pair: str, sums: Statistics | None, sequences: int) -> pa.Array:
    kind = STATISTICS.field(pair).type
    if sums is None:
        return pa.nulls(sequences, kind)
    return pa.StructArray.from_arrays([column(sums[field.name], field.type) for field in kind], fields=list(kind))


def _finite_sums(batch: Batch, name: str, mask: Array, *, absolute: bool = False) -> tuple[pa.Array, pa.Array]:
    """Return the sum and number of finite values under the mask per sequence, or null if the call has none."""
    values = batch.floats.get(name)
    if values is None:
        return pa.nulls(batch.sequences, pa.float64()), pa.nulls(batch.sequences, pa.int32())
    usable = mask & np.isfinite(values)
    wide = np.where(usable, values, 0).astype(np.float64)
    sums = segment_sums(np.abs(wide) if absolute else wide, batch.offsets)
    counts = segment_sums(usable, batch.offsets).astype(np.int32)
    return column(sums, pa.float64()), column(counts, pa.int32())


# --- The sample ---


def sample_hash(sample_id: str) -> int:
    """Return the position of a sample id in [0, 2⁶⁴).

    >>> hex(sample_hash("sample"))
    '0xaf2bdbe1aa9b6ec1'
    """
    return int.from_bytes(hashlib.sha256(sample_id.encode()).digest()[:_HASH_BYTES], "big")


class RawSample:
    """Sampler of one recorder. `worst`: number of sequences of each step that stay raw regardless of their names.

    The worst are chosen among the sequences received so far. At the end, each rank and writer has kept all the worst
    of a step, and some sequences that ranked high temporarily.
    """

    def __init__(self, fraction: float, worst: int) -> None:
        self._below = int(fraction * _SPACE)
        self._worst = worst
        self._step: int | None = None
        self._kept: list[Badness] = []  # a heap: the least bad of the kept is its first

    @property
    def everything(self) -> bool:
        """True when every sequence keeps its raw tokens."""
        return self._below >= _SPACE

    def choose(self, batch: Batch, backend: Statistics) -> NDArray[np.bool_]:
        """Return True for the sequences [S] of a call that keep their raw tokens. `backend` holds their statistics."""
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
