"""Raw files that the store does not list: what they hold is stored as ingest stores it, without a second file.

The id of a segment is in its rows, and names its run, writer and number; so what the store knows is not stored again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import is_gone
from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor import ragged
from logprobe.monitor.ingest.batch import Batch, NewestTimes, Raw, Read, adopt_file, reduce_parts
from logprobe.monitor.ingest.soundness import SoundRows
from logprobe.monitor.store.raw_files import RAW_SCHEMAS, RawFile, incomplete_steps, read_raw
from logprobe.monitor.store.store import Store


class Adopter:
    """Of one store, which nobody else writes to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = NewestTimes(store)

    def adopt(self, path: str) -> int | None:
        """Makes a raw file (relative to the home) count; → the sequences that are new, None: others hold all it has, and it does not.

        Raises `SegmentError` when it cannot be read, `StoreError`.
        """
        table = self._rows(path)
        ids = pc.unique(table["segment_id"]).to_pylist()
        known = self._store.read("adopt_known", segment_ids=ids)
        if known.num_rows == len(ids) and all(map(self._is_there, known.to_pylist())):
            return None
        run, file = str(table["run"][0]), self._store.home.path / path
        new = table.filter(pc.invert(pc.is_in(table["segment_id"], known["segment_id"].combine_chunks())))
        raw = Raw(run, file.parent.name, table, _tokens(table))
        read = list(self._read(_measurable(self._store, run, new)))
        adopt_file(
            self._store,
            Batch(reduce_parts(read) if read else [], [raw]),
            RawFile(path, file.stat().st_size),
            self._newest,
            known=known,
            written_at=datetime.fromtimestamp(file.stat().st_mtime, UTC),
        )
        return sum(int(rows.table.num_rows) for _, rows in read)

    def _is_there(self, segment: Mapping[str, Any]) -> bool:
        """Whether the file, or object, that the store takes a segment to be in is there, as far as this disk tells."""
        if segment["path"] is None:
            return False
        return segment["location"] is not None or not is_gone(self._store.home.path / segment["path"])

    def _rows(self, path: str) -> pa.Table:
        file = self._store.home.path / path
        schema = RAW_SCHEMAS[file.parent.name]
        try:
            table = read_raw(file, schema)
        except (OSError, pa.ArrowException, KeyError) as error:
            raise SegmentError("unreadable", f"{path}: {error}") from error
        if not table.num_rows:
            raise SegmentError("unreadable", f"{path}: it has no rows")
        return table.take(pc.sort_indices(table, sort_keys=[("segment_id", "ascending"), ("row", "ascending")]))

    def _read(self, table: pa.Table) -> Iterator[Read]:
        """The segments of a table in the order of its rows."""
        ids = table["segment_id"].to_pylist()
        edges = [0, *(place for place in range(1, len(ids)) if ids[place] != ids[place - 1]), len(ids)]
        for first, end in itertools.pairwise(edges):
            if end > first:
                rows = table.slice(first, end - first)
                where = SegmentPath.parse(self._store.home.spool / Path(ids[first]))
                segment = Segment(where, rows, rows.nbytes, ids[first], where.writer, where.sequence)
                yield segment, SoundRows(rows, _tokens(rows), 0, 0, {}, None)


def _measurable(store: Store, run: str, table: pa.Table) -> pa.Table:
    """Without the sequences of steps of which others are unknown."""
    unknown = incomplete_steps(store.home, run)
    if unknown is None or "step" not in table.column_names:
        return table
    first, last = unknown
    return table.filter(pc.or_(pc.less(table["step"], first), pc.greater(table["step"], last)))


def _tokens(table: pa.Table) -> int:
    return int(np.maximum(ragged.lengths(table["token_ids"]), 0).sum())
