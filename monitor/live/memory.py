"""Records of live runs in memory, with facts about them by run and step.

Facts are only added. Results that depend on several records (pairs, spans, metrics) are computed from the whole set, so
the order of arrival does not matter.

Dimensions: ``_S`` records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.spool.schema import LARGEST
from logprobe.monitor.live.attempts import EVENTS, Older, Sign, beginnings
from logprobe.monitor.live.past import Past, PastStep
from logprobe.monitor.live.records import (
    LISTS,
    Arrived,
    Columns,
    decided_of,
    full_hash,
    needed_scalars,
    one_version,
    sampled_columns,
    spans_of,
    time_of,
    trained_columns,
    weight_records,
)
from logprobe.monitor.live.rows import NO_LISTS, NONE, Lists, Rows, listed, whole_numbers
from logprobe.monitor.live.versions import PATIENCE, Decided, Mark, Marks, Named, Seen, Spans, resolved
from logprobe.monitor.metrics.lag import Versions, is_number

StepKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Told:
    """A step record with the scalars that metrics need and the correction that it states."""

    rank: int
    time: int
    values: Mapping[str, float | None]
    correction: str | None


@dataclass(eq=False)
class Step:
    """Records of one step of a run, and the results of comparing their pairs."""

    run: Run
    number: int
    trained: Rows = field(default_factory=Rows)
    told: list[Told] = field(default_factory=list)
    older: Older | None = None
    parts: dict[int, Any] = field(default_factory=dict)  # row → the requests it was sampled in, see `trajectories`
    labels: frozenset[str] = frozenset()  # versions of the trainer and of tokens
    met: bool = False  # a sample's name, or those of its parts, are those of rollout records
    by_tokens: bool = False  # records may belong to rollout records by their tokens alone
    fresh: set[int] = field(default_factory=set)  # training records that the store does not have yet
    touched: set[int] = field(default_factory=set)  # those that belong to another rollout record since
    aside: dict[int, tuple[str, int]] = field(default_factory=dict)  # those that the store has as an older attempt's
    stored: bool = False  # the store has rows of the step as a whole

    def add(self, columns: Columns) -> range:
        """Add training records and return their rows."""
        first = len(self.trained)
        self.trained.append(columns)
        run = self.run
        for sample, parts in zip(columns["sample"].tolist(), columns["part_ids"].tolist(), strict=True):
            for name in (sample, *(parts or ())):
                run.wanted.setdefault(name, set()).add(self.number)
                if run.past is not None:
                    run.asked.append(name)
        if run.past is not None and (run.first_met is None or self.number < run.first_met):
            run.asked_tokens += columns["token_hash"].tolist()
        return range(first, len(self.trained))

    @property
    def counted_S(self) -> NDArray[np.bool_]:
        """Training records that no later attempt has replaced."""
        return np.ones(len(self.trained), np.bool_) if self.older is None else ~self.older.rows_S

    def counted_told(self) -> list[Told]:
        """Return the step records that no later attempt has replaced."""
        older = self.older
        return self.told if older is None else [told for told in self.told if not older.scalars(told.rank, told.time)]


@dataclass(eq=False, slots=True)
class WeightsSeen:
    """An engine's record about its weights, and the version given by marks, or None before the first evaluation.

    `record`: record of an update. `counted`: the same record under its version, or None without a version.
    """

    segment: str | None
    row: int | None
    seen: Seen
    record: Mapping[str, Any] | None
    named: Named | None = None
    counted: dict[str, Any] | None = None


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
    weights_seen: list[WeightsSeen] = field(default_factory=list)  # records of engines, whose versions marks decide
    weights_seen_ends: Rows = field(default_factory=Rows)  # as `ends`
    results: dict[int, set[str]] = field(default_factory=dict)  # step → versions that it brought
    signs: list[Sign] = field(default_factory=list)
    begun: Sequence[Sign] = ()
    last: dict[str, int] = field(default_factory=dict)  # writer → when it recorded training last
    respanned: set[int] = field(default_factory=set)  # rollout records whose versions are other ones since
    renamed: list[WeightsSeen] = field(default_factory=list)  # the same of weights that engines loaded or read
    frozen: dict[int, int] = field(default_factory=dict)  # steps whose sequences are gone → time of the newest record
    past: Past | None = None  # records that only the store has; None: there are none
    recall: set[int] = field(default_factory=set)  # steps of the past that news concern
    asked: list[str] = field(default_factory=list)  # names of training records whose rollout records may be in the past
    known: set[str] = field(default_factory=set)  # names whose rollout records have been read back
    asked_tokens: list[int] = field(default_factory=list)  # the same of tokens, where names do not meet
    known_tokens: set[int] = field(default_factory=set)
    seen: int = 0  # rollout records whose tokens were looked for
    first_met: int | None = None  # the first step in which names have met, as of the last tick
    marked: tuple[int, int] | None = None  # the first of new marks, on both clocks
    used: int = 0  # the newest tick that had news of it
    _by_tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _indexed: int = 0  # rollout records that are in `_by_tokens`

    def step(self, number: int) -> Step:
        """Return a step. Create it if it is unknown."""
        if number not in self.steps:
            self.steps[number] = Step(self, number)
            if self.past is not None and number in self.past.steps:
                self.recall.add(number)
        return self.steps[number]

    def records(self) -> int:
        """Return the number of records in memory."""
        return len(self.sampled) + sum(len(step.trained) + len(step.told) for step in self.steps.values())

    def leave(self) -> None:
        """Release all records from memory. The store has them."""
        past = self.past = self.past or Past()
        for number, step in self.steps.items():
            past.steps[number] = PastStep(begun(step), newest(step), step.met, step.by_tokens)
            past.label(number, step.labels)
        names = [(name, number) for name, numbers in self.wanted.items() for number in numbers]
        past.trained.add([name for name, _ in names], [number for _, number in names])
        rollouts = [*self.by_name, *self.by_trajectory]
        past.sampled.add(rollouts, np.zeros(len(rollouts), np.int64))
        if len(self.ends):
            past.last = max(past.last, int(self.ends["last"].max()))
            past.wall = max(past.wall, int(self.ends["wall"].max()))
        self.steps, self.sampled, self.spans, self.decided, self.ends = {}, Rows(), [], {}, Rows()
        self.by_name, self.by_trajectory, self.wanted, self.known = {}, {}, {}, set()
        self._by_tokens, self._indexed, self.seen, self.known_tokens = {}, 0, 0, set()
        self.first_met = past.first_met()

    def tokens_index(self) -> Mapping[tuple[int, int], Sequence[int]]:
        """Return the rollout records without a trajectory, keyed by the fingerprint and the number of their tokens."""
        columns = [self.sampled[name][self._indexed :].tolist() for name in ("token_hash", "n_tokens", "trajectory")]
        for number, (tokens, n, trajectory) in enumerate(zip(*columns, strict=True), self._indexed):
            if trajectory is None:
                self._by_tokens.setdefault((tokens, n), []).append(number)
        self._indexed = len(self.sampled)
        return self._by_tokens


def begun(step: Step) -> int:
    """Return the time of the oldest training record of a step that no later attempt has replaced, or `NONE`."""
    times = step.trained["time"][step.counted_S] if len(step.trained) else np.empty(0, np.int64)
    times = times[times != NONE]
    return int(times.min()) if len(times) else NONE


def newest(step: Step) -> int:
    """Return the time of the newest record of a step, including those of earlier attempts, or `NONE`."""
    trained = step.trained["time"].max() if len(step.trained) else NONE
    return max(int(trained), *(told.time for told in step.told), NONE)


class Source(Protocol):
    """Interface of the store that reads records of runs."""

    def read(self, name: str, incoming: pa.Table | None = None, /, **params: Any) -> pa.Table:
        """Return the rows of a stored statement."""

    def lists(self, kind: str, names: Sequence[str], keys: pa.Table) -> pa.Table:
        """Return token lists of records (``number, segment_id, row``). Records without a file are omitted."""


class Memory:
    """Live runs. `add` adds records and returns the steps that they may change."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.placed: dict[str, list[tuple[Step, range]]] = {}  # record kind → training records that `add` took in last
        self.runs: dict[str, Run] = {}
        self.training_lists = Lists()
        self.rollout_lists = Lists()

    def run(self, name: str) -> Run:
        """Return a run. Create it if it is unknown."""
        if name not in self.runs:
            self.runs[name] = Run(name)
        return self.runs[name]

    def add(self, arrived: Mapping[str, Arrived]) -> set[StepKey]:
        """Add usable rows by record kind and return the steps with news."""
        dirty: set[StepKey] = set()
        self.placed = {}
        for kind, take_in in (
            ("weights", self._weights),
            ("rollout", self._rollout),
            ("training", self._training),
            ("statistics", self._statistics),
            ("step", self._told),
            ("health", self._signs),
        ):
            if kind in arrived and arrived[kind].raw.num_rows:
                dirty |= take_in(arrived[kind])
        return dirty

    def _training(self, arrived: Arrived) -> set[StepKey]:
        columns = trained_columns(arrived.stored)
        columns["full_hash"] = full_hash(arrived.raw, columns)
        columns["lists"] = self.training_lists.add(arrived.raw, LISTS["training"])
        return self._into_steps("training", arrived.stored, columns)

    def _statistics(self, arrived: Arrived) -> set[StepKey]:
        columns = trained_columns(arrived.stored)
        columns["full_hash"] = columns["token_hash"]
        columns["lists"] = np.full(arrived.stored.num_rows, NO_LISTS, np.int64)
        columns["reduced"] = np.ones(arrived.stored.num_rows, np.bool_)
        return self._into_steps("statistics", arrived.stored, columns)

    def _into_steps(self, kind: str, table: pa.Table, columns: Columns) -> set[StepKey]:
        dirty = set()
        steps_S = table["step"].to_numpy()
        placed = self.placed.setdefault(kind, [])
        for name, number, rows in groups(table["run"], steps_S):
            run = self.run(name)
            step = run.step(number)
            placed.append((step, step.add({key: column[rows] for key, column in columns.items()})))
            step.fresh.update(placed[-1][1])
            _note_last(run, columns, rows)
            dirty.add((name, number))
        return dirty

    def fetch(
        self, trained: Iterable[tuple[Step, Sequence[int]]], sampled: Iterable[tuple[Run, Sequence[int]]]
    ) -> None:
        """Read lists back that are only on the disk. Mark records whose lists no longer exist."""
        self._fetch("training", self.training_lists, [(step.trained, rows) for step, rows in trained])
        self._fetch("rollout", self.rollout_lists, [(run.sampled, rows) for run, rows in sampled])

    def _fetch(self, kind: str, lists: Lists, some: Iterable[tuple[Rows, Sequence[int]]]) -> None:
        wanted: list[tuple[Rows, int]] = []
        for rows, numbers in some:
            if len(numbers):
                places = np.unique(np.asarray(numbers, np.intp))
                wanted += [(rows, place) for place in places[lists.absent(rows["lists"][places])].tolist()]
        if not wanted:
            return
        keys = {
            "number": np.arange(len(wanted)),
            "segment_id": pa.array([rows["segment"][place] for rows, place in wanted], pa.string()),
            "row": np.array([rows["row"][place] for rows, place in wanted], np.int32),
        }
        found = None if self.source is None else self.source.lists(kind, LISTS[kind], pa.table(keys))
        for rows, place in wanted:
            rows["lists"][place] = NO_LISTS
        if found is not None and found.num_rows:
            for number, place in zip(found["number"].to_pylist(), lists.add(found, LISTS[kind]).tolist(), strict=True):
                rows, row = wanted[number]
                rows["lists"][row] = place

    def _rollout(self, arrived: Arrived) -> set[StepKey]:
        table = arrived.stored
        columns, spans, decided = sampled_facts(table)
        columns["lists"] = self.rollout_lists.add(arrived.raw, LISTS["rollout"])
        dirty = set()
        for name, _, rows in groups(table["run"], np.zeros(table.num_rows, np.int64)):
            run = self.run(name)
            some = {row - rows.start: decided[row] for row in _numbers(rows) if row in decided}
            numbers = take_sampled(run, {key: column[rows] for key, column in columns.items()}, spans[rows], some)
            self.resolve(run, numbers)
            dirty |= {(name, number) for number in index(run, numbers)}
            if run.past is not None:
                run.recall |= run.past.trained.steps(names_of(run, numbers))
                run.asked += run.sampled["sample"][numbers.start :].tolist()  # one may be there already
        return dirty

    def resolve(self, run: Run, numbers: Iterator[int] | Sequence[int]) -> set[int]:
        """Determine the versions of rollout records from all marks, and return the records that changed."""
        changed = set()
        for number in numbers:
            if (record := run.decided.get(number)) is None:
                continue
            spans: Spans | None = record.spans
            if marks := run.marks.about(record):
                times = self._step_times(run, number)
                spans = resolved(record, marks, None if times is None else np.asarray(times, np.int64))
            if spans != (run.spans[number] or ()):
                run.spans[number] = spans
                run.sampled["covered"][number], run.sampled["version"][number] = one_version(spans)
                changed.add(number)
        run.respanned |= changed
        return changed

    def _step_times(self, run: Run, number: int) -> Any:
        """Return the times at which the steps of a rollout record's tokens began, or None if unknown or no longer
        stored."""
        self.fetch([], [(run, [number])])
        place = run.sampled["lists"][number : number + 1]
        return None if place[0] == NO_LISTS else self.rollout_lists.take(place)["step_times"][0].values

    def _weights(self, arrived: Arrived) -> set[StepKey]:
        dirty: set[StepKey] = set()
        by_run: dict[str, list[dict[str, Any]]] = {}
        for record in weight_records(arrived.stored):
            by_run.setdefault(record["run"], []).append(record)
        for name, records in by_run.items():
            run = self.run(name)
            dirty |= {(name, number) for number in take_weights(run, records)}
            if marks := _concerned(run, records):
                changed = self.resolve(run, _reached(run.ends, marks))
                dirty |= {(name, number) for number in steps_of(run, changed)}
                run.marked = _first(marks)
        return dirty

    def _told(self, arrived: Arrived) -> set[StepKey]:
        table, dirty = arrived.stored, set()
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
            if number in self.run(name).frozen:
                continue
            self.run(name).step(number).told.append(Told(rank, time, scalars, correction))
            dirty.add((name, number))
        return dirty

    def _signs(self, arrived: Arrived) -> set[StepKey]:
        """Record events of trainers and return the steps whose records they may replace.

        These are all steps from the event's step on, since an event may be the first sign of a second attempt.
        """
        dirty: set[StepKey] = set()
        signs = signs_of(arrived.stored)
        for name, sign in signs:
            self.run(name).signs.append(sign)
            dirty |= {(name, number) for number in self.run(name).steps}
        for name in {name for name, _ in signs}:
            run = self.run(name)
            before, run.begun = run.begun, beginnings(run.signs)
            if (past := run.past) is not None:
                run.recall.update(*(past.since(sign.step, sign.time) for sign in run.begun if sign not in before))
        return dirty


