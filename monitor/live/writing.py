"""Write the outcome of a tick to the store in one transaction.

New records are inserted together with their derived facts. Stored records are updated with facts that later records
changed: links to rollout records, versions that late marks decide, and replacement by a later attempt.

Dimensions: ``_S`` training records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS, SIDES
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.collectors.spool.schema import SPAN
from logprobe.monitor.live.memory import Step
from logprobe.monitor.live.records import ALIGNMENTS, BY_PARTS, HAS, HOW, SOURCES
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.steps import engine_spans, version_pieces
from logprobe.monitor.live.tick import Computed, Outcome
from logprobe.monitor.live.trajectories import as_dicts, made_of_parts
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.store import Store

_COUNTS: Final = ("routes_expected", "routes_compared", "routes_equal")
_TRAINED: Final = ("training", "statistics")
# Record kind → the table that has its records as they came, and what it leaves out of them.
_PLAIN: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "step": ("all_step_records", ("segment_id", "row", "writer")),
    "weights": ("all_weights", ("writer",)),
    "config": ("config_records", ("segment_id", "row", "writer")),
    "health": ("health_records", ("segment_id", "row")),
}
_VERSIONS: Final = pa.schema(
    [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int64()), ("spans", pa.list_(SPAN))]
)
_NAMED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "segment_id", "named")),
        *((name, pa.int64()) for name in ("row", "named_step")),
        ("named_at", pa.timestamp("us", "UTC")),
        *((name, pa.bool_()) for name in ("is_update", "unannounced")),
    ]
)
_PIECES: Final = pa.list_(
    pa.struct([("start", pa.int32()), ("end", pa.int32()), ("engine", pa.string()), ("stated", pa.string())])
)
_COUNTS_STILL: Final = (None, None)
_NEVER: Final = (None, None)  # profiled
_THAWED: Final = ("step_metrics", "step_summaries")


class Transaction(Protocol):
    """Stored statements within one transaction of the store."""

    def execute(self, name: str, incoming: pa.Table | None = None, /, *, table: str = "", **params: Any) -> None:
        """Run a stored statement that writes."""

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement, including earlier writes of the transaction."""


class Within:
    """Transaction of a store."""

    def __init__(self, store: Store, cursor: DuckDBPyConnection) -> None:
        self._store, self._cursor = store, cursor

    def execute(self, name: str, incoming: pa.Table | None = None, /, *, table: str = "", **params: Any) -> None:
        """Run a stored statement that writes."""
        self._store.execute(self._cursor, name, incoming, table=table, **params)

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement, including earlier writes of the transaction."""
        return self._store.read_within(self._cursor, name, incoming, **params)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Training records of a step."""

    step: Step
    rows: NDArray[np.intp]

    def column(self, name: str) -> NDArray[Any]:
        """Return one column of these records."""
        column: NDArray[Any] = self.step.trained[name][self.rows]
        return column

    def replaced(self) -> list[tuple[str | None, int | None]]:
        """Return the writer and start of the attempt that replaced each record, or None twice."""
        if self.step.older is None:
            return [_COUNTS_STILL] * len(self.rows)
        by = self.step.older.by
        return [by.get(row, _COUNTS_STILL) for row in self.rows.tolist()]


def write(to: Transaction, outcome: Outcome, now: datetime) -> list[pa.Table]:
    """Write the outcome of a tick to the store; see `Outcome.written`.

    Returns the run, number and revision of its steps, for each of its computed batches.
    """
    if outcome.thawed:
        keys = pa.table([pa.array(column) for column in zip(*outcome.thawed, strict=True)], ["run", "step"])
        for table in _THAWED:
            to.execute("forget_steps", keys, table=table)
    _rollouts(to, outcome)
    _trained(to, outcome)
    for kind, (table, left_out) in _PLAIN.items():
        if (some := outcome.arrived.get(kind)) is not None and some.stored.num_rows:
            to.execute("append", some.stored.drop_columns(list(left_out)), table=table)
    _name_weights(to, outcome)
    _links(to, outcome.steps)
    _parts(to, outcome)
    return [write_computed(to, computed, now) for computed in outcome.computed]


