"""One batch of ingest: many segments, their raw files, and the one transaction that makes them count.

Only batches with records as old as what is there may hold sequences that are in the store already (`NewestTimes`): the
same record has the same time, whatever segment it comes in. Statements that look for it (``sql/find_doubled_*.sql``)
take as long as all that a small batch writes, and in almost every batch all records are newer than any before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import QueryError, StoreError
from logprobe.collectors.spool.schema import HEALTH
from logprobe.collectors.spool.segments import Segment
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.ingest.soundness import SoundRows, sound_rows, sound_together
from logprobe.monitor.live.records import Arrived, reduced
from logprobe.monitor.live.store import Within
from logprobe.monitor.live.tick import Live
from logprobe.monitor.live.writing import write
from logprobe.monitor.store.raw_files import (
    RAW_KINDS,
    RAW_SCHEMAS,
    RawFile,
    note_incomplete,
    notes_of,
    remove_files,
    write_raw,
)
from logprobe.monitor.store.store import Store

_WRITERS: Final = 4  # threads that compress Parquet files of one batch side by side
_ORDER: Final = ("training", "statistics", "rollout", "step", "weights", "config", "health")
_WITH_STATISTICS: Final = {"training", "statistics"}


Read = tuple[Segment, SoundRows]
# Statement → what reads the newest times there are, and the column that, beside run and time, is the same for the same
# record.
_PLACES: Final = {
    "find_doubled_training": ("newest_training", "rank"),
    "find_doubled_rollout": ("newest_rollout", "replica"),
}
_Key = tuple[str, Any]  # run, and rank or replica


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a batch, its usable rows, and what the store keeps of them."""

    segment: Segment
    rows: SoundRows
    stored: pa.Table

    @property
    def kind(self) -> str:
        """The segment's record kind."""
        return self.segment.where.kind

    @property
    def run(self) -> str:
        """The segment's run."""
        return self.segment.where.run


def sound_parts(segments: Sequence[Segment]) -> list[Part]:
    """The parts of segments of one kind, computed together. Raises `SegmentError` when one of them has no usable
    row."""
    sound = (sound_together(segments) if len(segments) > 1 else None) or [sound_rows(segment) for segment in segments]
    return reduce_parts(list(zip(segments, sound, strict=True)))