def signs_of(table: pa.Table) -> list[tuple[str, Sign]]:
    """Return the events of trainers in health records, each with its run."""
    table = table.filter(pc.is_in(table["event"], pa.array(EVENTS)))
    times = whole_numbers(table["time"]).tolist()
    rows = table.select(["run", "writer", "event", "step", "details"]).to_pylist()
    return [(row["run"], Sign.of(row, time)) for time, row in zip(times, rows, strict=True)]


def groups(runs: pa.ChunkedArray, steps_S: NDArray[np.int64]) -> Iterator[tuple[str, int, slice]]:
    """Return consecutive rows of one run and step."""
    codes = runs.combine_chunks().dictionary_encode()
    names, codes_S = codes.dictionary.to_pylist(), codes.indices.to_numpy()
    changes = (np.diff(codes_S) != 0) | (np.diff(steps_S) != 0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(codes_S)], strict=True):
        yield names[codes_S[start]], int(steps_S[start]), slice(start, end)


def _note_last(run: Run, columns: Columns, rows: slice) -> None:
    """Record the newest training time of each writer. A newer time can restore records that an attempt had replaced."""
    writers, times_S = columns["writer"][rows], columns["time"][rows]
    for writer in set(writers.tolist()):
        before = run.last.get(writer, NONE)
        after = run.last[writer] = max(before, int(times_S[writers == writer].max()))
        if (past := run.past) is not None:
            passed = (sign for sign in run.begun if before < sign.time <= after)
            run.recall.update(*(past.since(sign.step, sign.time) for sign in passed))


