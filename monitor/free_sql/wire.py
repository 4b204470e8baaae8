"""Frames between the service and a worker of free SQL, over a pair of pipes: one byte of kind, eight of length, the
payload.

Tables travel as Arrow IPC streams, one complete stream per frame: a frame needs nothing of the frames before it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, BinaryIO, Final

import pyarrow as pa

_HEAD: Final = struct.Struct(">cQ")
_FRAME_BYTES: Final = 16 << 20  # a batch is cut until it is smaller, or one row
_FRAME_ROWS: Final = 65_536


class Kind(StrEnum):
    """What a frame says."""

    READY = "r"  # worker → service, JSON: what confines it
    CATALOG = "c"  # service → worker, JSON: tables and views
    QUERY = "q"  # service → worker, JSON: a statement
    RUNS = "k"  # worker → service, JSON: which runs and steps does a table hold? The answer has the same kind
    TABLE = "t"  # worker → service, JSON: rows are needed
    ROWS = "b"  # Arrow, either way
    END = "z"  # no more rows; from a worker JSON
    ERROR = "e"  # JSON: {"words": …, "again": …}


class BrokenWireError(Exception):
    """The other side is gone, or says what makes no sense."""


def send(to: BinaryIO, kind: Kind, payload: bytes | pa.Buffer = b"") -> None:
    """Writes one frame. Raises `BrokenWireError`."""
    try:
        to.write(_HEAD.pack(kind.value.encode(), len(payload)))
        to.write(payload)
        to.flush()
    except (OSError, ValueError) as error:
        raise BrokenWireError(str(error)) from error


def send_document(to: BinaryIO, kind: Kind, document: Any) -> None:
    """Writes a frame of JSON. Raises `BrokenWireError`."""
    send(to, kind, json.dumps(document).encode())


def receive(source: BinaryIO, longest: int) -> tuple[Kind, bytes]:
    """The next frame. Raises `BrokenWireError` also for a payload longer than `longest`."""
    try:
        kind, length = _HEAD.unpack(_exactly(source, _HEAD.size))
        if length > longest:
            raise BrokenWireError(f"a frame of {length} bytes")
        return Kind(kind.decode("latin-1")), _exactly(source, length)
    except (OSError, ValueError) as error:
        raise BrokenWireError(str(error)) from error


def _exactly(source: BinaryIO, length: int) -> bytes:
    content = source.read(length)
    if content is None or len(content) < length:
        raise BrokenWireError("the other side closed the connection")
    return content


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts that fit into a frame, one part at least; a row is never cut."""
    rows = max(1, min(_FRAME_ROWS, batch.num_rows * _FRAME_BYTES // max(batch.nbytes, 1)))
    for start in range(0, max(batch.num_rows, 1), rows):
        yield batch.slice(start, rows)


def packed(batch: pa.RecordBatch) -> pa.Buffer:
    """One batch as a complete Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def unpacked(payload: bytes) -> pa.Table:
    """What `packed` made. Raises `BrokenWireError`."""
    try:
        with pa.ipc.open_stream(pa.BufferReader(payload)) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BrokenWireError(str(error)) from error
