"""Raw files that the store does not list: what they hold is stored as ingest stores it, without a second file.

The id of a segment is in its rows, and names its run, writer and number; so what the store knows is not stored again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import is_gone
from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor import queries, ragged
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.batch import Batch, NewestTimes, Raw, Read, adopt_file, reduce_parts
from logprobe.monitor.ingest.soundness import SoundRows
from logprobe.monitor.live.store import live_of
from logprobe.monitor.store.raw_files import (
    RAW_SCHEMAS,
    RawFile,
    Steps,
    incomplete_steps,
    raw_dir,
    raw_table,
)
from logprobe.monitor.store.store import Store


@dataclass(frozen=True, slots=True)
class Source:
    """A raw file that the store does not list."""

    file: RawFile
    written_at: datetime

    @classmethod
    def on_disk(cls, home: Home, path: str) -> Source:
        """`path`: relative to the home. Raises `OSError`."""
        status = (home.path / path).stat()
        return cls(RawFile(path, status.st_size), datetime.fromtimestamp(status.st_mtime, UTC))

    @property
    def name(self) -> str:
        """As messages name it."""
        return self.file.path


class Adopter:
    """Of one store, which nothing else writes to."""

    def __init__(self, store: Store, damaged: Mapping[str, Steps] | None = None) -> None:
        """Does nothing yet.

        Args:
            store: to adopt into.
            damaged: run → between which steps sequences may be in a file that cannot be read: no number is made of
                them.
        """
        self._store = store
        self._damaged = damaged or {}
        self._newest = NewestTimes(store)
        self._live = live_of(store)
        self._tombstones = Tombstones(store.home)

    def adopt(self, source: Source) -> int | None:
        """Makes a raw file count; → the sequences that are new, None: others hold all it has, and it does not.

        Raises `SegmentError` when it cannot be read, `StoreError`.
        """
        table = self.rows(source)
        ids = pc.unique(table["segment_id"]).to_pylist()
        stored = queries.adopt_known(self._store, segment_ids=ids)
        if stored.num_rows == len(ids) and all(map(self._is_there, stored.to_pylist())):
            return None
        run, kind = str(table["run"][0]), _kind(source)
        new = table.filter(pc.invert(pc.is_in(table["segment_id"], stored["segment_id"].combine_chunks())))
        raw = Raw(run, kind, table, _tokens(table))
        read = list(self._read(self._measurable(run, new)))
        adopt_file(
            self._store,
            self._live,
            Batch(reduce_parts(read) if read else [], [raw]),
            source.file,
            self._newest,
            stored=stored,
            written_at=source.written_at,
        )
        return sum(int(rows.table.num_rows) for _, rows in read)

    def _measurable(self, run: str, table: pa.Table) -> pa.Table:
        """Without the sequences of steps of which others are unknown."""
        if "step" not in table.column_names:
            return table
        damaged = [self._damaged[run]] if run in self._damaged else []
        for first, last in [*incomplete_steps(self._store.home, run), *damaged]:
            table = table.filter(pc.or_(pc.less(table["step"], first), pc.greater(table["step"], last)))
        return table

    def _is_there(self, segment: Mapping[str, Any]) -> bool:
        """Whether the file that the store takes a segment to be in is there, as far as this disk tells."""
        return segment["path"] is not None and not is_gone(self._store.home.path / segment["path"])

    def rows(self, source: Source) -> pa.Table:
        """All of a raw file in the order of its segments, if it is whole and of the run whose folder it is in. Raises
        `SegmentError`."""
        try:
            content = (self._store.home.path / source.file.path).read_bytes()
            table = raw_table(source.file.path, content, RAW_SCHEMAS[_kind(source)])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise SegmentError("unreadable", f"{source.name}: {error}") from error
        if not table.num_rows:
            raise SegmentError("unreadable", f"{source.name}: it has no rows")
        if fault := self._foreign(source, table):
            raise SegmentError("foreign", f"{source.name}: {fault}")
        return table.take(pc.sort_indices(table, sort_keys=[("segment_id", "ascending"), ("row", "ascending")]))

    def _foreign(self, source: Source, table: pa.Table) -> str | None:
        """Why a whole file is none of this home's."""
        folder = PurePosixPath(source.file.path).parent
        runs = pc.unique(table["run"]).to_pylist()
        if None in runs or {self._store.home.relative(raw_dir(self._store.home, run, folder.name)) for run in runs} != {
            str(folder)
        }:
            return "its rows are of other runs than its folder"
        tombstone = self._tombstones.find(runs[0])
        ids = pc.unique(table["segment_id"]).to_pylist()
        if tombstone and any(tombstone.covers(self._segment_path(segment_id).writer) for segment_id in ids):
            return f"run {runs[0]!r} was deleted at {tombstone.deleted_at} by {tombstone.author}; remove it"
        return None

    def _segment_path(self, segment_id: str | None) -> SegmentPath:
        return SegmentPath.parse(self._store.home.spool / Path(segment_id or ""))

    def _read(self, table: pa.Table) -> Iterator[Read]:
        """The segments of a table in the order of its rows."""
        ids = table["segment_id"].to_pylist()
        edges = [0, *(index for index in range(1, len(ids)) if ids[index] != ids[index - 1]), len(ids)]
        for first, end in itertools.pairwise(edges):
            if end > first:
                rows = table.slice(first, end - first)
                where = self._segment_path(ids[first])
                segment = Segment(where, rows, rows.nbytes, ids[first], where.writer, where.sequence)
                yield segment, SoundRows(rows, _tokens(rows), 0, 0, {}, None)


def _kind(source: Source) -> str:
    return PurePosixPath(source.file.path).parent.name


def _tokens(table: pa.Table) -> int:
    return int(np.maximum(ragged.lengths(table["token_ids"]), 0).sum())