def sampled_facts(table: pa.Table) -> tuple[Columns, list[Spans | None], dict[int, Decided]]:
    """Return columns of rollout records without ``lists``, their versions, and the engine's decisions by row."""
    columns, spans = sampled_columns(table), spans_of(table)
    of_one = [one_version(some) for some in spans]
    columns["covered"] = np.array([covered for covered, _ in of_one], np.int64)
    columns["version"] = listed(table["spans"], (version for _, version in of_one))
    decided = decided_of(table, columns)
    columns["ended"] = np.full(table.num_rows, NONE)
    for row, record in decided.items():
        if (last := record.decisions[-1].last) is not None and record.clock_offset is not None:
            columns["ended"][row] = last + record.clock_offset
    return columns, spans, decided


def take_sampled(run: Run, columns: Columns, spans: list[Spans | None], decided: Mapping[int, Decided]) -> range:
    """Add rollout records and return their numbers. `decided`: decisions by place among them."""
    first = len(run.sampled)
    run.sampled.append(columns)
    run.spans += spans
    _take_decided(run, {first + place: record for place, record in decided.items()})
    return range(first, len(run.sampled))


def _numbers(rows: slice) -> range:
    return range(rows.start, rows.stop)


def _take_decided(run: Run, records: Mapping[int, Decided]) -> None:
    run.decided |= records
    _note_ends(
        run.ends,
        [
            (number, last, record)
            for number, record in records.items()
            if (last := record.decisions[-1].last) is not None
        ],
    )