def reduce_parts(read: Sequence[Read]) -> list[Part]:
    """What the store keeps of segments of one kind, computed together: of a small one the calls cost more than the
    arithmetic."""
    kind = read[0][0].where.kind
    table = pa.concat_tables([rows.table for _, rows in read])
    stored = reduced(kind, table)
    writers = [pa.repeat(segment.writer, rows.table.num_rows) for segment, rows in read]
    stored = stored.append_column("writer", pa.chunked_array(writers, pa.string()))
    ends = accumulate(rows.table.num_rows for _, rows in read)
    return [
        Part(segment, rows, stored.slice(end - rows.table.num_rows, rows.table.num_rows))
        for (segment, rows), end in zip(read, ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw rows of one run and kind: the content of one new Parquet file."""

    run: str
    kind: str
    table: pa.Table
    tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments to be committed together."""

    parts: Sequence[Part]
    raws: Sequence[Raw]


def assemble(parts: Sequence[Part]) -> Batch:
    """Groups the raw rows of a batch by run and kind."""
    by_file = attrgetter("run", "kind")
    with_tokens = [part for part in parts if part.kind in RAW_KINDS and part.rows.table.num_rows]
    groups = groupby(sorted(with_tokens, key=by_file), key=by_file)
    return Batch(parts, [_raw(run, kind, list(group)) for (run, kind), group in groups])


def write_batch(store: Store, live: Live, batch: Batch, deleted: Tombstones, newest: NewestTimes) -> None:
    """Makes a batch count, or leaves no trace of it. Raises `StoreError`; `RunDeletedError` when a run of it was
    deleted meanwhile.

    `live`, `newest`: of this store, one for all batches.
    """
    written: list[Future[RawFile]] = []
    try:
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="logprobe-parquet") as pool:
            written.extend(pool.submit(write_raw, store.home, r.run, r.kind, r.table, r.tokens) for r in batch.raws)
        files = [future.result() for future in written]
        _note_reduced(store, batch)

        def before(to: Within) -> None:
            for run in {part.run for part in batch.parts}:  # in here: a deletion is complete before or begins after
                deleted.refuse(run)
            _register(to, batch, files, datetime.now(UTC))

        _tick(store, live, batch, newest, before)
    except BaseException as error:
        remove_files(store.home, [future.result().path for future in written if future.exception() is None])
        if isinstance(error, OSError):
            raise StoreError(f"raw tokens could not be written ({error}); they stay in the spool") from error
        raise
    store.retire(notes_of(store.home, [file.path for file in files]), read=False)


def adopt_file(
    store: Store,
    live: Live,
    batch: Batch,
    file: RawFile,
    newest: NewestTimes,
    *,
    stored: pa.Table,
    written_at: datetime,
) -> None:
    """Makes a raw file count that is there already, with those of its segments that the store does not know. Raises
    `StoreError`.

    `stored`: the others (`segment_id`), and the files that the ledger takes them to be in (`path`), in whose place this
    one comes; `written_at`: what counts as the time of its ingest.
    """

    def before(to: Within) -> None:
        to.execute("adopt_raw_places", stored, target=file.path)
        for table in ("training_sequences", "older_sequences", "sampled_sequences"):
            to.execute("adopt_raw_kept", stored, table=table)
        to.execute("unregister_raw_files", stored)
        _register(to, batch, [file], written_at)

    _tick(store, live, batch, newest, before)


def _register(to: Within, batch: Batch, files: Sequence[RawFile], now: datetime) -> None:
    """The ledger rows of a batch, and its raw files."""
    to.execute("insert_segments", _ledger(batch, files, now))
    if files:
        to.execute("insert_raw_files", _registration(batch, files, now))


def _raw(run: str, kind: str, parts: list[Part]) -> Raw:
    table = pa.concat_tables([_raw_rows(part) for part in parts])
    return Raw(run, kind, table.cast(RAW_SCHEMAS[kind]), sum(part.rows.tokens for part in parts))


def _raw_rows(part: Part) -> pa.Table:
    """A segment's rows as they are kept: a mask that leaves out nothing says no more than none, and costs a fifth of
    the time."""
    table = part.rows.table
    if part.kind != "training" or not pc.all(pc.equal(part.stored["n_expected"], part.stored["n_total"])).as_py():
        return table
    place = table.schema.get_field_index("mask")
    return table.set_column(place, table.schema.field(place), pa.nulls(table.num_rows, table.schema.field(place).type))


def _note_reduced(store: Store, batch: Batch) -> None:
    """Steps with sequences that came without raw tokens cannot be measured from those of the others."""
    for part in batch.parts:
        if part.kind == "statistics" and part.rows.table.num_rows:
            steps = pc.min_max(part.rows.table["step"]).as_py()
            note_incomplete(store.home, part.run, steps["min"], steps["max"])


def _arrived(batch: Batch) -> dict[str, Arrived]:
    """Record kind → its rows, all segments together."""
    found: dict[str, Arrived] = {}
    for kind in _ORDER:
        raw = [part.rows.table for part in batch.parts if part.kind == kind]
        stored = [part.stored for part in batch.parts if part.kind == kind]
        if kind == "health":
            bad = [_bad_rows_record(part) for part in batch.parts if part.rows.bad_rows]
            raw, stored = raw + bad, stored + bad
        if stored:  # DuckDB takes a chunk at a time, column by column
            found[kind] = Arrived(_whole(raw), _whole(stored))
    return found


def _bad_rows_record(part: Part) -> pa.Table:
    where, rows = part.segment.where, part.rows
    why = "; ".join(f"{reason} ({count})" for reason, count in rows.reasons.items())
    values: dict[str, object] = {
        "time": datetime.now(UTC),
        "component": "ingest",
        "event": "bad_rows",
        "severity": "error",
        "message": f"{rows.bad_rows} rows of a {where.kind} segment do not fit together and were left out: {why}",
        "count": 1,
        "sequences": rows.bad_rows,
        "tokens": rows.bad_tokens,
        "step": rows.first_bad_step,
        "details": json.dumps({"segment": part.segment.segment_id, "reasons": rows.reasons}),
    }
    key = {"run": where.run, "segment_id": part.segment.segment_id, "row": -1, "writer": part.segment.writer}
    schema = pa.schema(
        [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int32()), *HEALTH, ("writer", pa.string())]
    )
    return pa.Table.from_pylist([key | values], schema=schema)


