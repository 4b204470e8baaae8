"""Conversion of batches in memory to one flat form.

The layouts are padded [batch, time], packed [tokens] with `cu_seqlens`, and a list of 1-D arrays, as numpy arrays,
torch tensors or lists.

Two other modules read these layouts differently. A recorder copies first and converts later in another thread
(`recorder.batches`). A correction keeps tensors on their device and returns their layout (`correction.batch`).

Dimensions: ``_N`` flat tokens, ``_S`` sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays

_PADDED: Final = 2  # dimensions of a padded batch


@dataclass(frozen=True)
class Ragged:
    """Values [N] of sequences with lengths [S], −1 for a sequence without values."""

    values: NDArray[np.generic]
    lengths: NDArray[np.int64]

    def of(self, keep_S: NDArray[np.bool_]) -> NDArray[np.generic]:
        """Return the values of some of the sequences."""
        return self.values if keep_S.all() else self.values[np.repeat(keep_S, np.maximum(self.lengths, 0))]

    def padded(self, time: int) -> NDArray[np.float64]:
        """Return [S, time] with the values of each sequence at the beginning of its row, followed by 0."""
        padded = np.zeros((len(self.lengths), time))
        padded[np.arange(time) < self.lengths[:, None]] = self.values
        return padded


def flattened(name: str, value: Any, cu_seqlens: Any = None) -> Ragged:
    """Return flat values and lengths of any of the three layouts. Raises `InputError`, which begins with `name`."""
    if _is_list_of_sequences(value, cu_seqlens):
        return _from_list(name, value)
    array = arrays.numbers_on_host(name, value)
    if array.ndim == _PADDED and cu_seqlens is not None:
        raise InputError(f"{name}: cu_seqlens does not apply to shape {array.shape}; leave it out")
    if array.ndim == _PADDED:
        return Ragged(array.reshape(-1), np.full(len(array), array.shape[1], np.int64))
    if array.ndim != 1:
        raise InputError(
            f"{name}: shape {array.shape} is unknown; pass [batch, time], packed [tokens] or a list of 1-D arrays"
        )
    if cu_seqlens is None:
        return Ragged(array, np.array([len(array)], np.int64))
    offsets = arrays.checked_offsets(arrays.numbers_on_host("cu_seqlens", cu_seqlens), len(array))
    return Ragged(array[offsets[0] : offsets[-1]], np.diff(offsets))


def per_token(name: str, value: Any, lengths: NDArray[np.int64], cu_seqlens: Any = None) -> Ragged:
    """Return the values per token. Repeat one value per sequence over its tokens. Raises `InputError` for other
    lengths.
    """
    if not arrays.is_ragged(value):
        piece = arrays.numbers_on_host(name, value)
        if piece.ndim == 1 and len(piece) == len(lengths):
            return Ragged(np.repeat(piece, lengths), lengths)
    values = flattened(name, value, cu_seqlens)
    require_lengths(name, values, lengths)
    return values


def mask_of(mask: Any, lengths: NDArray[np.int64], cu_seqlens: Any = None) -> Ragged:
    """Return a mask as booleans, true for non-zero values, or all true without one. Raises `InputError` for NaN or
    other lengths."""
    if mask is None:
        return Ragged(np.ones(int(lengths.sum()), np.bool_), lengths)
    given = flattened("mask", mask, cu_seqlens)
    require_lengths("mask", given, lengths)
    if given.values.dtype.kind == "f" and np.isnan(given.values).any():
        raise InputError("mask contains NaN; use 0 or 1")
    return Ragged(given.values != 0, lengths)


def require_lengths(name: str, value: Ragged, lengths: NDArray[np.int64]) -> None:
    """Raise `InputError` unless the sequences have these lengths."""
    if not np.array_equal(value.lengths, lengths):
        raise InputError(
            f"{name}: sequences have {value.lengths.tolist()[:8]}… tokens, not {lengths.tolist()[:8]}…; pass equal lengths"
        )


def _is_list_of_sequences(value: Any, cu_seqlens: Any) -> bool:
    if not arrays.is_list(value):
        return False
    empty = not len(value) and cu_seqlens is None  # no sequence, rather than one without tokens
    return empty or arrays.is_ragged(value) or any(item is None for item in value)


def _from_list(name: str, value: Sequence[Any]) -> Ragged:
    pieces = [None if item is None else arrays.numbers_on_host(name, item) for item in value]
    if any(piece is not None and piece.ndim != 1 for piece in pieces):
        raise InputError(f"{name}: an item of the list is not 1-D; pass 1-D arrays")
    present = [piece for piece in pieces if piece is not None]
    lengths = np.array([-1 if piece is None else len(piece) for piece in pieces], np.int64)
    return Ragged(np.concatenate(present) if present else np.empty(0), lengths)
