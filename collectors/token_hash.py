"""A 64-bit fingerprint of token sequences, vectorised over a flat batch.

Two records of the same sample are the same tokens when their fingerprints agree; it is what the store keeps of the ids
once raw tokens are gone. Not cryptographic: equal sequences agree, different ones collide with probability 2⁻⁶⁴.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers of its finaliser.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def token_hash(token_ids_N: NDArray[np.int32], offsets_S1: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Fingerprint of every sequence ``token_ids_N[offsets_S1[s] : offsets_S1[s + 1]]``.

    A sum over tokens of a mix of (id, position in the sequence), mixed once more with the length: depends on ids, order and
    length, and on nothing around the sequence.

    Args:
        token_ids_N: int32 ids, flat.
        offsets_S1: starts of the sequences and the end of the last; empty sequences are allowed.

    Returns:
        uint64 [S].
    """
    offsets = np.asarray(offsets_S1, dtype=np.int64)
    lengths = np.diff(offsets)
    tokens = np.asarray(token_ids_N[offsets[0] : offsets[-1]], dtype=np.int32).view(np.uint32).astype(np.uint64)
    position = np.arange(len(tokens), dtype=np.int64) - np.repeat(offsets[:-1] - offsets[0], lengths)
    position += 1
    tokens |= position.view(np.uint64) << np.uint64(32)
    sums = np.zeros(len(lengths), dtype=np.uint64)
    filled = lengths > 0  # reduceat repeats a neighbour's value for an empty slice
    if filled.any():
        sums[filled] = np.add.reduceat(_mix(tokens), (offsets[:-1] - offsets[0])[filled], dtype=np.uint64)
    return _mix(sums ^ (lengths.astype(np.uint64) * _GOLDEN))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: every input bit flips every output bit with probability 1/2. Overwrites its argument."""
    values += _GOLDEN
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values
