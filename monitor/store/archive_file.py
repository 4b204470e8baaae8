"""One file of the archive: Parquet with a footer that lists its segments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logprobe.collectors.spool.segments import Segment

SEQUENCES: Final = "sequences"  # statistics per sequence, in place of tokens
FROZEN: Final = "frozen"  # metrics per step, in place of statistics
TIERS: Final = {SEQUENCES: 1, FROZEN: 2}  # any other kind: 0
_KEY: Final = b"logprobe.file"
_GROUP_BYTES: Final = 16 << 20  # of a row group, before compression
_PIECE_BYTES: Final = 1 << 16  # of pieces of a table on average: smaller ones take longer to write than to copy
_SPLIT: Final = (pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint16()))
_ROWS: Final = pa.schema([("segment_id", pa.string()), ("row", pa.int32())])


@dataclass(frozen=True, slots=True)
class Merged:
    """A file of the archive. `path`: below the archive's folder; `steps`: first and last step; `written`: time."""

    path: str
    run: str
    kind: str
    segments: frozenset[str]
    rows: int
    steps: tuple[int, int] | None
    nbytes: int
    written: float

    @property
    def tier(self) -> int:
        """Number of reductions of the file's records: 0 as recorded, 1 sequences, 2 metrics of steps."""
        return TIERS.get(self.kind, 0)


def with_rows(segment: Segment) -> pa.Table:
    """Return the rows of a segment after columns for its id and the row numbers."""
    table = _with_few_masks(segment.table.replace_schema_metadata())
    rows = pa.table([pa.repeat(segment.segment_id, table.num_rows), pa.array(range(table.num_rows), pa.int32())], _ROWS)
    for name in reversed(rows.column_names):
        table = table.add_column(0, name, rows[name])
    return table


def _with_few_masks(table: pa.Table) -> pa.Table:
    """Remove masks that mask no token, since an absent mask means the same and reads five times as fast."""
    if "mask" not in table.column_names or table["mask"].null_count == table.num_rows:
        return table
    mask = table["mask"].combine_chunks()
    values = mask.flatten()
    fits = pc.all(pc.equal(pc.list_value_length(mask), pc.list_value_length(table["token_ids"]))).as_py()
    if not fits or values.null_count or not pc.all(values, min_count=0).as_py():
        return table
    place = table.schema.get_field_index("mask")
    return table.set_column(place, table.schema.field(place), pa.nulls(table.num_rows, table.schema.field(place).type))


def parts_of(ids: pa.ChunkedArray) -> dict[str, tuple[int, int]]:
    """Return the first row and the number of rows of each segment. The rows of a segment are contiguous."""
    encoded = ids.combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = np.diff(starts, append=len(codes))
    names = encoded.dictionary.take(pa.array(codes[starts])).to_pylist()
    return dict(zip(names, zip(starts.tolist(), sizes.tolist(), strict=True), strict=True))


def name_of(content: bytes | memoryview) -> str:
    """Return the name of a file, which is the checksum of its bytes."""
    return f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.parquet"


def steps_of(table: pa.Table) -> tuple[int, int] | None:
    """Return the first and the last step of some rows, or None if they have none."""
    if "step" not in table.column_names or table["step"].null_count == table.num_rows:
        return None
    found = pc.min_max(table["step"]).as_py()
    return found["min"], found["max"]


def packed(segments: Iterable[str]) -> dict[str, list[str]]:
    """Return segment ids by writer, without the run, which is that of the file.

    >>> packed(["run/w/00000001.step.0a0b0c0d.arrow"])
    {'w': ['00000001.step.0a0b0c0d']}
    """
    by_writer: dict[str, list[str]] = {}
    for segment in segments:
        _, writer, name = segment.split("/")
        by_writer.setdefault(writer, []).append(name.removesuffix(".arrow"))
    return by_writer


def unpacked(run_folder: str, stated: Mapping[str, Any]) -> list[str]:
    """Return the ids of the segments in a file, see `packed`."""
    return [f"{run_folder}/{writer}/{name}.arrow" for writer, names in stated["segments"].items() for name in names]


def merged_of(path: str, stated: Mapping[str, Any], nbytes: int) -> Merged:
    """Return a file as described by its footer."""
    return Merged(
        path=path,
        run=stated["run"],
        kind=stated["kind"],
        segments=frozenset(unpacked(path.partition("/")[0], stated)),
        rows=stated["rows"],
        steps=None if stated["steps"] is None else (stated["steps"][0], stated["steps"][1]),
        nbytes=nbytes,
        written=stated["written"],
    )


def footer(content: bytes) -> dict[str, Any] | None:
    """Return the footer of a file, empty if it is not of the archive, or None if it cannot be decoded."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(content)).metadata or {}
        stated: dict[str, Any] = json.loads(metadata.get(_KEY, b"{}"))
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError):  # of bytes that were read: it is the content
        return None
    return stated


def parquet(table: pa.Table, stated: Mapping[str, Any]) -> memoryview:
    """Return rows as Parquet with the footer `stated`."""
    # Measured: splitting the bytes of token ids is 10 times as fast as a dictionary, and smaller. Advantages are mostly
    # constant within a sequence, which zstd alone turns into nothing. lz4 takes 27 ms a million tokens instead of 41,
    # and makes files an eighth larger. Least and largest values of lists say nothing to a reader.
    split = [f"{each.name}.list.element" for each in table.schema if each.type in _SPLIT and each.name != "advantages"]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_byte_stream_split=split,
        use_dictionary=[each.name for each in table.schema if each.type == pa.string()],
        write_statistics=[each.name for each in table.schema if not pa.types.is_nested(each.type)],
        store_schema=False,
    ) as writer:
        nbytes = table.nbytes  # once: with many pieces it takes a tenth of the time of writing
        rows = max(1, table.num_rows * _GROUP_BYTES // max(nbytes, 1))
        if nbytes < table.column(0).num_chunks * _PIECE_BYTES:
            table = table.combine_chunks()
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({_KEY: json.dumps(stated, separators=(",", ":")).encode()})
    return memoryview(sink.getvalue())
