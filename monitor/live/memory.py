"""Everything known of live runs: facts about records, by run and step.

Facts are only added. What follows from several records (pairs, spans, metrics) is computed from the whole set, so the
order in which records come cannot matter.

Dimensions: ``_S`` records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.spool.schema import LARGEST
from logprobe.monitor.ingest.sequence_rows import reduce_rollout, reduce_training
from logprobe.monitor.live.attempts import EVENTS, Older, Sign, beginnings, rank_of
from logprobe.monitor.live.records import (
    ROLLOUT_LISTS,
    TRAINING_LISTS,
    Columns,
    decided_of,
    full_hash,
    needed_scalars,
    one_version,
    sampled_columns,
    spans_of,
    trained_columns,
    weight_records,
)
from logprobe.monitor.live.rows import NONE, Lists, Rows, listed, whole_numbers
from logprobe.monitor.live.versions import Decided, Mark, Marks, Order, Spans, resolved
from logprobe.monitor.metrics.lag import is_number

StepKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Told:
    """A step record: scalars that metrics need, and the correction it states."""

    rank: int
    time: int
    values: Mapping[str, float | None]
    correction: str | None


@dataclass(eq=False)
class Step:
    """Records of one step of a run, and what was found out about pairs of them."""

    run: Run
    number: int
    trained: Rows = field(default_factory=Rows)
    told: list[Told] = field(default_factory=list)
    older: Older | None = None
    parts: dict[int, Any] = field(default_factory=dict)  # row → the requests it was sampled in, see `trajectories`
    labels: frozenset[str] = frozenset()  # versions of the trainer and of tokens
    met: bool = False  # a sample's name, or those of its parts, are those of rollout records
    by_tokens: bool = False  # records may belong to rollout records by their tokens alone

    @property
    def counted_S(self) -> NDArray[np.bool_]:
        """Training records that no later attempt has replaced."""
        return np.ones(len(self.trained), np.bool_) if self.older is None else ~self.older.rows_S

    def counted_told(self) -> list[Told]:
        """Return the step records that no later attempt has replaced."""
        older = self.older
        return self.told if older is None else [told for told in self.told if not older.scalars(told.rank, told.time)]


@dataclass(eq=False)
class Run:
    """Records of one run."""

    name: str
    steps: dict[int, Step] = field(default_factory=dict)
    sampled: Rows = field(default_factory=Rows)
    spans: list[Spans | None] = field(default_factory=list)  # of each rollout record, after all marks
    decided: dict[int, Decided] = field(default_factory=dict)  # rollout records that a mark may come late for
    ends: Rows = field(default_factory=Rows)  # of those: their number, and when their last step began, on both clocks
    by_name: dict[str, list[int]] = field(default_factory=dict)  # sample id → rollout records
    by_trajectory: dict[str, list[int]] = field(default_factory=dict)
    wanted: dict[str, set[int]] = field(default_factory=dict)  # sample id or part → steps that trained on it
    marks: Marks = field(default_factory=Marks)
    weights: list[dict[str, Any]] = field(default_factory=list)
    of_version: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    results: dict[int, set[str]] = field(default_factory=dict)  # step → versions that it brought
    signs: list[Sign] = field(default_factory=list)
    begun: Sequence[Sign] = ()
    last: dict[str, int] = field(default_factory=dict)  # writer → when it recorded training last
    _by_tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _indexed: int = 0  # rollout records that are in `_by_tokens`

    def step(self, number: int) -> Step:
        """Return a step, new if it is not known yet."""
        if number not in self.steps:
            self.steps[number] = Step(self, number)
        return self.steps[number]

    def tokens_index(self) -> Mapping[tuple[int, int], Sequence[int]]:
        """Return rollout records that are of no trajectory by the fingerprint of their tokens and their number."""
        columns = [self.sampled[name][self._indexed :].tolist() for name in ("token_hash", "n_tokens", "trajectory")]
        for number, (tokens, n, trajectory) in enumerate(zip(*columns, strict=True), self._indexed):
            if trajectory is None:
                self._by_tokens.setdefault((tokens, n), []).append(number)
        self._indexed = len(self.sampled)
        return self._by_tokens


class Memory:
    """Live runs. `add` takes records in and says which steps they may change."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.training_lists = Lists()
        self.rollout_lists = Lists()

    def run(self, name: str) -> Run:
        """Return a run, new if it is not known yet."""
        if name not in self.runs:
            self.runs[name] = Run(name)
        return self.runs[name]

    def add(self, tables: Mapping[str, pa.Table]) -> set[StepKey]:
        """Take in usable rows by record kind (see `read.Reading.tables`); return the steps with news."""
        dirty: set[StepKey] = set()
        for kind, take_in in (
            ("weights", self._weights),
            ("rollout", self._rollout),
            ("training", self._training),
            ("statistics", self._statistics),
            ("step", self._told),
            ("health", self._signs),
        ):
            if kind in tables and tables[kind].num_rows:
                dirty |= take_in(tables[kind])
        return dirty

    def _training(self, table: pa.Table) -> set[StepKey]:
        columns = trained_columns(reduce_training(table), table["writer"])
        columns["full_hash"] = full_hash(table, columns)
        columns["lists"] = self.training_lists.add(table.select(TRAINING_LISTS))
        return self._into_steps(table, columns)

    def _statistics(self, table: pa.Table) -> set[StepKey]:
        """Records that a collector has reduced come from calls that carried both log-probs, or neither."""
        source = pc.if_else(table["backend"].is_valid(), "received", "missing")
        layers = pa.nulls(table.num_rows, pa.int32())
        reduced = table.append_column("rollout_source", source).append_column("route_layers", layers)
        columns = trained_columns(reduced, table["writer"])
        columns["full_hash"] = columns["token_hash"]
        columns["lists"] = np.full(table.num_rows, -1, np.int64)
        return self._into_steps(table, columns)

    def _into_steps(self, table: pa.Table, columns: Columns) -> set[StepKey]:
        dirty = set()
        steps_S = table["step"].to_numpy()
        for name, number, rows in _groups(table["run"], steps_S):
            run = self.run(name)
            run.step(number).trained.append({key: column[rows] for key, column in columns.items()})
            _want(run, number, columns, rows)
            _note_last(run, columns, rows)
            dirty.add((name, number))
        return dirty

    def _rollout(self, table: pa.Table) -> set[StepKey]:
        columns = sampled_columns(reduce_rollout(table))
        columns["lists"] = self.rollout_lists.add(table.select(ROLLOUT_LISTS))
        spans, decided = spans_of(table), decided_of(table, columns)
        of_one = [one_version(some) for some in spans]
        columns["covered"] = np.array([covered for covered, _ in of_one], np.int64)
        columns["version"] = listed(table["spans"], (version for _, version in of_one))
        dirty = set()
        for name, _, rows in _groups(table["run"], np.zeros(table.num_rows, np.int64)):
            run, first = self.run(name), len(self.run(name).sampled)
            run.sampled.append({key: column[rows] for key, column in columns.items()})
            run.spans += spans[rows]
            numbers = range(first, len(run.sampled))
            _take_decided(
                run,
                {number: decided[row] for number, row in zip(numbers, _numbers(rows), strict=True) if row in decided},
            )
            self.resolve(run, numbers)
            dirty |= {(name, number) for number in _index(run, numbers)}
        return dirty

    def resolve(self, run: Run, numbers: Iterator[int] | Sequence[int]) -> set[int]:
        """Decide the versions of rollout records against all marks; return the records that they have changed."""
        changed = set()
        for number in numbers:
            if (record := run.decided.get(number)) is None:
                continue
            spans: Spans | None = record.spans
            if late := run.marks.late_for(record):
                lists = self.rollout_lists.take(run.sampled["lists"][number : number + 1])
                times = lists["step_times"][0].values
                spans = resolved(record, late, None if times is None else np.asarray(times, np.int64))
            if late and spans != run.spans[number]:
                run.spans[number] = spans
                run.sampled["covered"][number], run.sampled["version"][number] = one_version(spans)
                changed.add(number)
        return changed

    def _weights(self, table: pa.Table) -> set[StepKey]:
        dirty: set[StepKey] = set()
        by_run: dict[str, list[dict[str, Any]]] = {}
        for record in weight_records(table):
            by_run.setdefault(record["run"], []).append(record)
        for name, records in by_run.items():
            run = self.run(name)
            dirty |= {(name, number) for number in _take_weights(run, records)}
            if marks := [record["mark"] for record in records if record["mark"] is not None]:
                changed = self.resolve(run, _reached(run, marks))
                dirty |= {(name, number) for number in _steps_of(run, changed)}
        return dirty

    def _told(self, table: pa.Table) -> set[StepKey]:
        dirty = set()
        values = needed_scalars(table["scalars"])
        rows = zip(
            table["run"].to_pylist(),
            table["step"].to_pylist(),
            whole_numbers(table["rank"]).tolist(),
            whole_numbers(table["time"]).tolist(),
            values,
            table["correction"].to_pylist(),
            strict=True,
        )
        for name, number, rank, time, scalars, correction in rows:
            self.run(name).step(number).told.append(Told(rank, time, scalars, correction))
            dirty.add((name, number))
        return dirty

    def _signs(self, table: pa.Table) -> set[StepKey]:
        """A beginning may replace records of any step from there on, and be the first sign of a second attempt."""
        table = table.filter(pc.is_in(table["event"], pa.array(EVENTS)))
        dirty: set[StepKey] = set()
        times = whole_numbers(table["time"]).tolist()
        for time, row in zip(
            times, table.select(["run", "writer", "event", "step", "details"]).to_pylist(), strict=True
        ):
            run = self.run(row["run"])
            run.signs.append(Sign(row["writer"], row["event"], time, row["step"], rank_of(row["details"])))
            dirty |= {(run.name, number) for number in run.steps}
        for name in {row_run for row_run, _ in dirty} | set(table["run"].to_pylist()):
            self.run(name).begun = beginnings(self.run(name).signs)
        return dirty


