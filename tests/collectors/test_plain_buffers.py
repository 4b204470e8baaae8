"""Compressed buffers are found wherever an IPC file has them, and sound segments are not taken for compressed."""

from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import records, trained

from logprobe.collectors.spool.segments import has_compressed

TABLES = {
    "segment": records("training", *(trained(f"s{i}", n=300) for i in range(30))),
    "dictionary": pa.table({"a": pa.array(["x" * 50, "y" * 50] * 500).dictionary_encode()}),
}


def encoded(table: pa.Table, codec: str | None, batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=-(-table.num_rows // batches))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.parametrize("batches", [1, 3])
def test_compression_is_found(table, batches):
    assert not has_compressed(encoded(TABLES[table], None, batches))
    for codec in ("zstd", "lz4"):
        assert has_compressed(encoded(TABLES[table], codec, batches))


def test_a_compressed_batch_behind_the_end_of_the_stream_is_found_through_the_footer():
    """The footer says which batches a reader reads, whatever lies before them."""
    plain, packed = encoded(TABLES["segment"], None), encoded(TABLES["segment"], "zstd")
    size = struct.unpack_from("<i", packed, len(packed) - 10)[0]
    footer = bytearray(packed[len(packed) - 10 - size :])
    block = next(place for place in range(len(footer) - 24) if _points_into(footer, place, packed))
    offset = struct.unpack_from("<q", footer, block)[0]
    gap = b"\0" * (-len(plain) % 8)
    struct.pack_into("<q", footer, block, len(plain) + len(gap) + offset)
    forged = plain + gap + packed[: len(packed) - 10 - size] + bytes(footer)
    assert pa.ipc.open_file(pa.BufferReader(forged)).read_all().num_rows == 30
    assert has_compressed(forged)


def _points_into(footer: bytearray, place: int, data: bytes) -> bool:
    offset, metadata, body = struct.unpack_from("<qi4xq", footer, place)
    inside = 8 <= offset < len(data) and 0 < metadata < len(data) and 0 < body < len(data)
    return inside and data[offset : offset + 4] == b"\xff\xff\xff\xff"


@given(st.data())
def test_damaged_files_are_an_error_and_nothing_else(data):
    content = bytearray(encoded(TABLES["segment"], "zstd"))
    for _ in range(data.draw(st.integers(1, 5))):
        content[-data.draw(st.integers(1, 400))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(struct.error):
        assert has_compressed(bytes(content)) in {True, False}


@pytest.mark.parametrize("content", [b"", b"x", b"ARROW1", b"ARROW1" * 9])
def test_what_is_no_file_is_an_error(content):
    with pytest.raises(struct.error):
        has_compressed(content)