def _trained(to: Transaction, outcome: Outcome) -> None:
    """Insert training records kind by kind, in the order in which `Memory.add` added them."""
    for kind in _TRAINED:
        if (arrived := outcome.arrived.get(kind)) is None or not arrived.stored.num_rows:
            continue
        some = [_Rows(step, np.arange(rows.start, rows.stop)) for step, rows in outcome.placed[kind]]
        table = arrived.stored.drop_columns([*SIDES, "rollout_source", "writer"])
        table = table.append_column("full_hash", pa.array(_joined(some, "full_hash"), pa.uint64()))
        for name, column in _found(some).items():
            table = table.append_column(name, column)
        table = table.combine_chunks()
        to.execute("append", table, table="all_sequences")
        if (statistics := _statistics(some, PAIRS)).num_rows:
            to.execute("append", statistics, table="all_statistics")


def _joined(some: Sequence[_Rows], name: str) -> NDArray[Any]:
    return np.concatenate([rows.column(name) for rows in some])


def _found(some: Sequence[_Rows]) -> dict[str, pa.Array]:
    """Return the derived columns of training records."""
    segments_S = np.concatenate([_segments(rows) for rows in some])
    rows_S = np.concatenate([_rows(rows) for rows in some])
    strings = {
        "rollout_source": np.array(SOURCES, object)[_joined(some, "source")],
        "rollout_segment": segments_S,
        "alignment": np.array(ALIGNMENTS, object)[_joined(some, "alignment")],
        "joined_by": np.array(HOW, object)[_joined(some, "how")],
    }
    return {
        **{name: pa.array(values, pa.string()) for name, values in strings.items()},
        "rollout_row": pa.array(rows_S, pa.int32(), mask=rows_S < 0),
        **{name: _truths(_joined(some, name)) for name in ("token_match", "length_match", "routes_match")},
        "received_max_abs_diff": _floats(_joined(some, "difference")),
        **{name: _floats(_joined(some, name)).cast(pa.int64()) for name in _COUNTS},
        "pieces": _pieces(some),
        "repeated_by": _repeated_by(some),
        "began": pa.array([time for rows in some for _, time in rows.replaced()], pa.timestamp("us", "UTC")),
    }


def _repeated_by(some: Iterable[_Rows]) -> pa.Array:
    return pa.array([writer for rows in some for writer, _ in rows.replaced()], pa.string())


def _segments(some: _Rows) -> NDArray[np.object_]:
    """Return the segment of each linked rollout record, or the store's name for a record joined from parts."""
    links_S = some.column("link")
    found = np.full(len(links_S), None, object)
    if (linked := links_S >= 0).any():
        found[linked] = some.step.run.sampled["segment"][links_S[linked]]
    for place in np.flatnonzero(some.column("how") == BY_PARTS).tolist():
        found[place] = f"parts/{some.column('segment')[place]}"
    return found


def _rows(some: _Rows) -> NDArray[np.int64]:
    links_S = some.column("link")
    found = np.full(len(links_S), -1, np.int64)
    if (linked := links_S >= 0).any():
        found[linked] = some.step.run.sampled["row"][links_S[linked]]
    of_parts = some.column("how") == BY_PARTS
    found[of_parts] = some.column("row")[of_parts]
    return found


def _truths(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values == 1, pa.bool_(), mask=np.isnan(values))