def _groups(runs: pa.ChunkedArray, steps_S: NDArray[np.int64]) -> Iterator[tuple[str, int, slice]]:
    """Consecutive rows of one run and step."""
    codes = runs.combine_chunks().dictionary_encode()
    names, codes_S = codes.dictionary.to_pylist(), codes.indices.to_numpy()
    changes = (np.diff(codes_S) != 0) | (np.diff(steps_S) != 0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(codes_S)], strict=True):
        yield names[codes_S[start]], int(steps_S[start]), slice(start, end)


def _want(run: Run, number: int, columns: Columns, rows: slice) -> None:
    for sample, parts in zip(columns["sample"][rows].tolist(), columns["part_ids"][rows].tolist(), strict=True):
        for name in (sample, *(parts or ())):
            run.wanted.setdefault(name, set()).add(number)


def _note_last(run: Run, columns: Columns, rows: slice) -> None:
    writers, times_S = columns["writer"][rows], columns["time"][rows]
    for writer in set(writers.tolist()):
        run.last[writer] = max(run.last.get(writer, int(NONE)), int(times_S[writers == writer].max()))


def _numbers(rows: slice) -> range:
    return range(rows.start, rows.stop)


def _take_decided(run: Run, records: Mapping[int, Decided]) -> None:
    run.decided |= records
    ends = [
        (number, last, last + (record.clock_offset or 0))
        for number, record in records.items()
        if (last := record.decisions[-1].last) is not None
    ]
    if ends:
        columns = np.array(ends, np.int64).T
        run.ends.append({"number": columns[0], "last": columns[1], "wall": columns[2]})


