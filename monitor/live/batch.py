"""Store one batch of segments and their raw files in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Final

import pyarrow as pa

from logprobe.collectors.spool.schema import HEALTH
from logprobe.collectors.spool.segments import Segment
from logprobe.monitor.live.records import Arrived, reduced
from logprobe.monitor.live.soundness import SoundRows, sound_rows
from logprobe.monitor.live.tick import Live
from logprobe.monitor.live.writing import Within, write
from logprobe.monitor.store.raw_files import RAW_KINDS
from logprobe.monitor.store.store import Store

_ORDER: Final = ("training", "statistics", "rollout", "step", "weights", "config", "health")


_HEALTH: Final = pa.schema(
    [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int32()), *HEALTH, ("writer", pa.string())]
)
LEDGER: Final = pa.schema(
    [(name, pa.string()) for name in ("segment_id", "run", "writer", "kind", "raw_file")]
    + [(name, pa.int64()) for name in ("sequence", "rows", "tokens", "bytes")]
    + [("ingested_at", pa.timestamp("us", "UTC")), ("bad_rows", pa.list_(pa.int32()))]
)


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a batch with its usable rows and the rows to store.

    `place`: path of the file that holds the segment, relative to the data directory, or None for its spool file.
    """

    segment: Segment
    rows: SoundRows
    stored: pa.Table
    place: str | None = None

    @property
    def kind(self) -> str:
        """The segment's record kind."""
        return self.segment.where.kind

    @property
    def run(self) -> str:
        """The segment's run."""
        return self.segment.where.run


def sound_parts(segments: Sequence[Segment]) -> list[Part]:
    """Return the parts of segments of one kind, computed together. Raises `SegmentError` if a segment has no usable
    row."""
    read = list(zip(segments, sound_rows(segments), strict=True))
    table = pa.concat_tables([rows.table for _, rows in read])
    stored = reduced(segments[0].where.kind, table)
    writers = [pa.repeat(segment.writer, rows.table.num_rows) for segment, rows in read]
    stored = stored.append_column("writer", pa.chunked_array(writers, pa.string()))
    ends = accumulate(rows.table.num_rows for _, rows in read)
    return [
        Part(segment, rows, stored.slice(end - rows.table.num_rows, rows.table.num_rows))
        for (segment, rows), end in zip(read, ends, strict=True)
    ]


def write_batch(store: Store, live: Live, parts: Sequence[Part]) -> None:
    """Commit segments, or leave no trace of them. Raises `StoreError`, or `RunDeletedError` if their run was deleted.

    `live`: live runs of this store, the same object for all batches. No other thread may write during the call, so the
    rows that are read back are the committed ones.
    """
    runs = {part.run for part in parts}
    now = store.time.now()
    with store.standing_still():
        live.forget(store.rewritten.take())
        try:
            outcome = live.add(_arrived(parts, now))
            with store.transaction() as cursor:
                to = Within(store, cursor)
                for run in runs:  # in here: a deletion is complete before or begins after
                    store.archive.tombstones.refuse(run)
                to.execute("append", _ledger(store, parts, now), table="segments")
                revisions = write(to, outcome, now)
                if outcome.late and parts[0].place is None:
                    late = _late_records(outcome.late, now).drop_columns(["segment_id", "row"])
                    to.execute("append", late, table="health_records")
        except BaseException:
            live.forget(runs)
            raise
        live.written(outcome, revisions)
        live.keep()


def _arrived(parts: Sequence[Part], now: datetime) -> dict[str, Arrived]:
    """Return the rows of all segments by record kind."""
    found: dict[str, Arrived] = {}
    for kind in _ORDER:
        raw = [part.rows.table for part in parts if part.kind == kind]
        stored = [part.stored for part in parts if part.kind == kind]
        if kind == "health":
            bad = [_bad_rows_record(part, now) for part in parts if part.rows.bad_rows]
            raw, stored = raw + bad, stored + bad
        if stored:  # DuckDB takes a chunk at a time, column by column
            found[kind] = Arrived(_together(raw), _together(stored).combine_chunks())
    return found


def _bad_rows_record(part: Part, now: datetime) -> pa.Table:
    where, rows = part.segment.where, part.rows
    why = "; ".join(f"{reason} ({count})" for reason, count in rows.reasons.items())
    return _health(
        now,
        run=where.run,
        segment_id=part.segment.segment_id,
        writer=part.segment.writer,
        event="bad_rows",
        severity="error",
        message=f"{rows.bad_rows} rows of a {where.kind} segment do not fit together and were left out: {why}",
        sequences=rows.bad_rows,
        tokens=rows.bad_tokens,
        step=rows.first_bad_step,
        details=json.dumps({"segment": part.segment.segment_id, "reasons": rows.reasons}),
    )


def _late_records(late: Mapping[tuple[str, int], int], now: datetime) -> pa.Table:
    """Record the number of late records of each run."""
    by_run: dict[str, dict[int, int]] = {}
    for (run, step), count in late.items():
        by_run.setdefault(run, {})[step] = count
    return pa.concat_tables(
        _health(
            now,
            run=run,
            segment_id="",
            writer="",
            event="late_records",
            severity="warning",
            message=f"{sum(steps.values())} sequences came for frozen steps ({min(steps)} to {max(steps)}) and were not "
            "counted: retention had removed the others",
            sequences=sum(steps.values()),
            step=min(steps),
        )
        for run, steps in by_run.items()
    )


def _health(now: datetime, **said: object) -> pa.Table:
    """Return one health record of ingest."""
    row = {"row": -1, "time": now, "component": "ingest", "count": 1, **said}
    return pa.Table.from_pylist([row], schema=_HEALTH)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default")


def _bad_rows(part: Part) -> list[int] | None:
    """Return the rows that are hidden from readers."""
    if not part.rows.bad_rows:
        return None
    return sorted(set(range(part.segment.table.num_rows)).difference(part.rows.table["row"].to_pylist()))


def _ledger(store: Store, parts: Sequence[Part], now: datetime) -> pa.Table:
    def row(part: Part) -> dict[str, object]:
        where, rows = part.segment.where, part.rows
        has_tokens = where.kind in RAW_KINDS and rows.table.num_rows
        return {
            "segment_id": part.segment.segment_id,
            "run": where.run,
            "writer": part.segment.writer,
            "sequence": part.segment.sequence,
            "kind": where.kind,
            "rows": rows.table.num_rows,
            "tokens": rows.tokens,
            "bytes": part.segment.nbytes,
            "raw_file": (part.place or store.home.relative(where.path)) if has_tokens else None,
            "ingested_at": now,
            "bad_rows": _bad_rows(part),
        }

    return pa.Table.from_pylist([row(part) for part in parts], LEDGER)
