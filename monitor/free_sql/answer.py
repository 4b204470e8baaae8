"""A result of free SQL on its way from the worker to the caller."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from logprobe.monitor.store.queries import MORE


class Answer:
    """A result on its way. Closing it before its end ends the statement."""

    def __init__(self, batches: Iterator[pa.RecordBatch | bool]) -> None:
        """Waits for the first batch. Raises what the statement raises until then."""
        self._batches = batches
        first = next(batches)
        assert isinstance(first, pa.RecordBatch)  # noqa: S101 - see `WorkerProcess.answer`
        self.schema: pa.Schema = first.schema
        self._first = first
        self.more = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; may raise `QueryError` between them."""
        try:
            yield self._first
            for batch in self._batches:
                if isinstance(batch, bool):
                    self.more = batch
                else:
                    yield batch
        finally:
            self.close()

    def table(self) -> pa.Table:
        """All of it."""
        table = pa.Table.from_batches(list(self.batches()), self.schema)
        return table.replace_schema_metadata({MORE: b"true"}) if self.more else table

    def close(self) -> None:
        """Ends the statement if it has not ended."""
        self._batches.close()  # type: ignore[attr-defined]