def _note_ends(ends: Rows, some: Sequence[tuple[int, int, Decided | Seen]]) -> None:
    """Record the end times of records on both clocks. If a clock was set, any mark may apply to the record."""
    rows = [
        (number, LARGEST, LARGEST)
        if record.clock_set is not None
        else (number, last, last + (record.clock_offset or 0))
        for number, last, record in some
    ]
    if rows:
        columns = np.array(rows, np.int64).T
        ends.append({"number": columns[0], "last": columns[1], "wall": columns[2]})


def _first(marks: Sequence[Mark]) -> tuple[int, int]:
    """Return the time of the first record that some of these marks may apply to, on both clocks."""
    firsts = [mark.moment if mark.of is None or mark.of.since is None else mark.of.since for mark in marks]
    walls = [
        mark.wall + first - mark.moment for mark, first in zip(marks, firsts, strict=True) if mark.wall is not None
    ]
    return min(firsts), min(walls, default=LARGEST)


def _reached(ends: Rows, marks: Sequence[Mark]) -> list[int]:
    """Return the records that had not ended when the first of these marks was made, on either clock."""
    if not marks or not len(ends):
        return []
    first, wall = _first(marks)
    reached = (ends["last"] >= first) | (ends["wall"] >= wall)
    numbers: list[int] = ends["number"][reached].tolist()
    return numbers


