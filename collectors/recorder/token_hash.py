"""64-bit fingerprint of token sequences, vectorised over a flat batch.

Two records of a sample have the same tokens if their fingerprints agree. The store keeps the fingerprint after it
deletes raw tokens. It is not cryptographic. Different sequences collide with probability 2⁻⁶⁴.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.recorder import arrays

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers of its finaliser; of its 64-bit words as
# signed whole numbers: sums and products wrap around just the same.
_GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND: Final = 0x94D049BB133111EB - (1 << 64)
_CHUNK: Final = 32_768  # tokens hashed at a time: in the processor's cache, and in memory that is not asked for again


def token_hash(token_ids_N: NDArray[np.integer], offsets_S1: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the fingerprint of every sequence ``token_ids_N[offsets_S1[s] : offsets_S1[s + 1]]``.

    The fingerprint is a sum over tokens of a mix of (id, position in the sequence), mixed again with the length. It
    depends on ids, order and length, and on no neighbouring sequence.

    Args:
        token_ids_N: int32 ids, flat.
        offsets_S1: starts of the sequences and the end of the last. Empty sequences are allowed.

    Returns:
        uint64 [S].
    """
    offsets = np.asarray(offsets_S1, dtype=np.int64)
    lengths = np.diff(offsets)
    sums = np.empty(len(lengths), np.int64)
    first = 0
    while first < len(lengths):
        last = max(int(np.searchsorted(offsets, offsets[first] + _CHUNK, side="right")) - 1, first + 1)
        sums[first:last] = _sums(token_ids_N, offsets[first : last + 1])
        first = last
    return mix(sums ^ (lengths * _GOLDEN)).view(np.uint64)


def _sums(token_ids_N: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of mixed ids and positions of each given sequence."""
    start, end = int(offsets[0]), int(offsets[-1])
    position = np.arange(1, end - start + 1) - np.repeat(offsets[:-1] - start, np.diff(offsets))
    position <<= 32
    position |= np.asarray(token_ids_N[start:end], dtype=np.int32).view(np.uint32)
    return arrays.segment_sums(mix(position), offsets - start, np.int64)


def mix(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return SplitMix64 of int64, where every input bit flips every output bit with probability 1/2.

    Overwrite the argument.
    """
    values += _GOLDEN
    values ^= (values >> 30) & ((1 << 34) - 1)  # a shift that brings in zeros, not copies of the sign
    values *= _FIRST
    values ^= (values >> 27) & ((1 << 37) - 1)
    values *= _SECOND
    values ^= (values >> 31) & ((1 << 33) - 1)
    return values