def _whole(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def _tick(
    store: Store,
    live: Live,
    batch: Batch,
    newest: NewestTimes,
    before: Callable[[Within], None],
) -> None:
    """Takes a batch into memory and the store; `before` comes first in the transaction.

    Nobody writes meanwhile: what is read back of a run is what the store has when the batch counts.
    """
    runs = {part.run for part in batch.parts}
    with store.standing_still():
        live.forget(store.rewritten.take())
        try:
            outcome = live.add(_arrived(batch))
            with store.transaction() as cursor:
                to = Within(store, cursor)
                before(to)
                write(to, outcome, newest)
        except BaseException:
            live.forget(runs)
            raise
        outcome.written()
        live.keep()


def _ledger(batch: Batch, files: Sequence[RawFile], now: datetime) -> pa.Table:
    places = {(raw.run, raw.kind): file.path for raw, file in zip(batch.raws, files, strict=True)}

    def row(part: Part) -> dict[str, object]:
        where, rows = part.segment.where, part.rows
        return {
            "segment_id": part.segment.segment_id,
            "run": where.run,
            "writer": part.segment.writer,
            "sequence": part.segment.sequence,
            "kind": where.kind,
            "rows": rows.table.num_rows,
            "tokens": rows.tokens,
            "bytes": part.segment.nbytes,
            "raw_file": places.get((where.run, where.kind)) if rows.table.num_rows else None,
            "ingested_at": now,
        }

    schema = pa.schema(
        [(name, pa.string()) for name in ("segment_id", "run", "writer", "kind", "raw_file")]
        + [(name, pa.int64()) for name in ("sequence", "rows", "tokens", "bytes")]
        + [("ingested_at", pa.timestamp("us", "UTC"))]
    )
    return pa.Table.from_pylist([row(part) for part in batch.parts], schema=schema)


def _registration(batch: Batch, files: Sequence[RawFile], now: datetime) -> pa.Table:
    rows = [
        {
            "path": file.path,
            "run": raw.run,
            "kind": raw.kind,
            **_step_range(raw),
            "rows": raw.table.num_rows,
            "tokens": raw.tokens,
            "bytes": file.nbytes,
            "created_at": now,
        }
        for raw, file in zip(batch.raws, files, strict=True)
    ]
    return pa.Table.from_pylist(rows)


def _step_range(raw: Raw) -> dict[str, int | None]:
    if raw.kind != "training":
        return {"min_step": None, "max_step": None}
    extremes = pc.min_max(raw.table["step"]).as_py()
    return {"min_step": extremes["min"], "max_step": extremes["max"]}


class NewestTimes:
    """Times of the newest records of each run, by rank or replica, of a store that nothing else brings sequences
    into."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: dict[str, dict[_Key, datetime]] = {name: {} for name in _PLACES}
        self._runs: dict[str, set[str]] = {name: set() for name in _PLACES}  # of which these are known

    def needs(self, name: str, arriving: pa.Table) -> bool:
        """Whether the statement `name` can find anything about the rows of `arriving`, which from now on count as being
        in the store.

        A batch that is not committed after all leaves times that are too new: then the statement runs once more than it
        need. Raises `StoreError`.
        """
        if name not in _PLACES:
            return True
        statement, column = _PLACES[name]
        self._learn(name, statement, set(arriving["run"].unique().to_pylist()))
        keys = ["run", column, "segment_id"]
        spans = arriving.select([*keys, "time"]).group_by(keys).aggregate([("time", "min"), ("time", "max")])
        rows = zip(*(spans[key].to_pylist() for key in ("run", column, "time_min", "time_max")), strict=True)
        return self._advance(self._newest[name], (row for row in rows if row[2] is not None))

    def _learn(self, name: str, statement: str, runs: set[str]) -> None:
        unknown = runs - self._runs[name]
        if not unknown:
            return
        try:
            rows = self._store.read(statement, runs=sorted(unknown)).to_pylist()
        except QueryError as error:  # of the store, not of what arrives
            raise StoreError(f"{self._store.home.database}: the newest times cannot be read ({error})") from error
        for row in rows:
            if row["newest"] is not None:
                self._newest[name][row["run"], row["place"]] = row["newest"]
        self._runs[name] |= unknown

    @staticmethod
    def _advance(newest: dict[_Key, datetime], spans: Iterable[tuple[str, Any, datetime, datetime]]) -> bool:
        """Whether any span of time, of one segment each, does not lie behind all before it."""
        overlaps = False
        for run, place, first, last in sorted(spans, key=lambda span: span[2]):
            before = newest.get((run, place))
            overlaps |= before is not None and first <= before
            newest[run, place] = last if before is None else max(before, last)
        return overlaps