def _floats(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _keys(some: Sequence[_Rows]) -> dict[str, pa.Array]:
    runs = chain.from_iterable([rows.step.run.name] * len(rows.rows) for rows in some)
    steps = [np.full(len(rows.rows), rows.step.number) for rows in some]
    return {
        "run": pa.array(list(runs), pa.string()),
        "step": pa.array(np.concatenate([np.empty(0, np.int64), *steps]), pa.int64()),
        "segment_id": pa.array(_joined(some, "segment") if some else [], pa.string()),
        "row": pa.array(_joined(some, "row") if some else [], pa.int32()),
    }


def _statistics(some: Sequence[_Rows], pairs: Sequence[str]) -> pa.Table:
    """Return the statistics of training records, with one row per record and measured pair."""
    return pa.concat_tables([_of_pair(some, pair) for pair in pairs])


def _of_pair(some: Sequence[_Rows], pair: str) -> pa.Table:
    with_any = [_Rows(each.step, each.rows[each.column(HAS + pair)]) for each in some]
    with_any = [each for each in with_any if len(each.rows)]
    columns = _keys(with_any) | {"pair": pa.repeat(pair, sum(len(each.rows) for each in with_any))}
    values = _joined(with_any, pair) if with_any else np.empty((0, len(COLUMN_SPECS)))
    for place, spec in enumerate(COLUMN_SPECS):
        columns[spec.name] = pa.array(values[:, place].astype(spec.dtype))
    return pa.table(columns | {"repeated_by": _repeated_by(with_any)})


def _links(to: Transaction, steps: Sequence[Step]) -> None:
    """Update stored records whose rollout record or versions changed, or whose replacement by a later attempt."""
    aside = {step: _aside(step) for step in steps}
    changed = ((step, (step.touched | aside[step] | _stated_otherwise(step)) - step.fresh) for step in steps)
    some = [_Rows(step, np.array(sorted(rows))) for step, rows in changed if rows]
    if some:
        to.execute("live_found", pa.table(_keys(some) | _found(some)))
        others = [each.rows[~each.column("received") | np.isin(each.rows, list(aside[each.step]))] for each in some]
        measured = [_Rows(each.step, rows) for each, rows in zip(some, others, strict=True) if len(rows)]
        if measured:  # what the trainer received stays its r
            to.execute("live_forget_statistics", pa.table(_keys(measured)))
            if (statistics := _statistics(measured, PAIRS)).num_rows:
                to.execute("append", statistics, table="all_statistics")
    if again := [step for step in steps if step.older is not None or step.aside]:
        numbers = {"run": [step.run.name for step in again], "step": [step.number for step in again]}
        to.execute("live_step_records", pa.table(numbers))


def _pieces(some: Sequence[_Rows]) -> pa.Array:
    found = [
        None if said is None else [piece._asdict() for piece in version_pieces(rows.step, row)]
        for rows in some
        for row, said in zip(rows.rows.tolist(), rows.column("stated").tolist(), strict=True)
    ]
    return pa.array(found, _PIECES)


def _stated_otherwise(step: Step) -> set[int]:
    """Return the records with versions stated by the trainer whose engine versions may have changed."""
    stated = (
        {row for row, said in enumerate(step.trained["stated"].tolist()) if said is not None}
        if len(step.trained)
        else set()
    )
    respanned = step.run.respanned
    if not stated or not (step.touched or respanned):
        return set()
    links = step.trained["link"]
    return {
        row
        for row in stated
        if row in step.touched
        or int(links[row]) in respanned
        or (row in step.parts and not respanned.isdisjoint(step.parts[row].numbers))
    }


def _aside(step: Step) -> set[int]:
    """Return the records whose replacing attempt differs from the stored one."""
    now = {} if step.older is None else step.older.by
    return {row for row in now.keys() | step.aside.keys() if now.get(row) != step.aside.get(row)}


def _rollouts(to: Transaction, outcome: Outcome) -> None:
    """Insert rollout records and update versions that marks changed."""
    changed = [(run, number) for run in outcome.runs for number in sorted(run.respanned)]
    if (arrived := outcome.arrived.get("rollout")) is not None and arrived.stored.num_rows:
        to.execute("append", arrived.stored.drop_columns("writer"), table="rollout_sequences")
    if changed:
        rows = [
            {
                "run": run.name,
                "segment_id": run.sampled["segment"][number],
                "row": int(run.sampled["row"][number]),
                "spans": as_dicts(run.spans[number]),
            }
            for run, number in changed
        ]
        to.execute("live_versions", pa.Table.from_pylist(rows, _VERSIONS))


def _name_weights(to: Transaction, outcome: Outcome) -> None:
    """Update the versions that marks give to loaded and read weights."""
    rows = [
        {
            "run": run.name,
            "segment_id": each.segment,
            "row": each.row,
            "named": each.named.version,
            "named_step": each.named.step,
            "named_at": each.named.at,
            "is_update": each.named.update,
            "unannounced": each.named.unannounced,
        }
        for run in outcome.runs
        for each in dict.fromkeys(run.renamed)
        if each.named is not None
    ]
    if rows:
        to.execute("live_named", pa.Table.from_pylist(rows, _NAMED))


def _parts(to: Transaction, outcome: Outcome) -> None:
    """Write records joined from parts among the rollout records."""
    again = [(step, row) for step in outcome.steps for row in sorted(_of_parts_again(step))]
    if gone := [(step, row) for step, row in again if row not in step.fresh]:
        to.execute("forget_trajectories", pa.table(_keys([_Rows(step, np.array([row])) for step, row in gone])))
    made = [(step, row) for step, row in again if row in step.parts and step.parts[row].sequence is not None]
    if not made:
        return
    numbers = [(step.run, number) for step, row in made for number in step.parts[row].numbers]
    keys = {
        "number": np.arange(len(numbers)),
        "run": pa.array([run.name for run, _ in numbers], pa.string()),
        "segment_id": pa.array([run.sampled["segment"][number] for run, number in numbers], pa.string()),
        "row": np.array([run.sampled["row"][number] for run, number in numbers], np.int64),
    }
    facts = iter(to.read("live_parts", pa.table(keys)).to_pylist())
    rows = [_made_of_parts(step, row, [next(facts) for _ in step.parts[row].numbers]) for step, row in made]
    to.execute("append", pa.concat_tables(rows), table="rollout_sequences")


def _made_of_parts(step: Step, row: int, facts: Sequence[Mapping[str, Any]]) -> pa.Table:
    record = made_of_parts(step, row, facts)
    if engine_spans(step, row)[0] is not None:
        return record
    place = record.schema.get_field_index("spans")
    return record.set_column(place, record.schema.field(place), pa.nulls(1, record.schema.field(place).type))


def _of_parts_again(step: Step) -> set[int]:
    """Return the joined records whose parts, or the versions of whose parts, have changed."""
    return {
        row
        for row in step.touched | step.parts.keys()
        if row in step.fresh or row in step.touched or _is_respanned(step, row)
    }


def _is_respanned(step: Step, row: int) -> bool:
    parts = step.parts[row]
    return parts.sequence is not None and not step.run.respanned.isdisjoint(parts.numbers)


def write_computed(to: Transaction, computed: Computed, now: datetime) -> pa.Table:
    """Replace the metrics and summaries of steps. Return their revisions."""
    runs, steps = [name for name, _ in computed.steps], np.array([number for _, number in computed.steps], np.int64)
    values = np.concatenate([computed.values[key] for key in KEYS])
    keys = pa.table({"run": pa.array(runs, pa.string()), "step": steps})
    metrics = {
        "run": pa.array(runs * len(KEYS), pa.string()),
        "step": np.tile(steps, len(KEYS)),
        "metric": pa.DictionaryArray.from_arrays(
            np.repeat(np.arange(len(KEYS), dtype=np.int32), len(runs)), list(KEYS)
        ),
        "value": pa.array(values, mask=np.isnan(values)),
    }
    times = np.array(computed.times, np.int64)
    summaries = keys.append_column("tokens", pa.array(computed.tokens))
    summaries = summaries.append_column("sequences", pa.array(computed.sequences))
    summaries = summaries.append_column("time", pa.array(times, pa.timestamp("us", "UTC"), mask=times == NONE))
    summaries = summaries.append_column("computed_at", pa.array([now] * len(runs), pa.timestamp("us", "UTC")))
    for name, counted in computed.counts.items():
        summaries = summaries.append_column(name, pa.array(counted))
    summaries = summaries.append_column("pairs", computed.pairs).append_column("slices", computed.slices)
    again = keys.filter(pa.array(computed.stored))
    gone = []
    if again.num_rows:
        to.execute("forget_steps", again, table="step_metrics")
        gone = to.read("live_forget_summaries", again).to_pylist()
    profiled = {(row["run"], row["step"]): (row["profiled"], row["profiled_tokens"]) for row in gone}
    states = [profiled.get(key, _NEVER) for key in computed.steps]
    for place, name in enumerate(("profiled", "profiled_tokens")):
        summaries = summaries.append_column(name, pa.array([state[place] for state in states], pa.int64()))
    to.execute("append", pa.table(metrics), table="step_metrics")
    return to.read("live_summaries", summaries)
