"""Weight versions that a trainer states for its tokens, converted to spans of the wire contract.

A framework knows a label per sequence, a number or label per token, or spans. Each becomes a code per token (−1:
unknown), and runs of equal codes become spans. The conversion runs in the recorder's thread.

Dimensions: ``_N`` flat tokens, ``_K`` those of one sequence under the mask, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder.arrays import text

Span: TypeAlias = tuple[int, int, int, int, str]  # start, end, the same under the mask, version
Codes: TypeAlias = NDArray[np.int64]
_UNKNOWN: Final = -1
_SPAN_FIELDS: Final = 3  # start, end, version
_EXACT: Final = 1 << 53  # whole numbers that a float64 can hold


def from_numbers(numbers_N: NDArray[Any], offsets_S1: NDArray[np.int64], mask_N: NDArray[np.bool_]) -> list[Any]:
    """Return spans per sequence from a version number per token, or None if no version is known.

    A negative number or NaN is an unknown version.

    >>> from_numbers(np.array([3, 3, -1, 4]), np.array([0, 4]), np.array([True, True, False, True]))
    [[(0, 2, 0, 2, '3'), (3, 4, 2, 3, '4')]]

    Raises:
        InputError: the numbers are not whole.
    """
    if numbers_N.dtype.kind not in "iuf":
        raise InputError(f"rollout_versions: {numbers_N.dtype} is not a number; pass version numbers")
    known_N = numbers_N >= 0
    numbers = np.where(known_N, numbers_N, 0)
    if numbers.dtype.kind == "f" and ((numbers != np.floor(numbers)) | (numbers > _EXACT)).any():
        raise InputError("rollout_versions: a version is not a whole number; pass whole numbers")
    codes_N = np.where(known_N, numbers.astype(np.int64), _UNKNOWN)
    return _spans(codes_N, offsets_S1, mask_N, None)


def from_labels(given_S: Sequence[Any], offsets_S1: NDArray[np.int64], mask_N: NDArray[np.bool_]) -> list[Any]:
    """Return spans per sequence from None, a label, a label per token, or ``(start, end, version)`` spans for each.

    Spans count the tokens under the mask. Labels per token exist for all tokens, or for those under the mask.

    >>> from_labels([[(0, 1, "a"), (1, 2, "b")]], np.array([0, 3]), np.array([True, False, True]))
    [[(0, 1, 0, 1, 'a'), (2, 3, 1, 2, 'b')]]

    Raises:
        InputError: labels or spans do not fit the tokens.
    """
    names: dict[str, int] = {}
    codes_N = np.full(len(mask_N), _UNKNOWN, np.int64)
    for number, given in enumerate(given_S):
        window = slice(offsets_S1[number], offsets_S1[number + 1])
        _fill(codes_N[window], given, mask_N[window], names, number)
    return _spans(codes_N, offsets_S1, mask_N, list(names))


def _fill(codes: Codes, given: Any, mask: NDArray[np.bool_], names: dict[str, int], number: int) -> None:
    """Write the codes of one sequence."""
    if not isinstance(given, list):
        codes[:] = _code(given, names)
        return
    sampled = int(mask.sum())
    if len(given) > 0 and all(isinstance(item, list | tuple) for item in given):
        codes[mask] = _codes_of_spans(given, sampled, names, number)
        return
    codes_given = np.array([_code(item, names) for item in given], np.int64)
    if len(codes_given) == len(codes):
        codes[:] = codes_given
    elif len(codes_given) == sampled:
        codes[mask] = codes_given
    else:
        raise InputError(
            f"rollout_versions[{number}]: {len(codes_given)} versions for {len(codes)} tokens, {sampled} under the mask; "
            "pass one per token"
        )


def _codes_of_spans(given: list[Any], sampled: int, names: dict[str, int], number: int) -> Codes:
    codes_K = np.full(sampled, _UNKNOWN, np.int64)
    for span in given:
        if len(span) != _SPAN_FIELDS:
            raise InputError(f"rollout_versions[{number}]: {span!r} is not a span; pass (start, end, version)")
        start, end = int(span[0]), int(span[1])
        if not 0 <= start <= end <= sampled:
            raise InputError(
                f"rollout_versions[{number}]: span [{start}, {end}) lies outside the {sampled} tokens under the mask; "
                "pass a span within them"
            )
        codes_K[start:end] = _code(span[2], names)
    return codes_K


def _code(label: Any, names: dict[str, int]) -> int:
    """Return the number of a label, or unknown for None, NaN and negative numbers."""
    name = text(label)
    if name is None or name in {"", "nan"} or (name.startswith("-") and not isinstance(label, str)):
        return _UNKNOWN
    return names.setdefault(name, len(names))


def _spans(
    codes_N: Codes, offsets_S1: NDArray[np.int64], mask_N: NDArray[np.bool_], names: list[str] | None
) -> list[Any]:
    """Return runs of equal codes within each sequence. Without `names`, a code is the label."""
    sampled_N1 = np.concatenate([[0], np.cumsum(mask_N)])
    changes = np.flatnonzero(codes_N[1:] != codes_N[:-1]) + 1
    starts = np.unique(np.concatenate([offsets_S1[:-1], changes]).astype(np.int64))
    starts = starts[starts < len(codes_N)]
    ends = np.append(starts[1:], len(codes_N))
    sequences = np.searchsorted(offsets_S1, starts, side="right") - 1
    by_sequence: list[list[Span]] = [[] for _ in range(len(offsets_S1) - 1)]
    for sequence, start, end, code in zip(
        sequences.tolist(), starts.tolist(), ends.tolist(), codes_N[starts].tolist(), strict=True
    ):
        if code != _UNKNOWN:
            first = int(offsets_S1[sequence])
            before = int(sampled_N1[first])
            places = (start - first, end - first, int(sampled_N1[start]) - before, int(sampled_N1[end]) - before)
            by_sequence[sequence].append((*places, str(code) if names is None else names[code]))
    return [spans or None for spans in by_sequence]