def index(run: Run, numbers: range) -> set[int]:
    """Index rollout records by name and return the steps that trained on them."""
    steps: set[int] = set()
    samples, trajectories = run.sampled["sample"], run.sampled["trajectory"]
    for number in numbers:
        run.by_name.setdefault(samples[number], []).append(number)
        steps |= run.wanted.get(samples[number], set())
        if (trajectory := trajectories[number]) is not None:
            run.by_trajectory.setdefault(trajectory, []).append(number)
            steps |= run.wanted.get(trajectory, set())
    return steps


def names_of(run: Run, numbers: Iterable[int]) -> set[str]:
    """Return the names of rollout records and of their trajectories."""
    some = list(numbers)
    return (
        {*run.sampled["sample"][some].tolist(), *run.sampled["trajectory"][some].tolist()} - {None} if some else set()
    )


def steps_of(run: Run, numbers: set[int]) -> set[int]:
    """Return the steps that trained on rollout records, by any of their names."""
    steps = {
        number
        for number, step in run.steps.items()
        if len(step.trained) and numbers.intersection(step.trained["link"].tolist())
    }
    for number in numbers:
        steps |= run.wanted.get(run.sampled["sample"][number], set())
        steps |= run.wanted.get(run.sampled["trajectory"][number], set())
    return steps


