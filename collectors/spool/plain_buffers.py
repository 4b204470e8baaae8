"""Whether an Arrow IPC file has compressed buffers.

Such buffers say themselves how much memory they take once they are read, so a file of a kilobyte could ask for a gigabyte. Collectors do not
compress, and a segment that does is refused before it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_FOOTER_END: Final = 10  # the footer's length and b"ARROW1"
_BLOCK: Final = struct.Struct("<qi4xq")  # of the footer: offset, length of the metadata, length of the body
_CONTINUATION: Final = 0xFFFFFFFF
# Fields of the flatbuffers tables Footer, Message, DictionaryBatch and RecordBatch, in the order of Arrow's File.fbs and Message.fbs.
_FOOTER_DICTIONARIES: Final = 2
_FOOTER_BATCHES: Final = 3
_MESSAGE_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_BATCH_COMPRESSION: Final = 3


def has_compressed(data: bytes) -> bool:
    """Whether a record batch or dictionary that the footer of an IPC file names is compressed.

    Raises `struct.error` when it is no such file.
    """
    (size,) = struct.unpack_from("<i", data, max(len(data) - _FOOTER_END, 0))
    start = len(data) - _FOOTER_END - size
    if not 0 < start < len(data):
        raise struct.error("the footer does not fit into the file")
    footer = start + _unsigned(data, start)
    steps = ((_FOOTER_BATCHES, ()), (_FOOTER_DICTIONARIES, (_DICTIONARY_DATA,)))
    return any(_is_compressed(data, place, inner) for field, inner in steps for place in _blocks(data, footer, field))


def _blocks(data: bytes, footer: int, field: int) -> Iterator[int]:
    """Where the messages of a list of blocks begin."""
    place = _field(data, footer, field)
    if place is None:
        return
    items = place + _unsigned(data, place)
    for number in range(_unsigned(data, items)):
        yield _BLOCK.unpack_from(data, items + 4 + number * _BLOCK.size)[0]


def _is_compressed(data: bytes, message: int, inner: tuple[int, ...]) -> bool:
    if not 0 <= message < len(data):
        raise struct.error("a block lies outside of the file")
    start = message + (8 if _unsigned(data, message) == _CONTINUATION else 4)
    table = start + _unsigned(data, start)
    for field in (_MESSAGE_HEADER, *inner):
        place = _field(data, table, field)
        if place is None:
            return False
        table = place + _unsigned(data, place)
    return _field(data, table, _BATCH_COMPRESSION) is not None


def _unsigned(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table is; None: it has none."""
    layout = table - int(struct.unpack_from("<i", data, table)[0])
    if layout < 0:
        raise struct.error("a table lies outside of the file")
    size = int(struct.unpack_from("<H", data, layout)[0])
    entry = 4 + 2 * number
    offset = int(struct.unpack_from("<H", data, layout + entry)[0]) if entry < size else 0
    return table + offset if offset else None
