"""The tables of a store in memory, with no home: what ticks write, and what is read back of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from segments import records

from logprobe.collectors.clock import TIME
from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor.live.memory import Memory
from logprobe.monitor.live.records import Arrived
from logprobe.monitor.live.soundness import sound_rows
from logprobe.monitor.live.tick import Live, Outcome
from logprobe.monitor.live.writing import write
from logprobe.monitor.store.sql_files import schema, statement

# Tables that a tick writes; the columns that tell when it did are left out.
TABLES: Mapping[str, str] = {
    **{
        name: f"SELECT * FROM {name}"
        for name in (
            "all_sequences",
            "all_statistics",
            "rollout_sequences",
            "all_step_records",
            "all_weights",
            "config_records",
            "health_records",
            "step_metrics",
        )
    },
    "step_summaries": "SELECT * EXCLUDE (computed_at, revision) FROM step_summaries",
}


# The same without the names of segments, which are those of files in a real store.
_PLACE = "segment_id, row, rollout_segment, rollout_row"
UNPLACED: Mapping[str, str] = {
    "all_sequences": f"SELECT * EXCLUDE ({_PLACE}) FROM all_sequences",
    "all_statistics": "SELECT * EXCLUDE (segment_id, row) FROM all_statistics",
    "all_weights": "SELECT * EXCLUDE (segment_id, row) FROM all_weights",
    "rollout_sequences": "SELECT * EXCLUDE (segment_id, row, parts), len(parts) AS parts FROM rollout_sequences",
    **{name: TABLES[name] for name in ("all_step_records", "health_records", "step_metrics")},
    "step_summaries": TABLES["step_summaries"],
}


def rows(query: Callable[[str], pa.Table], sql: str) -> Counter[str]:
    """Rows of a statement, in no order, bit by bit."""
    return Counter(map(repr, query(sql).to_pylist()))


class Mirror:
    """A store in memory: `Transaction` and `Source` of `monitor.live`."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(schema())
        self.raw: dict[str, dict[tuple[str, int], pa.Table]] = {"training": {}, "rollout": {}}
        self.read_back = Counter[str]()  # statements and lists, by name

    def execute(self, name: str, incoming: pa.Table | None = None, /, *, table: str = "", **params: Any) -> None:
        if incoming is not None:
            self.connection.register("incoming", incoming)
        self.connection.execute(statement(name).replace("{table}", table), params or None)

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        self.read_back[name] += name != "live_summaries"  # what a write gives back is no reading
        if incoming is not None:
            self.connection.register("incoming", incoming)
        return self.connection.execute(statement(name), params or None).to_arrow_table()

    def lists(self, kind: str, names: Sequence[str], keys: pa.Table) -> pa.Table:
        found = []
        for row in keys.to_pylist():
            if (raw := self.raw[kind].get((row["segment_id"], row["row"]))) is not None:
                found.append(raw.append_column("number", pa.array([row["number"]])))
                self.read_back[f"{kind} lists"] += 1
        return pa.concat_tables(found) if found else keys.slice(0, 0)

    def write(self, outcome: Outcome) -> None:
        """Writes what a tick found out, its segments, and its raw tokens."""
        for kind, arrived in outcome.arrived.items():
            self._note(kind, arrived)
        write(self, outcome, TIME.now())
        outcome.written()

    def _note(self, kind: str, arrived: Arrived) -> None:
        raw_file = "raw" if kind in self.raw else None
        keys = arrived.stored.select(["run", "segment_id", "row", "writer"]).to_pylist()
        for segment, run, writer in sorted({(row["segment_id"], row["run"], row["writer"]) for row in keys}):
            values = [segment, run, writer, 0, kind, 1, 0, 0, raw_file]
            self.connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, now(), NULL)", values)
        for place, row in enumerate(keys) if raw_file else ():
            self.raw[kind][row["segment_id"], row["row"]] = arrived.raw.slice(place, 1)

    def query(self, sql: str) -> pa.Table:
        return self.connection.execute(sql).to_arrow_table()

    def content(self) -> dict[str, Counter[str]]:
        """Rows of each table, in no order, bit by bit."""
        return {table: rows(self.query, sql) for table, sql in TABLES.items()}


def differences(ours: Mirror, theirs: Mirror) -> list[tuple[str, str]]:
    """Table and row that only one of two has."""
    one, other = ours.content(), theirs.content()
    return [
        (table, f"{mark} {row}")
        for table, rows in one.items()
        for mark, some in (("+", rows - other[table]), ("-", other[table] - rows))
        for row in some
    ]


Piece = tuple[str, str, list[dict[str, Any]]]  # writer, record kind, records


def arrived(run: str, pieces: Iterable[tuple[int, Piece]]) -> dict[str, Arrived]:
    """Segments, each with its number, as they are read."""
    found: dict[str, list[pa.Table]] = {}
    for number, (writer, kind, rows) in pieces:
        segment = f"{run}/{number:04d}"
        where = SegmentPath(Path(segment), run, writer, number, kind, 0)
        table = sound_rows([Segment(where, records(kind, *rows), 0, segment, writer, number)])[0].table
        found.setdefault(kind, []).append(table.append_column("writer", pa.repeat(writer, table.num_rows)))
    return {kind: Arrived.of(kind, pa.concat_tables(some).combine_chunks()) for kind, some in found.items()}


def started(mirror: Mirror) -> Live:
    """What a service knows that has just started."""
    return Live(Memory(mirror))