def _reached(run: Run, marks: Sequence[Mark]) -> list[int]:
    """Rollout records that were not at their end when the first of these marks was made, on either clock."""
    if not len(run.ends):
        return []
    first = min(mark.moment for mark in marks)
    wall = min((mark.wall for mark in marks if mark.wall is not None), default=LARGEST)
    reached = (run.ends["last"] >= first) | (run.ends["wall"] >= wall)
    numbers: list[int] = run.ends["number"][reached].tolist()
    return numbers


def _index(run: Run, numbers: range) -> set[int]:
    """Make rollout records known by name; return the steps that want them."""
    steps: set[int] = set()
    samples, trajectories = run.sampled["sample"], run.sampled["trajectory"]
    for number in numbers:
        run.by_name.setdefault(samples[number], []).append(number)
        steps |= run.wanted.get(samples[number], set())
        if (trajectory := trajectories[number]) is not None:
            run.by_trajectory.setdefault(trajectory, []).append(number)
            steps |= run.wanted.get(trajectory, set())
    return steps


def _steps_of(run: Run, numbers: set[int]) -> set[int]:
    """Steps that trained on rollout records, by any name they have."""
    steps = {
        number
        for number, step in run.steps.items()
        if len(step.trained) and numbers.intersection(step.trained["link"].tolist())
    }
    for number in numbers:
        steps |= run.wanted.get(run.sampled["sample"][number], set())
        steps |= run.wanted.get(run.sampled["trajectory"][number], set())
    return steps


def _take_weights(run: Run, records: Sequence[dict[str, Any]]) -> set[int]:
    """Take weight records in; return the steps whose lag or publication they may change."""
    for record in records:
        if record["mark"] is not None:
            run.marks.add(record["mark"])
    named = [record for record in records if record["version"] is not None]
    by_order = not all(is_number(record["version"]) for record in (*run.weights, *named))
    before = Order.of(run.weights).places if by_order else {}
    for record in named:
        run.weights.append(record)
        run.of_version.setdefault(record["version"], []).append(record)
        if record["step"] is not None:
            run.results.setdefault(record["step"], set()).add(record["version"])
    versions = {record["version"] for record in named}
    places = Order.of(run.weights).places if by_order else {}
    touched = versions | {label for label, place in before.items() if places[label] != place}
    return {
        number
        for number, step in run.steps.items()
        if not touched.isdisjoint(step.labels) or not versions.isdisjoint(run.results.get(number, ()))
    }
