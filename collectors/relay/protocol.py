"""What relay and receiver say to each other, over Arrow Flight with TLS.

    do_put     chunks of segments (`CHUNKS`), then one JSON document: what became of each segment
    do_action  ``sync``: length of the node's queue and its marks, against the service's marks and directives
               ``directives``: those of one run, for a trainer that asks by itself

Every call carries ``authorization: Bearer NAME.SECRET``. A segment is named by its place in the spool,
``RUN/WRITER/FILE``; its identity is in its content, so sending it twice is the same as sending it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

PROTOCOL: Final = 1
SCHEME: Final = "grpc+tls://"
UPLOAD: Final = "segments"
SYNC: Final = "sync"
DIRECTIVES: Final = "directives"

CHUNK_BYTES: Final = 1 << 20  # of a segment, before compression
BATCH_BYTES: Final = 16 << 20  # of segments in one upload; the last one may exceed it
BATCH_SEGMENTS: Final = 128
CODEC: Final = "zstd"
MARK_BYTES: Final = 4096  # of one mark, a line of JSON
MARKS: Final = 1024  # in one call
SYNC_RUNS: Final = 256  # in one call

# One row is one chunk; a segment's chunks follow each other. `size`: of the whole segment; `raw`: of this chunk,
# uncompressed.
CHUNKS: Final = pa.schema(
    [
        ("segment", pa.string()),
        ("size", pa.int64()),
        ("raw", pa.int64()),
        ("codec", pa.string()),
        ("data", pa.large_binary()),
    ]
)

# ``stored``: durable on the service's side; the node may forget it. It comes with words where its run was deleted and
# ingest removes it. ``refused``: will never be taken. ``denied``: this token may not write it; another one may.
# ``later``: the service cannot take it now.
Status = Literal["stored", "refused", "denied", "later"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one segment."""

    segment: str
    status: Status
    words: str = ""


def chunk(segment: str, size: int, raw: int, codec: str, data: pa.Buffer) -> pa.RecordBatch:
    """One row of `CHUNKS`, without copying `data`."""
    ends = pa.py_buffer(b"\0" * 8 + data.size.to_bytes(8, "little"))
    arrays = [
        pa.array([segment], pa.string()),
        pa.array([size], pa.int64()),
        pa.array([raw], pa.int64()),
        pa.array([codec], pa.string()),
        pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHUNKS)
