"""Fields of protobuf messages, without their declarations: number and content, in the order in which they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MORE: Final = 0x80  # set in every byte of a varint but the last
_LONGEST: Final = 70  # bits: 64 in groups of 7


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and contents of a message's fields: an `int` for a varint, `bytes` for everything else.

    Raises `IndexError` when the message ends within a varint, `ValueError` when a varint has no end.
    """
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        length = _FIXED.get(kind)
        if length is None:
            length, place = _varint(content, place)
        yield key >> 3, content[place : place + length]
        place += length


def signed(value: int) -> int:
    """A varint as the `int64` that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & ~_MORE) << shift
        place, shift = place + 1, shift + 7
        if byte < _MORE:
            return value, place
        if shift >= _LONGEST:
            raise ValueError("a number of more than 10 bytes")
