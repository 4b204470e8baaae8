"""Scalars of TensorBoard event files, without TensorBoard: its loader (2.21) ends at a damaged record as at one that is
still being written, and says neither; every record after it would be lost without a word.

The file is a sequence of records, each a length, its masked CRC-32C, the content and its masked CRC-32C; the content is
a protobuf ``Event`` with wall time (1), step (2) and summary (5), which holds values (1) with a tag (1) and a simple
value (2) or a tensor (8). Sources: TensorFlow's record_writer.h, event.proto, summary.proto and tensor.proto.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from logprobe.monitor import limits
from logprobe.monitor.importers.protobuf import fields
from logprobe.monitor.importers.rows import Row, scalars
from logprobe.monitor.importers.source import Place, Unit

_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_TENSOR_FLOATS: Final = {1: ("<f", 4, 5), 2: ("<d", 8, 6)}  # DT_FLOAT, DT_DOUBLE: format, size, field of the values


def records(path: Path) -> Iterator[Unit]:
    """A unit per record. A last one cut short is still being written; after a damaged length nothing can be found any
    more."""
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:  # noqa: PLR2004 - length and its checksum
            start = file.tell()
            (length,) = struct.unpack("<Q", head[:8])
            if masked_crc(head[:8]) != struct.unpack("<I", head[8:])[0]:
                yield Unit(head, error="the length of a record is damaged; the rest cannot be read")
                return
            if length > limits.IMPORT_UNIT.value:
                if file.seek(0, io.SEEK_END) < (end := start + length + 4):
                    return
                yield Unit(head, error=str(limits.IMPORT_UNIT.exceeded(f"a record of {length:,} bytes")))
                file.seek(end)
                continue
            content, check = file.read(length), file.read(4)
            if len(check) < 4:  # noqa: PLR2004
                return
            good = masked_crc(content) == struct.unpack("<I", check)[0]
            yield Unit(content, content, None if good else "a record is damaged (checksum)")


def event(value: bytes, place: Place) -> Iterable[Row]:
    """The scalars of one event; an event without any (a header, a histogram, a picture) gives nothing."""
    del place
    step, time = 0, None
    values: dict[str, float] = {}
    for number, content in fields(value):
        if number == 1:
            (time,) = struct.unpack("<d", content)
        elif number == 2:  # noqa: PLR2004 - numbers of event.proto
            step = content
        elif number == 5:  # noqa: PLR2004
            values |= dict(_summary(content))
    if values:
        yield scalars(step, values, time)


def _summary(content: bytes) -> Iterator[tuple[str, float]]:
    for number, value in fields(content):
        if number == 1:
            parts = dict(fields(value))
            tag = parts.get(1, b"").decode(errors="replace")
            if 2 in parts:  # noqa: PLR2004 - numbers of summary.proto
                yield tag, struct.unpack("<f", parts[2])[0]
            elif 8 in parts and (scalar := _tensor(parts[8])) is not None:  # noqa: PLR2004
                yield tag, scalar


def _tensor(content: bytes) -> float | None:
    """The value of a tensor with one float; None: of another kind or size."""
    parts = dict(fields(content))
    if parts.get(1) not in _TENSOR_FLOATS:
        return None
    form, size, values = _TENSOR_FLOATS[parts[1]]
    data = parts.get(4) or parts.get(values, b"")  # tensor_content, or packed values
    return float(struct.unpack(form, data)[0]) if isinstance(data, bytes) and len(data) == size else None


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TensorFlow's records have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE: Final = tuple(_entry(value) for value in range(256))
