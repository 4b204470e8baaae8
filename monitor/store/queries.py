"""Bounded query results and one-line error messages."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import QueryError

MORE: Final = b"logprobe.more"  # in the schema of a result of which there are more rows
_BEGINNING_BYTES: Final = 16 << 20
BATCH_ROWS: Final = 2048  # DuckDB's own unit; a row may be a megabyte, and a larger batch would be computed in vain


def limited(reader: pa.RecordBatchReader, max_rows: int | None, max_bytes: int, too_large: str) -> pa.Table:
    """Return all rows of `reader`. Raises `QueryError` if they exceed `max_rows` or `max_bytes`."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if max_rows is not None and rows > max_rows:
            raise QueryError(f"the result has more than {max_rows} rows; aggregate, or add a LIMIT")
        if size > max_bytes:
            raise QueryError(too_large)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def beginning(reader: pa.RecordBatchReader, first: int) -> pa.Table:
    """Return the first `first` rows of `reader`, or fewer if they exceed 16 MiB. The other rows are not computed.

    The schema's metadata has `MORE` if more rows exist.
    """
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > first or size > _BEGINNING_BYTES:
            break
    kept = min(first, rows, max(1, rows * _BEGINNING_BYTES // max(size, 1)))
    table = pa.Table.from_batches(batches, reader.schema).slice(0, kept)
    return table.replace_schema_metadata({MORE: b"true"}) if kept < rows else table


def one_line(error: BaseException) -> str:
    """Return the first paragraph of an error's message. DuckDB's later paragraphs repeat the statement."""
    return " ".join(str(error).split("\n\n", maxsplit=1)[0].split())