def _concerned(run: Run, records: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Return the marks among new records, and the weight changes seen by engines that some of these marks name."""
    marks: list[Mark] = [record["mark"] for record in records if record["mark"] is not None]
    return marks + [change for change in run.marks.changes if any(_may_name(mark, change) for mark in marks)]


def _may_name(mark: Mark, change: Mark) -> bool:
    of = change.of
    if of is None or of.since is None or of.until is None or mark.version is None:
        return False
    if mark.machine is not None and mark.machine == change.machine:
        return of.since <= mark.moment <= of.until
    offset = of.clock_offset
    return mark.wall is not None and offset is not None and of.since <= mark.wall - offset <= of.until


def take_weights(run: Run, records: Sequence[dict[str, Any]]) -> set[int]:
    """Add weight records and return the steps whose lag or publication time they may change."""
    for record in records:
        if record["mark"] is not None:
            run.marks.add(record["mark"])
    before_these = len(run.weights_seen)
    for record in records:
        if (seen := record["seen"]) is not None:
            update = None if seen.reading else record
            run.weights_seen.append(WeightsSeen(record["segment_id"], record["row"], seen, update))
    new = range(before_these, len(run.weights_seen))
    _note_ends(
        run.weights_seen_ends,
        [(at, run.weights_seen[at].seen.ended + PATIENCE, run.weights_seen[at].seen) for at in new],
    )
    numbers = {*new, *_reached(run.weights_seen_ends, _concerned(run, records))}
    gone, named = _renamed(run, [run.weights_seen[number] for number in sorted(numbers)])
    named += [record for record in records if record["seen"] is None and record["version"] is not None]
    by_order = not all(is_number(record["version"]) for record in (*run.weights, *named))
    before = Versions.of(run.weights).places if by_order else {}
    results = {record["step"] for record in gone}
    for record in gone:
        run.weights.remove(record)
        run.of_version[record["version"]].remove(record)
    for record in named:
        run.weights.append(record)
        run.of_version.setdefault(record["version"], []).append(record)
        if record["step"] is not None:
            run.results.setdefault(record["step"], set()).add(record["version"])
    versions = {record["version"] for record in (*named, *gone)}
    places = Versions.of(run.weights).places if by_order else {}
    touched = versions | {label for label, place in before.items() if places.get(label) != place}
    if run.past is not None:
        run.recall.update(*(run.past.labels.get(label, ()) for label in touched))
        results |= {record["step"] for version in versions for record in run.of_version[version]}
        run.recall |= results & run.past.steps.keys()
    return {
        number
        for number, step in run.steps.items()
        if not touched.isdisjoint(step.labels) or not versions.isdisjoint(run.results.get(number, ()))
    }


def _renamed(run: Run, some: Iterable[WeightsSeen]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Assign versions to the weights that engines saw, by the marks.

    Returns the update records that lost their previous version, and the records that gained one.
    """
    gone, come = [], []
    for each in some:
        named = run.marks.name(each.seen)
        if named == each.named:
            continue
        each.named = named
        run.renamed.append(each)
        if each.counted is not None:
            gone.append(each.counted)
            each.counted = None
        if each.record is not None and named.update and named.version is not None:
            applied = named.at if each.record["applied_at"] is None else each.record["applied_at"]
            told = {"version": named.version, "step": named.step, "applied_at": applied}
            each.counted = {**each.record, **told}
            each.counted["time"] = time_of(each.counted)
            come.append(each.counted)
    return gone, come
